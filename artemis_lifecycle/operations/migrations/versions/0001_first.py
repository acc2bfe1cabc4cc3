"""Plans, journal, handoff batches, leases, holds, heartbeats, steps, listings, scans, tags."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATEMENTS = (
    """
    CREATE SEQUENCE lifecycle.plan_order
    """,
    """
    CREATE SEQUENCE lifecycle.lease_token
    """,
    """
    CREATE TABLE lifecycle.heartbeats (
        table_uuid TEXT NOT NULL,
        writer_id TEXT NOT NULL,
        session TEXT DEFAULT '' NOT NULL,
        table_name TEXT NOT NULL,
        prefix TEXT,
        host TEXT,
        pid INTEGER,
        started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        last_beat_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
        PRIMARY KEY (table_uuid, writer_id, session)
    )
    """,
    """
    CREATE INDEX heartbeats_expiry ON lifecycle.heartbeats (expires_at)
    """,
    """
    CREATE TABLE lifecycle.holds (
        hold_id TEXT NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        owner TEXT NOT NULL,
        reason TEXT NOT NULL,
        snapshot_ids BIGINT[] NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        until TIMESTAMP WITH TIME ZONE,
        released_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (hold_id)
    )
    """,
    """
    CREATE INDEX holds_of_table ON lifecycle.holds (table_uuid)
    """,
    """
    CREATE TABLE lifecycle.jobs (
        job_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        files_location TEXT NOT NULL,
        started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        finished_at TIMESTAMP WITH TIME ZONE,
        batches INTEGER NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        PRIMARY KEY (job_id),
        CONSTRAINT jobs_kind CHECK (kind IN ('expiration', 'orphans'))
    )
    """,
    """
    CREATE INDEX jobs_of_table ON lifecycle.jobs (table_uuid)
    """,
    """
    CREATE TABLE lifecycle.leases (
        token BIGINT NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        step TEXT NOT NULL,
        owner TEXT NOT NULL,
        run_id TEXT,
        acquired_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        expires_at TIMESTAMP WITH TIME ZONE NOT NULL,
        released_at TIMESTAMP WITH TIME ZONE,
        taken_over_by BIGINT,
        PRIMARY KEY (token)
    )
    """,
    """
    CREATE INDEX leases_of_run ON lifecycle.leases (run_id, token)
    """,
    """
    CREATE INDEX leases_of_table ON lifecycle.leases (table_uuid, token)
    """,
    """
    CREATE UNIQUE INDEX leases_one_per_table ON lifecycle.leases (table_uuid)
    WHERE released_at IS NULL AND taken_over_by IS NULL
    """,
    """
    CREATE TABLE lifecycle.listings (
        listing_id TEXT NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        location TEXT NOT NULL,
        files_location TEXT NOT NULL,
        started_at TIMESTAMP WITH TIME ZONE NOT NULL,
        finished_at TIMESTAMP WITH TIME ZONE NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        stored_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        PRIMARY KEY (listing_id)
    )
    """,
    """
    CREATE INDEX listings_of_table ON lifecycle.listings (table_uuid, started_at)
    """,
    """
    CREATE TABLE lifecycle.plans (
        plan_id TEXT NOT NULL,
        content_id TEXT NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        status TEXT NOT NULL,
        base_metadata_location TEXT NOT NULL,
        files_location TEXT NOT NULL,
        rule TEXT NOT NULL,
        expired_snapshots BIGINT DEFAULT 0 NOT NULL,
        expired_refs TEXT[] NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        summary TEXT NOT NULL,
        planned_at TIMESTAMP WITH TIME ZONE NOT NULL,
        sealed_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        ordinal BIGINT DEFAULT nextval('lifecycle.plan_order') NOT NULL,
        superseded_by TEXT,
        handed_off_at TIMESTAMP WITH TIME ZONE,
        cold_metadata_location TEXT,
        committed_at TIMESTAMP WITH TIME ZONE,
        committed_metadata_location TEXT,
        attempts INTEGER,
        due_at TIMESTAMP WITH TIME ZONE,
        done_at TIMESTAMP WITH TIME ZONE,
        closed_at TIMESTAMP WITH TIME ZONE,
        closed_by TEXT,
        closed_why TEXT,
        approved_by TEXT,
        approved_at TIMESTAMP WITH TIME ZONE,
        approved_why TEXT,
        night DATE,
        PRIMARY KEY (plan_id),
        CONSTRAINT plans_status CHECK (status IN ('open', 'superseded', 'handed_off', 'committed', 'deleting', 'done',
            'closed'))
    )
    """,
    """
    CREATE INDEX plans_by_status ON lifecycle.plans (status, due_at)
    """,
    """
    CREATE INDEX plans_content ON lifecycle.plans (content_id)
    """,
    """
    CREATE INDEX plans_of_table ON lifecycle.plans (table_uuid, ordinal)
    """,
    """
    CREATE UNIQUE INDEX plans_one_uncommitted ON lifecycle.plans (table_uuid) WHERE status IN ('open', 'handed_off')
    """,
    """
    CREATE TABLE lifecycle.scans (
        scan_id TEXT NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        listing_id TEXT,
        listed_at TIMESTAMP WITH TIME ZONE NOT NULL,
        listing_finished_at TIMESTAMP WITH TIME ZONE NOT NULL,
        metadata_location TEXT NOT NULL,
        metadata_read_at TIMESTAMP WITH TIME ZONE NOT NULL,
        files_location TEXT NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        skipped_young BIGINT DEFAULT 0 NOT NULL,
        skipped_in_flight BIGINT DEFAULT 0 NOT NULL,
        summary TEXT NOT NULL,
        state TEXT NOT NULL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        approved_by TEXT,
        approved_at TIMESTAMP WITH TIME ZONE,
        approved_why TEXT,
        PRIMARY KEY (scan_id),
        CONSTRAINT scans_state CHECK (state IN ('open', 'deleting', 'done'))
    )
    """,
    """
    CREATE INDEX scans_of_table ON lifecycle.scans (table_uuid, created_at)
    """,
    """
    CREATE TABLE lifecycle.steps (
        step_id BIGSERIAL NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        step TEXT NOT NULL,
        night DATE NOT NULL,
        owner TEXT NOT NULL,
        run_id TEXT,
        dry_run BOOLEAN NOT NULL,
        state TEXT NOT NULL,
        counts JSONB DEFAULT '{}' NOT NULL,
        error TEXT,
        started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        finished_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (step_id),
        CONSTRAINT steps_state CHECK (state IN ('running', 'done', 'failed', 'pending', 'skipped'))
    )
    """,
    """
    CREATE INDEX steps_of_night ON lifecycle.steps (table_uuid, night)
    """,
    """
    CREATE INDEX steps_of_table ON lifecycle.steps (table_uuid, step_id)
    """,
    """
    CREATE TABLE lifecycle.tags (
        tag_record_id BIGSERIAL NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        name TEXT NOT NULL,
        snapshot_id BIGINT NOT NULL,
        who TEXT NOT NULL,
        why TEXT,
        retain INTERVAL,
        created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        removed_at TIMESTAMP WITH TIME ZONE,
        removed_by TEXT,
        removed_why TEXT,
        PRIMARY KEY (tag_record_id)
    )
    """,
    """
    CREATE UNIQUE INDEX tags_one_per_name ON lifecycle.tags (table_uuid, name) WHERE removed_at IS NULL
    """,
    """
    CREATE TABLE lifecycle.batches (
        job_id TEXT NOT NULL,
        batch INTEGER NOT NULL,
        state TEXT NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        deleted BIGINT DEFAULT 0 NOT NULL,
        absent BIGINT DEFAULT 0 NOT NULL,
        kept BIGINT DEFAULT 0 NOT NULL,
        failed BIGINT DEFAULT 0 NOT NULL,
        deleted_bytes BIGINT DEFAULT 0 NOT NULL,
        attempts INTEGER DEFAULT 0 NOT NULL,
        fence BIGINT,
        error TEXT,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        PRIMARY KEY (job_id, batch),
        CONSTRAINT batches_state CHECK (state IN ('planned', 'deleting', 'done', 'failed')),
        FOREIGN KEY(job_id) REFERENCES lifecycle.jobs (job_id)
    )
    """,
    """
    CREATE TABLE lifecycle.handoff_batches (
        plan_id TEXT NOT NULL,
        batch INTEGER NOT NULL,
        state TEXT NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        copied BIGINT DEFAULT 0 NOT NULL,
        skipped BIGINT DEFAULT 0 NOT NULL,
        attempts INTEGER DEFAULT 0 NOT NULL,
        error TEXT,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        PRIMARY KEY (plan_id, batch),
        CONSTRAINT handoff_batches_state CHECK (state IN ('planned', 'done', 'failed')),
        FOREIGN KEY(plan_id) REFERENCES lifecycle.plans (plan_id)
    )
    """,
)

_TABLES = (
    "tags",
    "scans",
    "listings",
    "steps",
    "heartbeats",
    "holds",
    "leases",
    "handoff_batches",
    "batches",
    "jobs",
    "plans",
)
_SEQUENCES = ("lease_token", "plan_order")


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    for table in _TABLES:
        op.execute(f"DROP TABLE lifecycle.{table}")
    for sequence in _SEQUENCES:
        op.execute(f"DROP SEQUENCE lifecycle.{sequence}")
