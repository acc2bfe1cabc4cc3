"""What was written on a tag's ref; tags removed that others had made; kinds of holds; approvals of losses."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_UP = (
    "ALTER TABLE lifecycle.tags ADD COLUMN max_ref_age_ms BIGINT",
    "ALTER TABLE lifecycle.tags ALTER COLUMN who DROP NOT NULL",
    "ALTER TABLE lifecycle.tags ALTER COLUMN created_at DROP NOT NULL",
    "ALTER TABLE lifecycle.holds ADD COLUMN kind TEXT DEFAULT 'legal' NOT NULL",
    "ALTER TABLE lifecycle.holds ADD CONSTRAINT holds_kind CHECK (kind IN ('legal', 'lease', 'consumer'))",
    "ALTER TABLE lifecycle.plans ADD COLUMN lost_approved_by TEXT",
    "ALTER TABLE lifecycle.plans ADD COLUMN lost_approved_at TIMESTAMP WITH TIME ZONE",
    "ALTER TABLE lifecycle.plans ADD COLUMN lost_approved_why TEXT",
)

_DOWN = (
    "ALTER TABLE lifecycle.plans DROP COLUMN lost_approved_why",
    "ALTER TABLE lifecycle.plans DROP COLUMN lost_approved_at",
    "ALTER TABLE lifecycle.plans DROP COLUMN lost_approved_by",
    "ALTER TABLE lifecycle.holds DROP CONSTRAINT holds_kind",
    "ALTER TABLE lifecycle.holds DROP COLUMN kind",
    "DELETE FROM lifecycle.tags WHERE who IS NULL OR created_at IS NULL",
    "ALTER TABLE lifecycle.tags ALTER COLUMN created_at SET NOT NULL",
    "ALTER TABLE lifecycle.tags ALTER COLUMN who SET NOT NULL",
    "ALTER TABLE lifecycle.tags DROP COLUMN max_ref_age_ms",
)


def upgrade() -> None:
    for statement in _UP:
        op.execute(statement)


def downgrade() -> None:
    for statement in _DOWN:
        op.execute(statement)
