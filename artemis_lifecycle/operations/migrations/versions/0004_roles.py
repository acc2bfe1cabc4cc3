"""Roles: who writes tables may beat, and see what is held; this project may do everything; analysts have nothing to
look for in the schema."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import INGEST, LIFECYCLE, role_statements

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_GRANTS = {
    INGEST: (
        "USAGE ON SCHEMA lifecycle",
        "SELECT, INSERT, UPDATE, DELETE ON TABLE lifecycle.heartbeats",
        # The version is looked at before the first beat.
        "SELECT ON TABLE lifecycle.holds, lifecycle.alembic_version",
    ),
    LIFECYCLE: (
        "USAGE ON SCHEMA lifecycle",
        "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lifecycle",
        "USAGE, SELECT ON ALL SEQUENCES IN SCHEMA lifecycle",
    ),
}


def upgrade() -> None:
    for statement in role_statements(_GRANTS):
        op.execute(statement)


def downgrade() -> None:
    # The roles stay: other databases of the server know them too.
    for role in _GRANTS:
        op.execute(
            f"DO $$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN "
            f"REVOKE ALL ON ALL TABLES IN SCHEMA lifecycle FROM {role}; "
            f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA lifecycle FROM {role}; "
            f"REVOKE ALL ON SCHEMA lifecycle FROM {role}; END IF; END $$"
        )
