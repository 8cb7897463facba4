# SPDX-License-Identifier: Apache-2.0
"""Tokens that are good for some things only."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("scopes", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    """Tokens with scopes go: the release before would take them for whole ones."""
    op.execute("DELETE FROM tokens WHERE scopes IS NOT NULL")
    with op.batch_alter_table("tokens") as tokens:
        tokens.drop_column("scopes")
