# SPDX-License-Identifier: Apache-2.0
"""An index for the first claim of each tenant on a GPU."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_grants_host_tenant", table_name="grants")
    op.create_index("ix_grants_first", "grants", ["host", "gpu", "tenant", "tenant_id", "started_at"])


def downgrade() -> None:
    op.drop_index("ix_grants_first", table_name="grants")
    op.create_index("ix_grants_host_tenant", "grants", ["host", "tenant"])
