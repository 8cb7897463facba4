# SPDX-License-Identifier: Apache-2.0
"""Limits on stored data of each host: indexes by host for its usage, and times for its meters and reports."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

ADDED = (("meters", "left_out_at"), ("host_reports", "spent_until"))


def upgrade() -> None:
    for table, column in ADDED:
        op.add_column(table, sa.Column(column, sa.DateTime(timezone=True), nullable=True))
    op.create_index("ix_meters_host_id", "meters", ["host_id"])
    op.create_index("ix_usage_unbooked_host", "usage_unbooked", ["host"])


def downgrade() -> None:
    op.drop_index("ix_usage_unbooked_host", table_name="usage_unbooked")
    op.drop_index("ix_meters_host_id", table_name="meters")
    for table, column in ADDED:
        op.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
