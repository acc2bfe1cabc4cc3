"""What protection remembers: the locations that tables had, metadata files that a person settled, waiting batches."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import ANALYST, LIFECYCLE, role_statements

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_STATEMENTS = (
    """
    CREATE TABLE lifecycle.table_locations (
        table_uuid TEXT NOT NULL,
        location TEXT NOT NULL,
        first_seen TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        PRIMARY KEY (table_uuid, location)
    )
    """,
    """
    CREATE TABLE lifecycle.seen_pointers (
        table_uuid TEXT NOT NULL,
        metadata_location TEXT NOT NULL,
        seen_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        PRIMARY KEY (table_uuid, metadata_location)
    )
    """,
    """
    CREATE TABLE lifecycle.swap_attempts (
        table_uuid TEXT NOT NULL,
        base_location TEXT NOT NULL,
        updated_ms BIGINT NOT NULL,
        began_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        PRIMARY KEY (table_uuid, base_location, updated_ms)
    )
    """,
    """
    CREATE TABLE lifecycle.settled_metadata (
        table_uuid TEXT NOT NULL,
        metadata_location TEXT NOT NULL,
        settled_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        who TEXT NOT NULL,
        why TEXT NOT NULL,
        PRIMARY KEY (table_uuid, metadata_location),
        CONSTRAINT settled_metadata_said CHECK (btrim(who) <> '' AND btrim(why) <> '')
    )
    """,
    "ALTER TABLE lifecycle.batches DROP CONSTRAINT batches_state",
    "ALTER TABLE lifecycle.batches ADD CONSTRAINT batches_state "
    "CHECK (state IN ('planned', 'deleting', 'done', 'failed', 'waiting'))",
    *role_statements(
        {
            LIFECYCLE: (
                "SELECT, INSERT ON TABLE lifecycle.table_locations",
                "SELECT, INSERT ON TABLE lifecycle.settled_metadata",
                "SELECT, INSERT, DELETE ON TABLE lifecycle.seen_pointers",
                "SELECT, INSERT, DELETE ON TABLE lifecycle.swap_attempts",
            ),
            ANALYST: (
                "SELECT ON TABLE lifecycle.table_locations",
                "SELECT ON TABLE lifecycle.settled_metadata",
                "SELECT ON TABLE lifecycle.seen_pointers",
                "SELECT ON TABLE lifecycle.swap_attempts",
            ),
        }
    ),
)


def upgrade() -> None:
    for statement in _STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    op.execute("UPDATE lifecycle.batches SET state = 'failed' WHERE state = 'waiting'")
    op.execute("ALTER TABLE lifecycle.batches DROP CONSTRAINT batches_state")
    op.execute(
        "ALTER TABLE lifecycle.batches ADD CONSTRAINT batches_state "
        "CHECK (state IN ('planned', 'deleting', 'done', 'failed'))"
    )
    op.execute("DROP TABLE lifecycle.settled_metadata")
    op.execute("DROP TABLE lifecycle.seen_pointers")
    op.execute("DROP TABLE lifecycle.swap_attempts")
    op.execute("DROP TABLE lifecycle.table_locations")
