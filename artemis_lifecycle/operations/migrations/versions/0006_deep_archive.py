"""What went to the deep archive, and who had what of it thawed, for which case and with whose approval."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import LIFECYCLE, role_statements

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE TABLE lifecycle.deep_moves (
        move_id TEXT NOT NULL PRIMARY KEY,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        storage_class TEXT NOT NULL,
        cutoff TIMESTAMP WITH TIME ZONE NOT NULL,
        files_location TEXT NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        who TEXT NOT NULL,
        started_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        finished_at TIMESTAMP WITH TIME ZONE
    )
    """,
    "CREATE INDEX deep_moves_of_table ON lifecycle.deep_moves (table_uuid, started_at)",
    """
    CREATE TABLE lifecycle.deep_snapshots (
        table_uuid TEXT NOT NULL,
        snapshot_id BIGINT NOT NULL,
        move_id TEXT NOT NULL REFERENCES lifecycle.deep_moves (move_id),
        PRIMARY KEY (table_uuid, snapshot_id)
    )
    """,
    # The rules of a thaw hold for whoever writes the row, by whatever means.
    """
    CREATE TABLE lifecycle.thaws (
        thaw_id TEXT NOT NULL PRIMARY KEY,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        snapshot_ids BIGINT[] NOT NULL,
        case_id TEXT NOT NULL,
        requester TEXT NOT NULL,
        reason TEXT NOT NULL,
        days INTEGER NOT NULL,
        files_location TEXT NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        requested_from TEXT NOT NULL,
        requested_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        lapses_at TIMESTAMP WITH TIME ZONE NOT NULL,
        approved_by TEXT,
        approved_at TIMESTAMP WITH TIME ZONE,
        approved_why TEXT,
        approved_from TEXT,
        asked_at TIMESTAMP WITH TIME ZONE,
        readable_at TIMESTAMP WITH TIME ZONE,
        readable_until TIMESTAMP WITH TIME ZONE,
        ended_at TIMESTAMP WITH TIME ZONE,
        ended_by TEXT,
        ended_why TEXT,
        CONSTRAINT thaws_said CHECK (btrim(case_id) <> '' AND btrim(requester) <> '' AND btrim(reason) <> ''),
        CONSTRAINT thaws_second_person CHECK (lower(btrim(approved_by)) <> lower(btrim(requester))),
        CONSTRAINT thaws_approved_first CHECK (asked_at IS NULL OR approved_by IS NOT NULL),
        CONSTRAINT thaws_days CHECK (days > 0)
    )
    """,
    "CREATE INDEX thaws_of_table ON lifecycle.thaws (table_uuid, requested_at)",
    *role_statements(
        {
            LIFECYCLE: (
                "SELECT, INSERT, UPDATE, DELETE ON TABLE lifecycle.deep_moves, lifecycle.deep_snapshots",
                # A thaw is a record: nobody takes it back.
                "SELECT, INSERT, UPDATE ON TABLE lifecycle.thaws",
            )
        }
    ),
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for table in ("thaws", "deep_snapshots", "deep_moves"):
        op.execute(f"DROP TABLE lifecycle.{table}")
