# SPDX-License-Identifier: Apache-2.0
"""The memory that a slice's executor reports, and the pause before a failed executor is restarted."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

ADDED = ("executor_pause_s", "executor_memory_used_bytes", "executor_memory_bytes")


def upgrade() -> None:
    for column in ADDED:
        op.execute(f"ALTER TABLE slice_observations ADD COLUMN {column} BIGINT DEFAULT '0' NOT NULL")


def downgrade() -> None:
    for column in ADDED:
        op.execute(f"ALTER TABLE slice_observations DROP COLUMN {column}")
