"""Which tables the live catalog has had, and since when it has them no more; scans and jobs of dropped tables."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import LIFECYCLE, role_statements

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_UP = (
    """
    CREATE TABLE lifecycle.known_tables (
        catalog TEXT NOT NULL,
        table_uuid TEXT NOT NULL,
        table_name TEXT NOT NULL,
        metadata_location TEXT NOT NULL,
        first_seen TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        last_seen TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
        missing_since TIMESTAMP WITH TIME ZONE,
        kept_at TIMESTAMP WITH TIME ZONE,
        kept_by TEXT,
        kept_why TEXT,
        gone_at TIMESTAMP WITH TIME ZONE,
        PRIMARY KEY (catalog, table_uuid),
        CONSTRAINT known_tables_kept CHECK (kept_at IS NULL OR (btrim(kept_by) <> '' AND btrim(kept_why) <> '')),
        CONSTRAINT known_tables_gone CHECK (gone_at IS NULL OR missing_since IS NOT NULL)
    )
    """,
    "CREATE INDEX known_tables_missing ON lifecycle.known_tables (catalog, missing_since)",
    "ALTER TABLE lifecycle.scans ADD COLUMN kind TEXT DEFAULT 'orphans' NOT NULL",
    "ALTER TABLE lifecycle.scans ADD CONSTRAINT scans_kind CHECK (kind IN ('orphans', 'dropped'))",
    "ALTER TABLE lifecycle.jobs DROP CONSTRAINT jobs_kind",
    "ALTER TABLE lifecycle.jobs ADD CONSTRAINT jobs_kind CHECK (kind IN ('expiration', 'orphans', 'dropped'))",
    *role_statements({LIFECYCLE: ("SELECT, INSERT, UPDATE ON TABLE lifecycle.known_tables",)}),
)

_DOWN = (
    "ALTER TABLE lifecycle.jobs DROP CONSTRAINT jobs_kind",
    "ALTER TABLE lifecycle.jobs ADD CONSTRAINT jobs_kind CHECK (kind IN ('expiration', 'orphans'))",
    "ALTER TABLE lifecycle.scans DROP COLUMN kind",
    "DROP TABLE lifecycle.known_tables",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
