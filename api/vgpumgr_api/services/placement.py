# SPDX-License-Identifier: Apache-2.0
"""Which GPU takes a claim: the fullest one that fits, so that large slices find room later.

A GPU fits if its host is ready, not fenced, enrolled, online, confirmed for the database's epoch and without slices
that the database does not know, it was in its host's last report, one of its mdev types is large enough (the smallest
such is taken), and share and memory of that type are free.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.models import Gpu, GpuType, Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services.hosts import ONLINE


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a claim needs of one GPU. `host_id`: only there."""

    share_permille: int
    mem_bytes: int
    host_id: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """The GPU that was taken, locked until the end of the transaction."""

    gpu_id: UUID
    host_id: UUID
    mdev_type: str
    type_mem_bytes: int


# In the order in which they are asked: a GPU counts under the first that is true of it.
_DETAILS = {
    "host.other": "on another host than the one that is required",
    "host.fenced": "their host was declared dead; re-enrol it when it is back",
    "host.cordoned": "their host is cordoned",
    "host.offline": "their host is not enrolled, or has not reported for 90 s",
    "host.unconfirmed": "the database was restored and their host is not confirmed; compare, then confirm its epoch",
    "gpu.unknown_slices": "their host has slices that the database does not know; stop their VMs or remove them",
    "gpu.absent": "not in their host's last report",
    "type.none": "no mdev type has enough memory",
    "share.full": "too little share is free",
    "memory.full": "too little memory is free",
}


def take(session: Session, wanted: Wanted) -> Place:
    """Chooses a GPU, locks it and charges it; raises Refusal(CAPACITY_NONE) with a count of GPUs per reason.

    GPUs that other claims hold are passed over first, and waited for only if no other fits.
    """
    row = session.execute(_fitting(session, wanted).with_for_update(of=Gpu, skip_locked=True)).first()
    if row is None:
        row = session.execute(_fitting(session, wanted).with_for_update(of=Gpu)).first()
    if row is None:
        raise _none(session, wanted)
    gpu_id, host_id = row
    chosen = session.execute(
        select(GpuType.mdev_type, GpuType.mem_bytes)
        .where(GpuType.gpu_id == gpu_id, GpuType.mem_bytes >= wanted.mem_bytes)
        .order_by(GpuType.mem_bytes, GpuType.mdev_type)
        .limit(1)
    ).one_or_none()
    if chosen is None:  # a report took the type away while we waited for the GPU
        raise TryAgain
    change(
        session,
        update(Gpu)
        .where(Gpu.id == gpu_id)
        .values(share_used=Gpu.share_used + wanted.share_permille, mem_used=Gpu.mem_used + chosen.mem_bytes),
    )
    return Place(gpu_id=gpu_id, host_id=host_id, mdev_type=chosen.mdev_type, type_mem_bytes=chosen.mem_bytes)


def _fitting(session: Session, wanted: Wanted) -> Select[UUID, UUID]:
    obstacles = _obstacles(session, wanted)
    return (
        select(Gpu.id, Gpu.host_id)
        .join(Host, Host.id == Gpu.host_id)
        .join(HostReport, HostReport.host_id == Host.id)
        .where(*(~obstacle for obstacle in obstacles.values()))
        .order_by(Gpu.share_used.desc(), Gpu.mem_used.desc(), Gpu.id.desc())
        .limit(1)
    )


def _obstacles(session: Session, wanted: Wanted) -> dict[str, ColumnElement[bool]]:
    """What may be wrong with a GPU, by reason. None is NULL, so that each can be negated."""
    type_mem_bytes = (
        select(func.min(GpuType.mem_bytes))
        .where(GpuType.gpu_id == Gpu.id, GpuType.mem_bytes >= wanted.mem_bytes)
        .correlate(Gpu)
        .scalar_subquery()
    )
    obstacles: dict[str, ColumnElement[bool]] = {}
    if wanted.host_id is not None:
        obstacles["host.other"] = Gpu.host_id != wanted.host_id
    return obstacles | {
        "host.fenced": Host.fenced_at.is_not(None),
        "host.cordoned": Host.state != "ready",
        "host.offline": or_(
            HostReport.reported_at.is_(None),
            HostReport.reported_at < now(session) - ONLINE,
            Host.enrolled_at.is_(None),
            Host.enroll_hash.is_not(None),
        ),
        "host.unconfirmed": ~Host.epoch_confirmed,
        # Reports do not say on which GPU a slice is, so that each of the host may have less free than is counted.
        "gpu.unknown_slices": HostReport.unknown_slices > 0,
        "gpu.absent": ~Gpu.present,
        "type.none": type_mem_bytes.is_(None),
        "share.full": Gpu.share_used > 1000 - wanted.share_permille,
        "memory.full": and_(
            type_mem_bytes.is_not(None), Gpu.mem_used + func.coalesce(type_mem_bytes, 0) > Gpu.mem_bytes
        ),
    }


def _none(session: Session, wanted: Wanted) -> Refusal:
    obstacles = _obstacles(session, wanted)
    why = case(*((condition, reason) for reason, condition in obstacles.items()), else_="")
    counts: dict[str, int] = dict(
        session.execute(
            select(why.label("why"), func.count())
            .select_from(Gpu)
            .join(Host, Host.id == Gpu.host_id)
            .join(HostReport, HostReport.host_id == Host.id)
            .group_by("why")
        ).all()
    )
    reasons = tuple(
        Reason(code=reason, detail=detail, count=counts[reason])
        for reason, detail in _DETAILS.items()
        if reason in counts
    )
    todo = "free some, add a host or ask for less" if reasons else "no host has reported one yet, so enrol a host"
    mem_mib = f"{wanted.mem_bytes / (1 << 20):.1f}".removesuffix(".0")
    return Refusal(
        Code.CAPACITY_NONE,
        f"no GPU has {wanted.share_permille} permille and {mem_mib} MiB free; {todo}",
        reasons=reasons,
        limits={"share_permille": wanted.share_permille, "mem_bytes": wanted.mem_bytes},
    )
