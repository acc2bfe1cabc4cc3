"""When the next request to the object store is free, for all workers together (`storage/pace.py`)."""

from __future__ import annotations

from alembic import op

from artemis_lifecycle.operations.roles import LIFECYCLE, role_statements

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_UP = (
    # Losing the row in a crash costs nothing: the next request is free at once.
    "CREATE UNLOGGED TABLE lifecycle.paces (name TEXT NOT NULL PRIMARY KEY, "
    "ready_at TIMESTAMP WITH TIME ZONE NOT NULL)",
    *role_statements({LIFECYCLE: ("SELECT, INSERT, UPDATE ON TABLE lifecycle.paces",)}),
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE lifecycle.paces")
