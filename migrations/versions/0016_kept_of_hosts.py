# SPDX-License-Identifier: Apache-2.0
"""How much is kept of a host's usage, without a look at that of others."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_meters_host_id", "meters", ["host_id"])
    op.create_index("ix_usage_unbooked_host", "usage_unbooked", ["host"])


def downgrade() -> None:
    op.drop_index("ix_usage_unbooked_host", table_name="usage_unbooked")
    op.drop_index("ix_meters_host_id", table_name="meters")
