# SPDX-License-Identifier: Apache-2.0
"""The tables of capacity reserved for future claims. Locked after slices, and never before a quota or a GPU."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, String
from sqlalchemy.orm import Mapped, mapped_column

from vgpumgr_api.db.models import Base


class Reservation(Base):
    """Places for slices of one profile until `expires_at`. Later no claim gets a place, even if the row still exists.

    `places`: the initial number; the remaining places are rows of `Hold`. `affinity` and `anti_affinity` apply to the
    places, and later to the slices that take them.
    """

    __tablename__ = "reservations"
    __table_args__ = (
        CheckConstraint("places BETWEEN 1 AND 256", name="places"),
        *(
            CheckConstraint(
                f"({tie} IS NULL) = ({tie}_level IS NULL) AND ({tie}_level IS NULL OR {tie}_level IN ('host', 'gpu'))",
                name=tie,
            )
            for tie in ("affinity", "anti_affinity")
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    profile_id: Mapped[UUID] = mapped_column(ForeignKey("profiles.id"), index=True)
    places: Mapped[int]
    expires_at: Mapped[datetime] = mapped_column(index=True)
    generation: Mapped[int]
    created_at: Mapped[datetime]
    affinity: Mapped[str | None] = mapped_column(String(63))
    affinity_level: Mapped[str | None] = mapped_column(String(8))
    anti_affinity: Mapped[str | None] = mapped_column(String(63))
    anti_affinity_level: Mapped[str | None] = mapped_column(String(8))


class Hold(Base):
    """A reserved place. It counts in quotas and on its GPU like the slice that will take it."""

    __tablename__ = "holds"
    __table_args__ = (
        CheckConstraint("share_permille BETWEEN 1 AND 1000", name="share"),
        CheckConstraint("mem_bytes > 0 AND type_mem_bytes >= mem_bytes", name="mem"),
        CheckConstraint("fair_ratio_permille BETWEEN 1000 AND 10000", name="fair_ratio"),
        CheckConstraint("reserved_permille BETWEEN 0 AND 1000", name="reserved"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    reservation_id: Mapped[UUID] = mapped_column(ForeignKey("reservations.id"), index=True)
    gpu_id: Mapped[UUID] = mapped_column(ForeignKey("gpus.id"), index=True)
    share_permille: Mapped[int]
    mem_bytes: Mapped[int]
    mdev_type: Mapped[str] = mapped_column(String(80))
    type_mem_bytes: Mapped[int]
    fair_ratio_permille: Mapped[int]
    reserved_permille: Mapped[int] = mapped_column(server_default="0")
