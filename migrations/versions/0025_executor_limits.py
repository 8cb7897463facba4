# SPDX-License-Identifier: Apache-2.0
"""Limits of executors in profiles. 0: the host's settings apply, as before."""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

ADDED = ("executor_memory_max_bytes", "executor_tasks_max", "executor_cpu_max_permille")


def upgrade() -> None:
    for column in ADDED:
        op.execute(f"ALTER TABLE profiles ADD COLUMN {column} BIGINT DEFAULT '0' NOT NULL")


def downgrade() -> None:
    for column in ADDED:
        op.execute(f"ALTER TABLE profiles DROP COLUMN {column}")
