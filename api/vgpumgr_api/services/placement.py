# SPDX-License-Identifier: Apache-2.0
"""Which GPU takes a claim.

`pack`: of those that fit the one whose larger remainder is smallest, the remainders of share and of memory as parts of
the whole GPU: what is left of one is worth nothing without the other. The `LOOKED_AT` fullest of share are compared,
and for `PLAIN` claims at each of as many lower shares the fullest of memory, for which a few are looked at and no more.
`spread`: the emptiest that fits.

A GPU fits if it is shared by the policy that is required, has the labels that are selected and keeps affinity, its host
is ready, not fenced, enrolled, online, confirmed for the database's epoch and without slices that the database does not
know, it was in its host's last report, one of its mdev types is large enough (the smallest such is taken), and share,
time to reserve and memory of that type are free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Float,
    FromClause,
    Row,
    Select,
    String,
    Subquery,
    UnaryExpression,
    Update,
    and_,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.orm import Session, aliased

from vgpumgr.wire.common import PERMILLE, Policy
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Placement
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.models import Gpu, GpuType, Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import spelled_out
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services.enforcement import counted_permille, reserved_permille
from vgpumgr_api.services.obstacles import (
    MEM,
    NAMED,
    OF_HOST,
    ROOM,
    SHAPES,
    SHARE,
    Shape,
    Wanted,
    census,
    counted,
    has_labels,
    known_anywhere,
    obstacles,
    parameters,
    reserve_free,
    reserved,
    settled,
    share_free,
    type_mem_bytes,
    unlike,
)
from vgpumgr_api.services.ties import NO_TIES, OF_VM

LOOKED_AT = 16

LOOKED_AT_EACH = 4
"""So many at each lower share."""

PLAIN = Shape(whole=False, policy=Policy.BEST_EFFORT, latency=False, on_host=False, labels=0, ties=NO_TIES.shape)
"""Of claims that ask for share and memory alone. What others ask for can be too dear to ask at many shares."""

SHOWN = (
    Gpu.id,
    Gpu.address,
    Gpu.timeslice_min_us,
    Gpu.max_chunk_us,
    Gpu.policy,
    Gpu.backend,
    Gpu.host_id,
    select(Host.name).where(Host.id == Gpu.host_id).correlate(Gpu).scalar_subquery().label("host"),
)
"""What of a GPU a `Place` says."""


@dataclass(frozen=True, kw_only=True)
class PlacedGpu:
    """A GPU as far as its slices show it."""

    id: UUID
    address: str
    timeslice_min_us: int
    max_chunk_us: int
    policy: str
    backend: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """The GPU that was taken, locked until the end of the transaction. `chosen`: now, and not held before."""

    gpu: PlacedGpu
    host_id: UUID
    host: str
    chosen: bool
    mdev_type: str
    type_mem_bytes: int
    fair_ratio_permille: int
    reserved_permille: int


def take(session: Session, wanted: Wanted, *, first: bool = True) -> Place:
    """Chooses a GPU, locks it and charges it; raises Refusal(CAPACITY_NONE) with a count of GPUs per reason.

    GPUs that other claims hold are passed over, and waited for only if no other fits. Who has one already, so that this
    is not the `first`, does not wait for another: two who did could wait for each other. It begins again instead.
    """
    if wanted.policy is not Policy.BEST_EFFORT:
        session.flush()  # places held before this one count
    shape, placement = wanted.shape, wanted.placement
    if wanted.vm is None:
        taken = _taken(session, wanted, [_at_once(shape, placement)])
    else:  # it mostly has no slice yet; whether it has the same statement asks
        taken = _taken(session, wanted, [_for_new_vm(shape, placement)])
        if taken is None and (wanted := settled(session, wanted)).where_vm_is:
            shape = wanted.shape
            taken = _taken(session, wanted, [_at_once(shape, placement)])
    if taken is None and _fits_somewhere(session, wanted):
        taken = _taken(session, wanted, _despite_locks(shape, placement, wait=first))
    if taken is None:
        raise _none(session, wanted)
    _require_alike(session, wanted, taken.id)
    ratio = PERMILLE if wanted.shape.whole else taken.fair_ratio_permille
    counts = counted_permille(wanted.share_permille, ratio)
    period_us = wanted.reserve_period_us
    return Place(
        gpu=placed(taken),
        host_id=taken.host_id,
        host=taken.host,
        chosen=True,
        mdev_type=taken.mdev_type,
        type_mem_bytes=taken.type_mem_bytes,
        fair_ratio_permille=ratio,
        reserved_permille=0 if period_us is None else reserved_permille(counts, taken.max_chunk_us, period_us),
    )


def _taken(session: Session, wanted: Wanted, attempts: Sequence[Update]) -> Row[*tuple[Any, ...]] | None:
    asked = parameters(session, wanted)
    rows = (session.connection().execute(attempt, asked).one_or_none() for attempt in attempts)
    return next((row for row in rows if row is not None), None)


def _fits_somewhere(session: Session, wanted: Wanted) -> bool:
    """Whether others may only have locked what fits: else each attempt would look at all GPUs in vain."""
    statement = anywhere(wanted.shape, wanted.placement)
    return session.connection().execute(statement, parameters(session, wanted)).first() is not None


def _require_alike(session: Session, wanted: Wanted, gpu_id: UUID) -> None:
    """Begins again if another slice came to the GPU before it was locked that does not go with this one."""
    wrong = unlike(wanted.shape)
    if not wrong:
        return
    there = select(Gpu.id).where(Gpu.id == gpu_id, or_(*wrong.values()))
    if session.connection().execute(there, parameters(session, wanted)).first() is not None:
        raise TryAgain


def placed(row: Row[*tuple[Any, ...]]) -> PlacedGpu:
    """Reads a row that has `SHOWN`."""
    return PlacedGpu(
        id=row.id,
        address=row.address,
        timeslice_min_us=row.timeslice_min_us,
        max_chunk_us=row.max_chunk_us,
        policy=row.policy,
        backend=row.backend,
    )


@lru_cache(maxsize=SHAPES)
def walk(shape: Shape, placement: Placement) -> Select[UUID]:
    """GPUs that fit, from the fullest to the emptiest or back."""
    return select(Gpu.id).where(*_fitting(shape)).order_by(*_order(placement)).limit(1)


@lru_cache(maxsize=SHAPES)
def anywhere(shape: Shape, placement: Placement) -> Select[UUID]:
    """As `walk`, which then looks at no GPU for what none can have. The tables that say so may be read from end to end:
    not for every claim.
    """
    return walk(shape, placement).where(*known_anywhere(shape))


@lru_cache(maxsize=SHAPES)
def best(shape: Shape, placement: Placement) -> Select[UUID]:
    """Of the GPUs compared the one that is left with least. What a lock keeps is asked again under it."""
    if placement is Placement.SPREAD:
        return walk(shape, placement)
    compared = _compared(shape)
    return (
        select(Gpu.id)
        .join(compared, compared.c.id == Gpu.id)
        .where(Gpu.mem_used + compared.c.type_mem <= Gpu.mem_bytes, *_kept(shape))
        .order_by(_larger_remainder(compared), *_order(placement))
        .limit(1)
    )


def _kept(shape: Shape) -> Iterator[Any]:
    """What a lock on the GPU keeps as it is."""
    yield Gpu.present
    yield share_free(shape)
    yield Gpu.policy == literal(shape.policy.value, String())
    if shape.latency:
        yield reserve_free(shape)


def _compared(shape: Shape) -> Subquery:
    first = _seen(walk(shape, Placement.PACK), shape).limit(LOOKED_AT).correlate(None)
    if replace(shape, whole=PLAIN.whole) != PLAIN:
        return first.subquery()
    fullest = first.cte("fullest")
    found = _found_below(shape, fullest)
    return union_all(select(fullest), _seen(select(Gpu.id).join(found, found.c.id == Gpu.id), shape)).subquery()


def _seen(gpus: Select[UUID], shape: Shape) -> Select[Any]:
    return gpus.add_columns(
        Gpu.share_used,
        (PERMILLE - Gpu.share_used - counted(shape)).label("share_left"),
        Gpu.mem_bytes,
        (Gpu.mem_bytes - Gpu.mem_used).label("mem_free"),
        type_mem_bytes().label("type_mem"),
    )


def _found_below(shape: Shape, fullest: CTE) -> CTE:
    """The first of the walk at each lower share, since many GPUs are as full of share, if it is among the first few.

    However many are of no use, no more are looked at: the claim has its quota locked. Only those are passed over unseen
    that have too little memory left, were they as large as the largest of the `fullest`. A join instead of the
    subqueries would be one with all GPUs.
    """
    below = _shares_below(fullest)
    room = select(func.max(fullest.c.mem_bytes) - MEM).correlate(None).scalar_subquery()
    seen = aliased(Gpu)
    few = (
        select(seen.id, seen.mem_used)
        .where(seen.share_used == below.c.share_used, seen.mem_used <= room)
        .order_by(seen.mem_used.desc(), seen.id.desc())
        .limit(LOOKED_AT_EACH)
        .correlate(below)
        .subquery()
    )
    fitting = select(Gpu.id).join(few, few.c.id == Gpu.id).where(*_fitting(shape)).correlate(below)
    first = fitting.order_by(few.c.mem_used.desc(), few.c.id.desc()).limit(1).scalar_subquery()
    found = select(first.label("id")).select_from(below).correlate(None).cte("found")
    return found.prefix_with("MATERIALIZED", dialect="postgresql")


def _shares_below(fullest: CTE) -> CTE:
    """As many shares that GPUs have as GPUs are compared, the largest first that is less than that of the `fullest`.

    None that could not leave less of it than the best of those leaves.
    """
    left_permille = cast(PERMILLE * func.min(_larger_remainder(fullest)), BigInteger)
    least = select(PERMILLE - SHARE - left_permille).correlate(None).scalar_subquery()

    def next_below(share_used: ColumnElement[int]) -> Select[int]:
        lower = select(Gpu.share_used).where(Gpu.share_used < share_used, Gpu.share_used >= least)
        return lower.order_by(Gpu.share_used.desc()).limit(1)

    last = select(func.min(fullest.c.share_used)).correlate(None).scalar_subquery()
    first = next_below(last).correlate(None).scalar_subquery().label("share_used")
    below = select(first, literal(1).label("number")).cte("below", recursive=True)
    following = next_below(below.c.share_used).correlate(below).scalar_subquery()
    go_on = and_(below.c.share_used.is_not(None), below.c.number < LOOKED_AT)
    return below.union_all(select(following, below.c.number + 1).where(go_on))


def _larger_remainder(seen: FromClause) -> ColumnElement[float]:
    share = seen.c.share_left / cast(PERMILLE, Float)
    mem = (seen.c.mem_free - seen.c.type_mem) / cast(seen.c.mem_bytes, Float)
    return case((share > mem, share), else_=mem)


def _fitting(shape: Shape) -> Iterator[Any]:
    """What is true of a GPU that has none of the obstacles, in a form that leaves PostgreSQL one way to walk.

    Its host is looked at for one GPU after the other: as a join it would be read with all other hosts, and their GPUs
    be sorted, for each claim. What costs least to ask comes first, since that is the order in which it is asked.
    """
    known = obstacles(shape)
    yield from _kept(shape)
    yield Gpu.mem_used + MEM <= Gpu.mem_bytes
    for reason, wrong in known.items():
        if reason not in (*OF_HOST, *ROOM, "gpu.absent", "labels.other", "policy.other"):
            yield ~wrong
    yield from has_labels(shape)
    yield (
        select(true())
        .select_from(Host)
        .join(HostReport, HostReport.host_id == Host.id)
        .where(Host.id == Gpu.host_id, *(~known[reason] for reason in OF_HOST))
        .correlate(Gpu)
        .scalar_subquery()
        .is_not(None)
    )
    yield from (~wrong for wrong in unlike(shape).values())
    # NULL, and so not true, if no type is large enough.
    yield Gpu.mem_used + type_mem_bytes() <= Gpu.mem_bytes


@lru_cache(maxsize=SHAPES)
def _at_once(shape: Shape, placement: Placement) -> Update:
    """The first attempt."""
    return _charged(best(shape, placement).with_for_update(key_share=True, of=Gpu, skip_locked=True), shape)


@lru_cache(maxsize=SHAPES)
def _despite_locks(shape: Shape, placement: Placement, *, wait: bool) -> list[Update]:
    """The other attempts, in which the walk goes on past what is locked, and then waits for it."""
    chosen = []
    if placement is Placement.PACK:
        chosen.append(walk(shape, placement).with_for_update(key_share=True, of=Gpu, skip_locked=True))
    if wait:
        chosen.append(walk(shape, placement).with_for_update(key_share=True, of=Gpu))
    return [_charged(each, shape) for each in chosen]


@lru_cache(maxsize=SHAPES)
def _for_new_vm(shape: Shape, placement: Placement) -> Update:
    """As `_at_once`, for a VM that has no slice yet."""
    chosen = best(shape, placement).where(~OF_VM.exists()).with_for_update(key_share=True, of=Gpu, skip_locked=True)
    return _charged(chosen, shape)


def _charged(chosen: Select[UUID], shape: Shape) -> Update:
    """Charges the GPU that a statement chooses and locks."""
    kind = (
        select(GpuType)
        .where(GpuType.gpu_id == Gpu.id, GpuType.mem_bytes >= MEM)
        .order_by(GpuType.mem_bytes, GpuType.mdev_type)
        .limit(1)
        .correlate(Gpu)
    )
    return spelled_out(
        update(Gpu)
        .where(Gpu.id == chosen.correlate(None).scalar_subquery())
        .values(
            share_used=Gpu.share_used + counted(shape),
            mem_used=Gpu.mem_used + type_mem_bytes(),
            **({"reserved_permille": Gpu.reserved_permille + reserved(shape)} if shape.latency else {}),
        )
        .returning(
            *SHOWN,
            Gpu.fair_ratio_permille,
            kind.with_only_columns(GpuType.mdev_type).scalar_subquery().label("mdev_type"),
            kind.with_only_columns(GpuType.mem_bytes).scalar_subquery().label("type_mem_bytes"),
        )
    )


def _order(placement: Placement) -> list[UnaryExpression[Any]]:
    columns: list[Any] = [Gpu.share_used, Gpu.mem_used, Gpu.id]
    if placement is Placement.SPREAD:
        return [column.asc() for column in columns]
    return [column.desc() for column in columns]


def _none(session: Session, wanted: Wanted) -> Refusal:
    """Begins again if some GPU fits by now, or did all the time and another has it locked."""
    fitting, reasons = census(session, wanted)
    if fitting:
        raise TryAgain
    return Refusal(
        Code.CAPACITY_NONE,
        _detail(wanted, reasons),
        reasons=tuple(reasons),
        limits={"share_permille": wanted.share_permille, "mem_bytes": wanted.mem_bytes},
    )


def _detail(wanted: Wanted, reasons: Sequence[Reason]) -> str:
    mem_mib = f"{wanted.mem_bytes / (1 << 20):.1f}".removesuffix(".0")
    room = f"{wanted.share_permille} permille and {mem_mib} MiB free"
    if not reasons:
        return f"no GPU has {room}; no host has reported one yet, so enrol a host"
    asked_for: Sequence[Reason] = [reason for reason in reasons if reason.code not in NAMED]
    others_do = wanted.discreet and len(asked_for) < len(reasons)  # what is named was asked last
    if not wanted.discreet:  # it was asked first, so that the rest is true of GPUs that are asked for
        asked_for = asked_for or reasons[-1:]
        if asked_for[0].code == "host.other":
            return "the host that is asked for has reported no GPU yet; see that its agent runs, or ask for another"
    which, elsewhere = "no GPU", "add a host"
    if len(asked_for) < len(reasons):
        which, elsewhere = "no GPU that is asked for", "ask for others"
        if wanted.where_vm_is and not wanted.selector:
            which, elsewhere = "no GPU on the host of its VM", "move the VM"
    if others_do:
        return f"{which} will do, though others would; {elsewhere}"
    codes = {reason.code for reason in asked_for}
    if codes == {"type.none"}:
        return f"{which} offers {mem_mib} MiB to one slice; ask for less memory, or offer a larger class"
    advice = f"; free some, {elsewhere} or ask for less"
    if codes.issubset(ROOM):
        return f"{which} has {room}{advice}"
    if codes.isdisjoint(ROOM):
        advice = "" if which == "no GPU" else f"; {elsewhere}"
    most = max(asked_for, key=lambda reason: reason.count or 0).detail
    return f"{which} will do, of most because: {most}{advice}"
