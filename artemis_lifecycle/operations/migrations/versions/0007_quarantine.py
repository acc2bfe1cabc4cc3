"""What deletions moved into quarantine, until when it stays, and who brought it back."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import LIFECYCLE, role_statements

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE TABLE lifecycle.quarantines (
        job_id TEXT NOT NULL PRIMARY KEY,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        folder TEXT NOT NULL,
        metadata_location TEXT,
        retain_seconds BIGINT NOT NULL,
        began_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        purge_after TIMESTAMP WITH TIME ZONE,
        undeleted_at TIMESTAMP WITH TIME ZONE,
        undeleted_by TEXT,
        undeleted_why TEXT,
        closed_at TIMESTAMP WITH TIME ZONE,
        closed_by TEXT,
        closed_why TEXT,
        purging_at TIMESTAMP WITH TIME ZONE,
        purged_at TIMESTAMP WITH TIME ZONE,
        CONSTRAINT quarantines_purge CHECK (purging_at IS NULL OR purge_after IS NOT NULL),
        CONSTRAINT quarantines_said CHECK (undeleted_at IS NULL OR btrim(undeleted_by) <> '')
    )
    """,
    "CREATE INDEX quarantines_of_table ON lifecycle.quarantines (table_uuid, began_at)",
    *role_statements({LIFECYCLE: ("SELECT, INSERT, UPDATE ON TABLE lifecycle.quarantines",)}),
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE lifecycle.quarantines")
