# SPDX-License-Identifier: Apache-2.0
"""Which GPUs claims look at first."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

WALK = ("share_used", "mem_used", "id")


def upgrade() -> None:
    op.execute("ALTER TABLE gpus ADD COLUMN schedulable BOOLEAN DEFAULT true NOT NULL")
    op.drop_index("ix_gpus_fullest", table_name="gpus")
    op.create_index("ix_gpus_fullest", "gpus", ["schedulable", "policy", *WALK])


def downgrade() -> None:
    op.drop_index("ix_gpus_fullest", table_name="gpus")
    op.create_index("ix_gpus_fullest", "gpus", WALK)
    op.execute("ALTER TABLE gpus DROP COLUMN schedulable")
