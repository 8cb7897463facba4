# SPDX-License-Identifier: Apache-2.0
"""Records usage that the ledger does not accept."""

import sqlalchemy as sa
from alembic import op
from vgpumgr_api.db.types import Instant

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

COUNTED = ("run_ns", "due_ns", "assured_ns", "throttled_ns", "reserved_ns")
KEY = ("hour", "host", "gpu", "tenant", "reason")


def upgrade() -> None:
    op.create_table(
        "usage_unbooked",
        sa.Column("hour", Instant(), nullable=False),
        sa.Column("host", sa.String(length=63), nullable=False),
        sa.Column("gpu", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=63), nullable=False),
        sa.Column("reason", sa.String(length=16), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in COUNTED),
        sa.CheckConstraint("reason IN ('unattributed', 'implausible')", name=op.f("ck_usage_unbooked_reason")),
        sa.PrimaryKeyConstraint(*KEY, name=op.f("pk_usage_unbooked")),
    )
    op.create_index("ix_usage_ledger_host_hour", "usage_ledger", ["host", "hour"], unique=False)


def downgrade() -> None:
    """The downgrade is refused while there is such usage, which the previous release would forget.

    The usage may be billable.
    """
    if op.get_bind().scalar(sa.text("SELECT 1 FROM usage_unbooked LIMIT 1")):
        raise RuntimeError(
            "there is usage that the ledger does not have; restore a backup from before this upgrade instead"
        )
    op.drop_index("ix_usage_ledger_host_hour", table_name="usage_ledger")
    op.drop_table("usage_unbooked")
