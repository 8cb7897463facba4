# SPDX-License-Identifier: Apache-2.0
"""A GPU's sizes as its host reports them. They differ from the sizes that claims use if the GPU shrank.

NULL until reported.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

ADDED = ("reported_mem_bytes", "reported_reserve_limit_permille")


def upgrade() -> None:
    for column in ADDED:
        op.add_column("gpus", sa.Column(column, sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for column in ADDED:
        op.execute(f"ALTER TABLE gpus DROP COLUMN {column}")
