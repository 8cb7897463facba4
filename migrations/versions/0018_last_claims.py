# SPDX-License-Identifier: Apache-2.0
"""An index for when a tenant's last claim on a GPU ended."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_grants_last", "grants", ["host", "gpu", "tenant_id", sa.text("(ended_at IS NULL)"), "ended_at"])


def downgrade() -> None:
    op.drop_index("ix_grants_last", table_name="grants")
