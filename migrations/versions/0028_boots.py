# SPDX-License-Identifier: Apache-2.0
"""For hosts that two machines claim to be: the boot whose reports are not accepted."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

ADDED: dict[str, Any] = {
    "other_boot_id": sa.Uuid(),
    "other_agent_epoch": sa.BigInteger(),
    "other_seq": sa.BigInteger(),
    "other_heard_at": sa.DateTime(timezone=True),
    "second_boot_at": sa.DateTime(timezone=True),
}


def upgrade() -> None:
    for column, kind in ADDED.items():
        op.add_column("host_reports", sa.Column(column, kind, nullable=True))


def downgrade() -> None:
    for column in ADDED:
        op.execute(f"ALTER TABLE host_reports DROP COLUMN {column}")
