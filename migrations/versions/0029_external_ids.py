# SPDX-License-Identifier: Apache-2.0
"""The ids of tenants in other systems. Existing tenants have none, and a downgrade drops all of them."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

EXTERNAL_ID = "VARCHAR(255) CONSTRAINT ck_tenants_external_id CHECK (length(external_id) BETWEEN 1 AND 255)"
GIVEN = sa.text("external_id IS NOT NULL")


def upgrade() -> None:
    op.execute(f"ALTER TABLE tenants ADD COLUMN external_id {EXTERNAL_ID}")
    op.create_index(
        "ix_tenants_external_id", "tenants", ["external_id"], unique=True, postgresql_where=GIVEN, sqlite_where=GIVEN
    )


def downgrade() -> None:
    op.drop_index("ix_tenants_external_id", "tenants")
    op.execute("ALTER TABLE tenants DROP COLUMN external_id")
