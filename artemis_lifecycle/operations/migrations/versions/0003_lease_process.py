"""A lease names the processes of its holder, so that it lapses at once when they are known to be over."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE lifecycle.leases ADD COLUMN process TEXT")


def downgrade() -> None:
    op.execute("ALTER TABLE lifecycle.leases DROP COLUMN process")
