# SPDX-License-Identifier: Apache-2.0
"""The state of each slice's executor. A slice without a report needs none."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

ADDED = {
    "executor_state": "VARCHAR(16) DEFAULT 'absent' NOT NULL",
    "executor_restarts": "BIGINT DEFAULT '0' NOT NULL",
    "executor_reason": "VARCHAR(200) DEFAULT '' NOT NULL",
}


def upgrade() -> None:
    for column, kind in ADDED.items():
        op.execute(f"ALTER TABLE slice_observations ADD COLUMN {column} {kind}")


def downgrade() -> None:
    for column in ADDED:
        op.execute(f"ALTER TABLE slice_observations DROP COLUMN {column}")
