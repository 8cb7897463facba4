# SPDX-License-Identifier: Apache-2.0
"""The identity of each GPU. Empty until its host reports it: older agents identify GPUs only by address."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

ADDED = {"uuid": "VARCHAR(80)", "serial": "VARCHAR(80)", "pci_ids": "VARCHAR(9)"}


def upgrade() -> None:
    for column, kind in ADDED.items():
        op.execute(f"ALTER TABLE gpus ADD COLUMN {column} {kind} DEFAULT '' NOT NULL")


def downgrade() -> None:
    for column in ADDED:
        op.execute(f"ALTER TABLE gpus DROP COLUMN {column}")
