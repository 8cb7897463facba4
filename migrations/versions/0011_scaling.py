# SPDX-License-Identifier: Apache-2.0
"""Shares of tenants above a reduced limit follow their use in steps, not with each slice that is deleted."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("quotas", sa.Column("scaled_used", sa.BigInteger(), server_default="0", nullable=False))
    op.execute(sa.text("UPDATE quotas SET scaled_used = share_used WHERE share_used > share_limit"))


def downgrade() -> None:
    """The previous release scales by the present use. Hosts get the new shares with their next change."""
    op.execute("ALTER TABLE quotas DROP COLUMN scaled_used")
