# SPDX-License-Identifier: Apache-2.0
"""Tokens with scopes, which limit what they allow."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("scopes", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Delete tokens with scopes: the previous release would treat them as unlimited."""
    op.execute("DELETE FROM tokens WHERE scopes IS NOT NULL")
    with op.batch_alter_table("tokens") as tokens:
        tokens.drop_column("scopes")
