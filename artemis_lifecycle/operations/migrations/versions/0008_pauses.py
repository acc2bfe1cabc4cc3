"""The kill switch: who stopped the lifecycle, of one table or of all, since when and why."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import LIFECYCLE, role_statements

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE TABLE lifecycle.pauses (
        pause_id TEXT NOT NULL PRIMARY KEY,
        table_uuid TEXT,
        table_name TEXT,
        who TEXT NOT NULL,
        why TEXT NOT NULL,
        since TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        ended_at TIMESTAMP WITH TIME ZONE,
        ended_by TEXT,
        CONSTRAINT pauses_said CHECK (btrim(who) <> '' AND btrim(why) <> '')
    )
    """,
    "CREATE INDEX pauses_in_force ON lifecycle.pauses (table_uuid) WHERE ended_at IS NULL",
    *role_statements({LIFECYCLE: ("SELECT, INSERT, UPDATE ON TABLE lifecycle.pauses",)}),
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE lifecycle.pauses")
