# SPDX-License-Identifier: Apache-2.0
"""The cost of a switch between tenants on a GPU. 0: not measured."""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE gpus ADD COLUMN switch_cost_us BIGINT DEFAULT '0' NOT NULL")


def downgrade() -> None:
    op.execute("ALTER TABLE gpus DROP COLUMN switch_cost_us")
