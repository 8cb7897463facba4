# SPDX-License-Identifier: Apache-2.0
"""The tables of what was decided: owners, quotas, profiles, hosts, GPUs and claims.

What hosts report is stored separately, in `observations`, with one exception: a GPU's inventory is stored beside the
use by claims, so that a constraint of the database can prevent overcommitment.

Rows are locked in this order: host's report, account's quota, project's quota, tenant, GPU, slice, its progress,
reserved place, host, operation. Rows of one kind are locked by id.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, MetaData, String, UniqueConstraint, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from vgpumgr.wire.common import WINDOW_BYTES
from vgpumgr_api.db.types import Instant


class Base(DeclarativeBase):
    """The base of all models. It names the constraints, so that migrations can refer to them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {datetime: Instant(), int: BigInteger()}  # noqa: RUF012  # read by SQLAlchemy


class Installation(Base):
    """The one row that identifies this database. A restore changes `epoch`, so that hosts ignore old tombstones."""

    __tablename__ = "installation"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    epoch: Mapped[UUID]
    created_at: Mapped[datetime]


_EXTERNAL_ID_GIVEN = text("external_id IS NOT NULL")


class Tenant(Base):
    """An account, or, with `account_id`, a project of that account. `external_id`: its id in another system.

    The unique index on `external_id` is partial, so PostgreSQL does not treat the column as a key. Therefore a change
    of it does not block claims of the tenant, whose slices refer to this row, and claims do not block the change.
    """

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("account_id <> id", name="not_its_own_account"),
        CheckConstraint("length(external_id) BETWEEN 1 AND 255", name="external_id"),
        Index(
            "ix_tenants_external_id",
            "external_id",
            unique=True,
            postgresql_where=_EXTERNAL_ID_GIVEN,
            sqlite_where=_EXTERNAL_ID_GIVEN,
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    account_id: Mapped[UUID | None] = mapped_column(ForeignKey("tenants.id"), index=True)
    generation: Mapped[int]
    created_at: Mapped[datetime]
    external_id: Mapped[str | None] = mapped_column(String(255))


class Quota(Base):
    """A tenant's limits and its use; an account's use includes that of its projects.

    Use may exceed a limit that was lowered. So the UPDATE of a claim compares use with limit, not a constraint. `mode`,
    `band`: the only mode and band that the tenant may claim; None: any. `timeslice_min_us` and `timeslice_max_us` also
    bound the timeslices of its projects. `scaled_used`: the `share_used` from which the hosts' shares were last
    computed, if that exceeded the limit; see `scaling`.
    """

    __tablename__ = "quotas"
    __table_args__ = (
        CheckConstraint("share_limit >= 0 AND mem_limit >= 0 AND slices_limit >= 0", name="limits"),
        CheckConstraint("share_used >= 0 AND mem_used >= 0 AND slices_used >= 0", name="used"),
        CheckConstraint("timeslice_us > 0", name="timeslice"),
        CheckConstraint("timeslice_us BETWEEN timeslice_min_us AND timeslice_max_us", name="timeslice_range"),
        CheckConstraint("mode IS NULL OR mode IN ('strict', 'fair')", name="mode"),
        CheckConstraint("band IS NULL OR band IN ('fair', 'latency')", name="band"),
    )

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id", ondelete="CASCADE"), primary_key=True)
    share_limit: Mapped[int]
    mem_limit: Mapped[int]
    slices_limit: Mapped[int]
    share_used: Mapped[int]
    mem_used: Mapped[int]
    slices_used: Mapped[int]
    timeslice_us: Mapped[int]
    generation: Mapped[int]
    timeslice_min_us: Mapped[int] = mapped_column(server_default="100")
    timeslice_max_us: Mapped[int] = mapped_column(server_default="1000000")
    mode: Mapped[str | None] = mapped_column(String(16))
    profiles_limited: Mapped[bool] = mapped_column(server_default=text("false"))
    scaled_used: Mapped[int] = mapped_column(server_default="0")
    band: Mapped[str | None] = mapped_column(String(16))


class QuotaProfile(Base):
    """A profile that a tenant may claim. If its quota is `profiles_limited`, it may claim only such profiles."""

    __tablename__ = "quota_profiles"

    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("quotas.tenant_id", ondelete="CASCADE"), primary_key=True)
    profile_id: Mapped[UUID] = mapped_column(
        ForeignKey("profiles.id", ondelete="CASCADE"), primary_key=True, index=True
    )


class Profile(Base):
    """A class of slice. Rows never change. `policy`: that of the GPUs that accept it; None means best_effort."""

    __tablename__ = "profiles"
    __table_args__ = (
        CheckConstraint("band IN ('fair', 'latency')", name="band"),
        CheckConstraint("(band = 'latency') = (reserve_period_us IS NOT NULL)", name="reserve_period"),
        CheckConstraint("policy IS NULL OR policy IN ('best_effort', 'equal_share', 'fixed_share')", name="policy"),
        CheckConstraint("share_permille BETWEEN 1 AND 1000", name="share"),
        CheckConstraint("mem_bytes > 0", name="mem"),
        CheckConstraint("mode IN ('strict', 'fair')", name="mode"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    share_permille: Mapped[int]
    mem_bytes: Mapped[int]
    mode: Mapped[str] = mapped_column(String(16))
    generation: Mapped[int]
    created_at: Mapped[datetime]
    band: Mapped[str] = mapped_column(String(16), server_default="fair")
    reserve_period_us: Mapped[int | None]
    policy: Mapped[str | None] = mapped_column(String(16))
    window_bytes: Mapped[int] = mapped_column(server_default=str(WINDOW_BYTES))
    executor_memory_max_bytes: Mapped[int] = mapped_column(server_default="0")
    executor_tasks_max: Mapped[int] = mapped_column(server_default="0")
    executor_cpu_max_permille: Mapped[int] = mapped_column(server_default="0")


class Host(Base):
    """A machine. `generation` counts operators' changes, `desired_generation` changes of its agent's desired state.

    `cordoned_for`: the reason why it takes no claims, 'draining' or 'maintenance', if there is one. `enroll_hash`: the
    hash of a one-time token that was not used yet. `fenced_at`: when it was declared dead, if it has not enrolled
    since; it then has no credential, only lost slices, and no present GPU.
    """

    __tablename__ = "hosts"
    __table_args__ = (
        CheckConstraint("state IN ('ready', 'cordoned')", name="state"),
        CheckConstraint(
            "cordoned_for IS NULL OR (cordoned_for IN ('draining', 'maintenance') AND state = 'cordoned')",
            name="cordoned_for",
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(63), unique=True)
    state: Mapped[str] = mapped_column(String(16))
    cordoned_for: Mapped[str | None] = mapped_column(String(16))
    enroll_hash: Mapped[str | None] = mapped_column(String(64), unique=True)
    enroll_expires_at: Mapped[datetime | None]
    enrolled_at: Mapped[datetime | None]
    epoch_confirmed: Mapped[bool]
    fenced_at: Mapped[datetime | None]
    desired_generation: Mapped[int]
    generation: Mapped[int]
    created_at: Mapped[datetime]


class Gpu(Base):
    """An accelerator: its reported inventory, and in `*_used` its use by claims. Only claims and their end change use.

    `mem_bytes` is never less than the use by claims, whatever a host reports. `share_used` sums the assured shares of
    slices: a strict slice's full share, a fair slice's share divided by `fair_ratio_permille`. `generation` counts
    operators' changes. `reserved_permille`: the sum of the latency slices' reservations of the host kernel's time.
    `reserve_limit_permille` is never less than this sum, whatever a host reports. `reported_*`: the last reported
    values of the memory and of this limit, None if no value was reported since the column was added. `schedulable` is a
    hint that some claim could have been placed there lately.

    `uuid`, `serial` and `pci_ids` identify the card; they are empty if its host has not reported them. `address`: the
    PCI address where the card was last, or an address in PCI domain ffffffff if another card has taken that place.
    """

    __tablename__ = "gpus"
    __table_args__ = (
        UniqueConstraint("host_id", "address"),
        CheckConstraint("share_used BETWEEN 0 AND 1000", name="share"),
        CheckConstraint("mem_used >= 0 AND mem_used <= mem_bytes", name="mem"),
        CheckConstraint("fair_ratio_permille BETWEEN 1000 AND 10000", name="fair_ratio"),
        CheckConstraint("policy IN ('best_effort', 'equal_share', 'fixed_share')", name="policy"),
        CheckConstraint("places >= 0", name="places"),
        CheckConstraint("reserved_permille >= 0 AND reserved_permille <= reserve_limit_permille", name="reserved"),
        # For placement, which walks from the fullest to the emptiest GPU; at equal share, the GPU with less free memory
        # is first.
        Index("ix_gpus_fullest", "schedulable", "policy", "share_used", text("(mem_used - mem_bytes)"), "id"),
        # For the largest ratio, which determines the used share at which the walk begins.
        Index(
            "ix_gpus_over_committed",
            "fair_ratio_permille",
            postgresql_where=text("fair_ratio_permille > 1000"),
            sqlite_where=text("fair_ratio_permille > 1000"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    host_id: Mapped[UUID] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"))
    address: Mapped[str] = mapped_column(String(16))
    engine: Mapped[str] = mapped_column(String(64))
    backend: Mapped[str] = mapped_column(String(64))
    mem_bytes: Mapped[int]
    timeslice_min_us: Mapped[int]
    max_chunk_us: Mapped[int]
    present: Mapped[bool]
    share_used: Mapped[int]
    mem_used: Mapped[int]
    generation: Mapped[int] = mapped_column(server_default="1")
    fair_ratio_permille: Mapped[int] = mapped_column(server_default="1000")
    policy: Mapped[str] = mapped_column(String(16), server_default="best_effort")
    places: Mapped[int] = mapped_column(server_default="0")
    reserve_limit_permille: Mapped[int] = mapped_column(server_default="0")
    reserved_permille: Mapped[int] = mapped_column(server_default="0")
    schedulable: Mapped[bool] = mapped_column(server_default=text("true"))
    reported_mem_bytes: Mapped[int | None]
    uuid: Mapped[str] = mapped_column(String(80), server_default=text("''"))
    serial: Mapped[str] = mapped_column(String(80), server_default=text("''"))
    switch_cost_us: Mapped[int] = mapped_column(server_default="0")
    pci_ids: Mapped[str] = mapped_column(String(9), server_default=text("''"))
    reported_reserve_limit_permille: Mapped[int | None]


class GpuType(Base):
    """An mdev type that a GPU offers."""

    __tablename__ = "gpu_types"
    __table_args__ = (CheckConstraint("mem_bytes > 0", name="mem"),)

    gpu_id: Mapped[UUID] = mapped_column(ForeignKey("gpus.id", ondelete="CASCADE"), primary_key=True)
    mdev_type: Mapped[str] = mapped_column(String(80), primary_key=True)
    mem_bytes: Mapped[int]


class Slice(Base):
    """A claim. `type_mem_bytes` counts on the GPU, `mem_bytes` in quotas.

    A releasing or lost slice is a tombstone; `tombstone_generation` is the host's desired generation that first
    contained the tombstone. A lost slice counts on its GPU and no longer in quotas. `fair_ratio_permille`: the GPU's
    ratio at the time of the claim, which determines how much the slice counts there; a strict slice always counts its
    full share. `reserved_permille`: how much it counts of the GPU's reservations. A slice with `workload` process has
    no mdev type, and counts the memory that it claims.

    `moved_from`: the slice, on the host `moved_from_host_id`, that this one replaces. While the new slice is `moving`,
    no VM may start with it, because the old host has not confirmed that no VM starts with the old slice. A slice that
    was moved away is lost.
    """

    __tablename__ = "slices"
    __table_args__ = (
        CheckConstraint("share_permille BETWEEN 1 AND 1000", name="share"),
        CheckConstraint("mem_bytes > 0 AND type_mem_bytes >= mem_bytes", name="mem"),
        CheckConstraint("mode IN ('strict', 'fair')", name="mode"),
        CheckConstraint("band IN ('fair', 'latency')", name="band"),
        CheckConstraint("(band = 'latency') = (reserve_period_us IS NOT NULL)", name="reserve_period"),
        CheckConstraint("reserved_permille BETWEEN 0 AND 1000", name="reserved"),
        CheckConstraint("workload IN ('vm', 'process')", name="workload"),
        CheckConstraint("state IN ('claimed', 'releasing', 'lost')", name="state"),
        CheckConstraint("(state = 'claimed') = (tombstone_generation IS NULL)", name="tombstone"),
        CheckConstraint(
            "fair_ratio_permille = 1000 OR (mode = 'fair' AND fair_ratio_permille BETWEEN 1000 AND 10000)",
            name="fair_ratio",
        ),
        CheckConstraint(
            "(affinity IS NULL) = (affinity_level IS NULL)"
            " AND (affinity_level IS NULL OR affinity_level IN ('host', 'gpu'))",
            name="affinity",
        ),
        CheckConstraint(
            "(anti_affinity IS NULL) = (anti_affinity_level IS NULL)"
            " AND (anti_affinity_level IS NULL OR anti_affinity_level IN ('host', 'gpu'))",
            name="anti_affinity",
        ),
        Index("ix_slices_moved_from", "moved_from", unique=True),
        *(
            Index(
                f"ix_slices_{tie}",
                "tenant_id",
                tie,
                postgresql_where=text(f"{tie} IS NOT NULL"),
                sqlite_where=text(f"{tie} IS NOT NULL"),
            )
            for tie in ("affinity", "anti_affinity")
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    profile_id: Mapped[UUID] = mapped_column(ForeignKey("profiles.id"), index=True)
    gpu_id: Mapped[UUID] = mapped_column(ForeignKey("gpus.id"), index=True)
    vm_uuid: Mapped[UUID | None] = mapped_column(index=True)
    share_permille: Mapped[int]
    mem_bytes: Mapped[int]
    mode: Mapped[str] = mapped_column(String(16))
    mdev_type: Mapped[str] = mapped_column(String(80))
    type_mem_bytes: Mapped[int]
    state: Mapped[str] = mapped_column(String(16))
    tombstone_generation: Mapped[int | None]
    generation: Mapped[int]
    created_at: Mapped[datetime]
    fair_ratio_permille: Mapped[int] = mapped_column(server_default="1000")
    affinity: Mapped[str | None] = mapped_column(String(63))
    affinity_level: Mapped[str | None] = mapped_column(String(8))
    anti_affinity: Mapped[str | None] = mapped_column(String(63))
    anti_affinity_level: Mapped[str | None] = mapped_column(String(8))
    band: Mapped[str] = mapped_column(String(16), server_default="fair")
    reserve_period_us: Mapped[int | None]
    reserved_permille: Mapped[int] = mapped_column(server_default="0")
    workload: Mapped[str] = mapped_column(String(16), server_default="vm")
    moved_from: Mapped[UUID | None]
    moved_from_host_id: Mapped[UUID | None] = mapped_column(index=True)
    moving: Mapped[bool] = mapped_column(server_default=text("false"))
