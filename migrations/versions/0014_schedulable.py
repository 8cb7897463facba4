# SPDX-License-Identifier: Apache-2.0
"""Which GPUs are tried first for a claim."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

LITTLE_LEFT = sa.text("(mem_used - mem_bytes)")


def upgrade() -> None:
    op.execute("ALTER TABLE gpus ADD COLUMN schedulable BOOLEAN DEFAULT true NOT NULL")
    op.drop_index("ix_gpus_fullest", table_name="gpus")
    op.create_index("ix_gpus_fullest", "gpus", ["schedulable", "policy", "share_used", LITTLE_LEFT, "id"])


def downgrade() -> None:
    op.drop_index("ix_gpus_fullest", table_name="gpus")
    op.create_index("ix_gpus_fullest", "gpus", ["share_used", "mem_used", "id"])
    op.execute("ALTER TABLE gpus DROP COLUMN schedulable")
