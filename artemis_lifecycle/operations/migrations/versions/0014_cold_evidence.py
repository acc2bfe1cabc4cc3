"""Which metadata commit a plan began: evidence by which its own commit is told from another tool's."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_UP = (
    "ALTER TABLE lifecycle.plans ADD COLUMN swap_base_location TEXT",
    "ALTER TABLE lifecycle.plans ADD COLUMN swap_updated_ms BIGINT",
)

_DOWN = (
    "ALTER TABLE lifecycle.plans DROP COLUMN swap_updated_ms",
    "ALTER TABLE lifecycle.plans DROP COLUMN swap_base_location",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
