# SPDX-License-Identifier: Apache-2.0
"""Affinity and anti-affinity of reservations."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TIES = ("affinity", "anti_affinity")


def upgrade() -> None:
    for tie in TIES:
        op.execute(f"ALTER TABLE reservations ADD COLUMN {tie} VARCHAR(63)")
        paired = f"({tie} IS NULL) = ({tie}_level IS NULL) AND ({tie}_level IS NULL OR {tie}_level IN ('host', 'gpu'))"
        kind = f"VARCHAR(8) CONSTRAINT ck_reservations_{tie} CHECK ({paired})"
        op.execute(f"ALTER TABLE reservations ADD COLUMN {tie}_level {kind}")


def downgrade() -> None:
    """The downgrade is refused while places are held with ties: the previous release would forget the ties."""
    tied = "SELECT 1 FROM holds JOIN reservations ON reservations.id = holds.reservation_id WHERE {} LIMIT 1"
    if op.get_bind().scalar(sa.text(tied.format(" OR ".join(f"{tie} IS NOT NULL" for tie in TIES)))):
        raise RuntimeError("there are reservations with affinity and places left; delete those first")
    for tie in reversed(TIES):
        for column in (f"{tie}_level", tie):
            op.execute(f"ALTER TABLE reservations DROP COLUMN {column}")
