# SPDX-License-Identifier: Apache-2.0
"""Slices that replace a slice of another host, for example after an evacuation. Existing slices replace none."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("slices", sa.Column("moved_from", sa.Uuid(), nullable=True))
    op.add_column("slices", sa.Column("moved_from_host_id", sa.Uuid(), nullable=True))
    op.add_column("slices", sa.Column("moving", sa.Boolean(), server_default=sa.text("false"), nullable=False))
    op.create_index("ix_slices_moved_from", "slices", ["moved_from"], unique=True)
    op.create_index("ix_slices_moved_from_host_id", "slices", ["moved_from_host_id"])


def downgrade() -> None:
    """The downgrade is refused while a slice is moving: the previous release would let both hosts start the VM."""
    if op.get_bind().scalar(sa.text("SELECT 1 FROM slices WHERE moving LIMIT 1")):
        raise RuntimeError(
            "there are slices that are moving to another host; wait until they have arrived, or abort the moves"
        )
    op.drop_index("ix_slices_moved_from_host_id", "slices")
    op.drop_index("ix_slices_moved_from", "slices")
    for column in ("moving", "moved_from_host_id", "moved_from"):
        op.execute(f"ALTER TABLE slices DROP COLUMN {column}")
