# SPDX-License-Identifier: Apache-2.0
"""The window size of slices with an executor. Existing profiles get the module's size."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("profiles", sa.Column("window_bytes", sa.BigInteger(), server_default="67108864", nullable=False))


def downgrade() -> None:
    op.execute("ALTER TABLE profiles DROP COLUMN window_bytes")
