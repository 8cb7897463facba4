# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with a GPU for a claim, as conditions for the database, and how many GPUs that is true of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import ColumnElement, ScalarSelect, and_, case, func, literal, or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import PERMILLE, Mode
from vgpumgr.wire.problem import Reason
from vgpumgr.wire.resources import Placement
from vgpumgr_api.db.database import now
from vgpumgr_api.db.labels import GpuLabel, HostLabel
from vgpumgr_api.db.models import Gpu, GpuType, Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.services.hosts import ONLINE
from vgpumgr_api.services.ties import Ties


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a claim needs of one GPU. `host_id`: only there."""

    share_permille: int
    mem_bytes: int
    mode: Mode = Mode.FAIR
    host_id: UUID | None = None
    placement: Placement = Placement.PACK
    selector: Mapping[str, str] = field(default_factory=dict)
    ties: Ties = field(default_factory=Ties)


# In the order in which they are asked: a GPU counts under the first that is true of it.
DETAILS = {
    "host.other": "on another host than the one that is required",
    "labels.other": "they or their host lack a label that is selected",
    "affinity.apart": "not where the tenant's slices of this affinity are",
    "anti_affinity.taken": "where the tenant has a slice of this anti-affinity",
    "host.fenced": "their host was declared dead; re-enrol it when it is back",
    "host.draining": "their host is being drained",
    "host.maintenance": "their host is in maintenance",
    "host.cordoned": "their host is cordoned",
    "host.offline": "their host is not enrolled, or has not reported for 90 s",
    "host.unconfirmed": "the database was restored and their host is not confirmed; compare, then confirm its epoch",
    "gpu.unknown_slices": "their host has slices that the database does not know; stop their VMs or remove them",
    "gpu.absent": "not in their host's last report",
    "type.none": "no mdev type has enough memory",
    "share.full": "too little share is free",
    "memory.full": "too little memory is free",
}

ROOM = ("type.none", "share.full", "memory.full")
"""What does not matter to whom a place is held."""

LOCKED = ("gpu.absent", *ROOM)
"""What a lock on the GPU keeps as it is."""


def counted(wanted: Wanted) -> ColumnElement[int]:
    """What it would count on the GPU that the statement is about; see `enforcement.counted_permille`."""
    if wanted.mode is Mode.STRICT:
        return literal(wanted.share_permille)
    return (wanted.share_permille * PERMILLE + Gpu.fair_ratio_permille - 1) // Gpu.fair_ratio_permille


def type_mem_bytes(wanted: Wanted) -> ScalarSelect[int]:
    """Memory of the smallest type that is large enough, NULL if none is."""
    return (
        select(func.min(GpuType.mem_bytes))
        .where(GpuType.gpu_id == Gpu.id, GpuType.mem_bytes >= wanted.mem_bytes)
        .correlate(Gpu)
        .scalar_subquery()
    )


def obstacles(session: Session, wanted: Wanted) -> dict[str, ColumnElement[bool]]:
    """What may be wrong with a GPU, by reason. None is NULL, so that each can be negated."""
    type_mem = type_mem_bytes(wanted)
    found: dict[str, ColumnElement[bool]] = {}
    if wanted.host_id is not None:
        found["host.other"] = Gpu.host_id != wanted.host_id
    if wanted.selector:
        found["labels.other"] = or_(*(_label(key) != value for key, value in sorted(wanted.selector.items())))
    return (
        found
        | wanted.ties.obstacles()
        | {
            "host.fenced": Host.fenced_at.is_not(None),
            "host.draining": func.coalesce(Host.cordoned_for, "") == "draining",
            "host.maintenance": func.coalesce(Host.cordoned_for, "") == "maintenance",
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
            "type.none": type_mem.is_(None),
            "share.full": or_(Gpu.share_used > PERMILLE - _least(wanted), Gpu.share_used + counted(wanted) > PERMILLE),
            "memory.full": and_(type_mem.is_not(None), Gpu.mem_used + func.coalesce(type_mem, 0) > Gpu.mem_bytes),
        }
    )


def census(session: Session, wanted: Wanted) -> tuple[int, list[Reason]]:
    """Returns on how many GPUs `wanted` fits, and why it does not on the others. Looks at each: not for every claim."""
    why = case(*((condition, reason) for reason, condition in obstacles(session, wanted).items()), else_="")
    counts: dict[str, int] = dict(
        session.execute(
            select(why.label("why"), func.count())
            .select_from(Gpu)
            .join(Host, Host.id == Gpu.host_id)
            .join(HostReport, HostReport.host_id == Host.id)
            .group_by("why")
        ).all()
    )
    reasons = [
        Reason(code=reason, detail=detail, count=counts[reason])
        for reason, detail in DETAILS.items()
        if reason in counts
    ]
    return counts.get("", 0), reasons


def _least(wanted: Wanted) -> ColumnElement[int]:
    """Less than this it counts on no GPU. Known before the walk, so that GPUs that are full are not looked at."""
    if wanted.mode is Mode.STRICT:
        return literal(wanted.share_permille)
    largest = select(func.max(Gpu.fair_ratio_permille)).where(Gpu.fair_ratio_permille > PERMILLE).correlate(None)
    return wanted.share_permille * PERMILLE // func.coalesce(largest.scalar_subquery(), PERMILLE)


def _label(key: str) -> ColumnElement[str]:
    own = select(GpuLabel.value).where(GpuLabel.gpu_id == Gpu.id, GpuLabel.key == key).correlate(Gpu)
    host = select(HostLabel.value).where(HostLabel.host_id == Gpu.host_id, HostLabel.key == key).correlate(Gpu)
    return func.coalesce(own.scalar_subquery(), host.scalar_subquery(), "")
