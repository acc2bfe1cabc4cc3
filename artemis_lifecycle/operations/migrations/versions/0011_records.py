"""The journal's own retention; and the lifecycle's role may delete what that deletes, and not who decided what.

Migration 0004 gave it everything, and later ones more than their steps need."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import LIFECYCLE

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_SUMS = ("deleted", "absent", "kept", "failed", "deleted_bytes")
_DECISIONS = ("plans", "jobs", "holds", "scans", "tags", "restores", "deep_moves")


def _role(statement: str) -> str:
    return f"""
    DO $$ BEGIN
        IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{LIFECYCLE}') THEN {statement}; END IF;
    EXCEPTION
        WHEN insufficient_privilege THEN RAISE NOTICE 'role {LIFECYCLE} keeps its rights: no right to revoke them';
    END $$
    """


def upgrade() -> None:
    op.execute("ALTER TABLE lifecycle.jobs ADD COLUMN forgotten_at TIMESTAMP WITH TIME ZONE")
    for name in _SUMS:
        op.execute(f"ALTER TABLE lifecycle.jobs ADD COLUMN {name} BIGINT DEFAULT 0 NOT NULL")
    for table in _DECISIONS:
        op.execute(_role(f"REVOKE DELETE ON TABLE lifecycle.{table} FROM {LIFECYCLE}"))
    op.execute(_role(f"REVOKE INSERT, UPDATE, DELETE ON TABLE lifecycle.alembic_version FROM {LIFECYCLE}"))
    op.execute(_role(f"GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE lifecycle.listings TO {LIFECYCLE}"))


def downgrade() -> None:
    for table in _DECISIONS:
        op.execute(_role(f"GRANT DELETE ON TABLE lifecycle.{table} TO {LIFECYCLE}"))
    op.execute(_role(f"GRANT INSERT, UPDATE, DELETE ON TABLE lifecycle.alembic_version TO {LIFECYCLE}"))
    for name in (*_SUMS, "forgotten_at"):
        op.execute(f"ALTER TABLE lifecycle.jobs DROP COLUMN {name}")
