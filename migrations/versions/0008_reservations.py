# SPDX-License-Identifier: Apache-2.0
"""Capacity that is reserved for future claims."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("profile_id", sa.Uuid(), nullable=False),
        sa.Column("places", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("places BETWEEN 1 AND 256", name=op.f("ck_reservations_places")),
        sa.ForeignKeyConstraint(["profile_id"], ["profiles.id"], name=op.f("fk_reservations_profile_id")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_reservations_tenant_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
    )
    for column in ("expires_at", "profile_id", "tenant_id"):
        op.create_index(op.f(f"ix_reservations_{column}"), "reservations", [column], unique=False)
    op.create_table(
        "holds",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("reservation_id", sa.Uuid(), nullable=False),
        sa.Column("gpu_id", sa.Uuid(), nullable=False),
        sa.Column("share_permille", sa.BigInteger(), nullable=False),
        sa.Column("mem_bytes", sa.BigInteger(), nullable=False),
        sa.Column("mdev_type", sa.String(length=80), nullable=False),
        sa.Column("type_mem_bytes", sa.BigInteger(), nullable=False),
        sa.Column("fair_ratio_permille", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("fair_ratio_permille BETWEEN 1000 AND 10000", name=op.f("ck_holds_fair_ratio")),
        sa.CheckConstraint("mem_bytes > 0 AND type_mem_bytes >= mem_bytes", name=op.f("ck_holds_mem")),
        sa.CheckConstraint("share_permille BETWEEN 1 AND 1000", name=op.f("ck_holds_share")),
        sa.ForeignKeyConstraint(["gpu_id"], ["gpus.id"], name=op.f("fk_holds_gpu_id")),
        sa.ForeignKeyConstraint(["reservation_id"], ["reservations.id"], name=op.f("fk_holds_reservation_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_holds")),
    )
    for column in ("gpu_id", "reservation_id"):
        op.create_index(op.f(f"ix_holds_{column}"), "holds", [column], unique=False)


def downgrade() -> None:
    """The downgrade is refused while places are held: the previous release could never release their capacity."""
    if op.get_bind().scalar(sa.text("SELECT 1 FROM holds LIMIT 1")):
        raise RuntimeError("there are reservations with places left; delete those first")
    op.drop_table("holds")
    op.drop_table("reservations")
