# SPDX-License-Identifier: Apache-2.0
"""Claims for processes of a host, and what enforces their shares. Existing claims are for VMs."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

WORKLOAD = "VARCHAR(16) DEFAULT 'vm' NOT NULL CONSTRAINT ck_slices_workload CHECK (workload IN ('vm', 'process'))"


def upgrade() -> None:
    op.execute(f"ALTER TABLE slices ADD COLUMN workload {WORKLOAD}")
    op.execute("ALTER TABLE slice_observations ADD COLUMN enforced_by VARCHAR(32) DEFAULT '' NOT NULL")


def downgrade() -> None:
    """The downgrade is refused while there are claims for processes.

    The previous release would expect devices for these claims.
    """
    if op.get_bind().scalar(sa.text("SELECT 1 FROM slices WHERE workload <> 'vm' LIMIT 1")):
        raise RuntimeError(
            "there are claims for processes; delete them, and wait until their hosts have confirmed that"
        )
    op.execute("ALTER TABLE slice_observations DROP COLUMN enforced_by")
    op.execute("ALTER TABLE slices DROP COLUMN workload")
