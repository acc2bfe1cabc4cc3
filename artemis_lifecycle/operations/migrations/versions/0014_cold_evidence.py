"""Which metadata commit a plan began: evidence by which its own commit is told from another tool's; how far the
rotation through the cold files is, and the copies that it found lost."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import LIFECYCLE, role_statements

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_UP = (
    "ALTER TABLE lifecycle.plans ADD COLUMN swap_base_location TEXT",
    "ALTER TABLE lifecycle.plans ADD COLUMN swap_updated_ms BIGINT",
    """
    CREATE TABLE lifecycle.cold_scrubs (
        table_uuid TEXT NOT NULL PRIMARY KEY,
        table_name TEXT NOT NULL,
        position BIGINT NOT NULL,
        began_at TIMESTAMP WITH TIME ZONE NOT NULL,
        files BIGINT DEFAULT 0 NOT NULL,
        bytes BIGINT DEFAULT 0 NOT NULL,
        updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL
    )
    """,
    """
    CREATE TABLE lifecycle.cold_losses (
        table_uuid TEXT NOT NULL,
        path TEXT NOT NULL,
        table_name TEXT NOT NULL,
        source TEXT NOT NULL,
        reason TEXT NOT NULL,
        found_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        checked_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        settled_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (table_uuid, path)
    )
    """,
    "CREATE INDEX cold_losses_open ON lifecycle.cold_losses (table_uuid) WHERE settled_at IS NULL",
    *role_statements({LIFECYCLE: ("SELECT, INSERT, UPDATE ON TABLE lifecycle.cold_scrubs, lifecycle.cold_losses",)}),
)

_DOWN = (
    "DROP TABLE lifecycle.cold_losses",
    "DROP TABLE lifecycle.cold_scrubs",
    "ALTER TABLE lifecycle.plans DROP COLUMN swap_updated_ms",
    "ALTER TABLE lifecycle.plans DROP COLUMN swap_base_location",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
