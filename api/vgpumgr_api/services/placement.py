# SPDX-License-Identifier: Apache-2.0
"""Which GPU takes a claim.

`pack`: of the `LOOKED_AT` fullest that fit the one whose larger remainder is smallest, the remainders of share and of
memory as parts of the whole GPU: what is left of one is worth nothing without the other. `spread`: the emptiest that
fits.

A GPU fits if it has the labels that are selected and keeps affinity, its host is ready, not fenced, enrolled, online,
confirmed for the database's epoch and without slices that the database does not know, it was in its host's last report,
one of its mdev types is large enough (the smallest such is taken), and share and memory of that type are free.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Float, Select, UnaryExpression, case, cast, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import PERMILLE, Mode
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Placement
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.models import Gpu, GpuType, Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services.enforcement import counted_permille
from vgpumgr_api.services.obstacles import LOCKED, Wanted, census, counted, obstacles, type_mem_bytes

LOOKED_AT = 16


@dataclass(frozen=True, kw_only=True)
class Place:
    """The GPU that was taken, locked until the end of the transaction."""

    gpu_id: UUID
    host_id: UUID
    mdev_type: str
    type_mem_bytes: int
    fair_ratio_permille: int


def take(session: Session, wanted: Wanted, *, first: bool = True) -> Place:
    """Chooses a GPU, locks it and charges it; raises Refusal(CAPACITY_NONE) with a count of GPUs per reason.

    GPUs that other claims hold are passed over, and waited for only if no other fits. Who has one already, so that this
    is not the `first`, does not wait for another: two who did could wait for each other. It begins again instead.
    """
    chosen = next(_chosen(session, wanted, first=first), None)
    if chosen is None:
        raise _none(session, wanted) if first or session.execute(walk(session, wanted)).first() is None else TryAgain
    gpu_id, host_id, ratio = chosen
    ratio = PERMILLE if wanted.mode is Mode.STRICT else ratio
    kind = session.execute(
        select(GpuType.mdev_type, GpuType.mem_bytes)
        .where(GpuType.gpu_id == gpu_id, GpuType.mem_bytes >= wanted.mem_bytes)
        .order_by(GpuType.mem_bytes, GpuType.mdev_type)
        .limit(1)
    ).one_or_none()
    if kind is None:  # a report took the type away while we waited for the GPU
        raise TryAgain
    change(
        session,
        update(Gpu)
        .where(Gpu.id == gpu_id)
        .values(
            share_used=Gpu.share_used + counted_permille(wanted.share_permille, ratio),
            mem_used=Gpu.mem_used + kind.mem_bytes,
        ),
    )
    return Place(
        gpu_id=gpu_id,
        host_id=host_id,
        mdev_type=kind.mdev_type,
        type_mem_bytes=kind.mem_bytes,
        fair_ratio_permille=ratio,
    )


def walk(session: Session, wanted: Wanted) -> Select[UUID, UUID, int]:
    """GPUs that fit, from the fullest to the emptiest or back: along an index, never all sorted."""
    fitting = [~obstacle for obstacle in obstacles(session, wanted).values()]
    statement = select(Gpu.id, Gpu.host_id, Gpu.fair_ratio_permille)
    return (
        statement.join(Host, Host.id == Gpu.host_id)
        .join(HostReport, HostReport.host_id == Host.id)
        .where(*fitting)
        .order_by(*_order(wanted))
        .limit(1)
    )


def best(session: Session, wanted: Wanted) -> Select[UUID, UUID, int]:
    """Of the first GPUs of the walk the one that is left with least. What a lock keeps is asked again under it."""
    if wanted.placement is Placement.SPREAD:
        return walk(session, wanted)
    fullest = walk(session, wanted).with_only_columns(Gpu.id).limit(LOOKED_AT).correlate(None).subquery()
    known = obstacles(session, wanted)
    share_left = (PERMILLE - Gpu.share_used - counted(wanted)) / cast(PERMILLE, Float)
    mem_left = (Gpu.mem_bytes - Gpu.mem_used - type_mem_bytes(wanted)) / cast(Gpu.mem_bytes, Float)
    return (
        select(Gpu.id, Gpu.host_id, Gpu.fair_ratio_permille)
        .where(Gpu.id.in_(select(fullest.c.id)), *(~known[reason] for reason in LOCKED))
        .order_by(case((share_left > mem_left, share_left), else_=mem_left), *_order(wanted))
        .limit(1)
    )


def _chosen(session: Session, wanted: Wanted, *, first: bool) -> Iterator[Any]:
    attempts = [best(session, wanted).with_for_update(of=Gpu, skip_locked=True)]
    if wanted.placement is Placement.PACK:
        attempts.append(walk(session, wanted).with_for_update(of=Gpu, skip_locked=True))
    if first:
        attempts.append(walk(session, wanted).with_for_update(of=Gpu))
    for attempt in attempts:
        if (row := session.execute(attempt).first()) is not None:
            yield row


def _order(wanted: Wanted) -> list[UnaryExpression[Any]]:
    columns: list[Any] = [Gpu.share_used, Gpu.mem_used, Gpu.id]
    if wanted.placement is Placement.SPREAD:
        return [column.asc() for column in columns]
    return [column.desc() for column in columns]


def _none(session: Session, wanted: Wanted) -> Refusal:
    _, reasons = census(session, wanted)
    todo = "free some, add a host or ask for less" if reasons else "no host has reported one yet, so enrol a host"
    mem_mib = f"{wanted.mem_bytes / (1 << 20):.1f}".removesuffix(".0")
    return Refusal(
        Code.CAPACITY_NONE,
        f"no GPU has {wanted.share_permille} permille and {mem_mib} MiB free; {todo}",
        reasons=tuple(reasons),
        limits={"share_permille": wanted.share_permille, "mem_bytes": wanted.mem_bytes},
    )
