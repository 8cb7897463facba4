# SPDX-License-Identifier: Apache-2.0
"""The tables of the usage ledger. They have names and ids, not foreign keys: the ledger outlives tenants and hosts.

Triggers reject changes of the past: changes of a closed hour, of a grant's beginning, and of a meter's count to a lower
value. See migration 0007. An hour is represented by the time at which it begins.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from vgpumgr_api.db.models import Base

COUNT_MAX = 9 * 10**18

_OPEN = text("(ended_at IS NULL)")


class Grant(Base):
    """The life of a claim on one GPU. `deleted_at`: when its owner deleted it; `ended_at`: when its capacity was freed.

    A claim that moves has several grants, one after the other.
    """

    __tablename__ = "grants"
    __table_args__ = (
        CheckConstraint("share_permille BETWEEN 1 AND 1000", name="share"),
        CheckConstraint("mem_bytes > 0", name="mem"),
        CheckConstraint("deleted_at >= started_at AND ended_at >= deleted_at", name="order"),
        CheckConstraint("ended_at IS NULL OR deleted_at IS NOT NULL", name="ended"),
        Index("ix_grants_open", "slice_id", unique=True, postgresql_where=_OPEN, sqlite_where=_OPEN),
        Index("ix_grants_first", "host", "gpu", "tenant", "tenant_id", "started_at"),
        Index("ix_grants_last", "host", "gpu", "tenant_id", _OPEN, "ended_at"),
        Index("ix_grants_tenant_id_ended_at", "tenant_id", "ended_at"),
        Index("ix_grants_ended_at", "ended_at"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    slice_id: Mapped[UUID]
    account_id: Mapped[UUID]
    account: Mapped[str] = mapped_column(String(63))
    tenant_id: Mapped[UUID]
    tenant: Mapped[str] = mapped_column(String(63))
    host: Mapped[str] = mapped_column(String(63))
    gpu: Mapped[str] = mapped_column(String(16))
    share_permille: Mapped[int]
    mem_bytes: Mapped[int]
    started_at: Mapped[datetime]
    deleted_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]


class Meter(Base):
    """A meter of a host, locked while its counts are booked. `revision`: the meter's last revision that was booked.

    `complete_hour`: the earliest hour in its last complete list of readings, by the meter's clock but never in the
    future. Later readings are of about this hour or later hours. `left_out_at`: when it was last reported that a
    reading of this meter is missing from the ledger.
    """

    __tablename__ = "meters"
    __table_args__ = (CheckConstraint("revision >= 0", name="revision"), Index("ix_meters_host_id", "host_id"))

    id: Mapped[UUID] = mapped_column(primary_key=True)
    host_id: Mapped[UUID]
    revision: Mapped[int]
    told_at: Mapped[datetime]
    complete_hour: Mapped[int]
    left_out_at: Mapped[datetime | None]


class MeterCount(Base):
    """The part of a meter's count of one hour that is booked. The hour is by the meter's clock.

    If the meter reports a higher count, the difference is still to be booked.
    """

    __tablename__ = "meter_counts"

    meter_id: Mapped[UUID] = mapped_column(primary_key=True)
    hour: Mapped[int] = mapped_column(primary_key=True)
    gpu: Mapped[str] = mapped_column(String(16), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(63), primary_key=True)
    run_ns: Mapped[int]
    due_ns: Mapped[int]
    assured_ns: Mapped[int]
    throttled_ns: Mapped[int]
    reserved_ns: Mapped[int]


class LedgerEntry(Base):
    """A tenant's use of a GPU in `hour`. `booked`: the same hour, or the later hour of a correction."""

    __tablename__ = "usage_ledger"
    __table_args__ = (
        CheckConstraint("booked >= hour", name="booked"),
        # The upper bound is for SQLite, which continues in floating point when a sum overflows.
        *(
            CheckConstraint(f"{name} BETWEEN {least} AND {COUNT_MAX}", name=name)
            for name, least in (
                *(("run_ns", 0), ("due_ns", -COUNT_MAX), ("assured_ns", 0)),
                *(("throttled_ns", 0), ("reserved_ns", 0)),
            )
        ),
        Index("ix_usage_ledger_tenant_id_hour", "tenant_id", "hour"),
        Index("ix_usage_ledger_account_id_hour", "account_id", "hour"),
        Index("ix_usage_ledger_host_hour", "host", "hour"),
    )

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    booked: Mapped[datetime] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(String(63), primary_key=True)
    gpu: Mapped[str] = mapped_column(String(16), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(63))
    account_id: Mapped[UUID]
    account: Mapped[str] = mapped_column(String(63))
    run_ns: Mapped[int]
    due_ns: Mapped[int]
    assured_ns: Mapped[int]
    throttled_ns: Mapped[int]
    reserved_ns: Mapped[int]


class Unbooked(Base):
    """Readings of an hour that are missing from the ledger, in whole or in part. See usage.unbooked."""

    __tablename__ = "usage_unbooked"
    __table_args__ = (
        CheckConstraint("reason IN ('unattributed', 'implausible')", name="reason"),
        Index("ix_usage_unbooked_host", "host"),
    )

    hour: Mapped[datetime] = mapped_column(primary_key=True)
    host: Mapped[str] = mapped_column(String(63), primary_key=True)
    gpu: Mapped[str] = mapped_column(String(16), primary_key=True)
    tenant: Mapped[str] = mapped_column(String(63), primary_key=True)
    reason: Mapped[str] = mapped_column(String(16), primary_key=True)
    run_ns: Mapped[int]
    due_ns: Mapped[int]
    assured_ns: Mapped[int]
    throttled_ns: Mapped[int]
    reserved_ns: Mapped[int]


class Books(Base):
    """The one row that records up to when the ledger is closed and since when it is kept. Both times only grow.

    The row is created with the first entry; until then no hour is closed.
    """

    __tablename__ = "usage_books"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    closed_before: Mapped[datetime]
    kept_from: Mapped[datetime]
