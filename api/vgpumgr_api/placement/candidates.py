# SPDX-License-Identifier: Apache-2.0
"""Which GPU a claim takes of those that fit.

`pack`: the one whose larger remainder is smallest, the remainders of share and of memory as parts of the whole GPU:
what is left of one is worth nothing without the other. The `LOOKED_AT` fullest of share are compared, and for `PLAIN`
claims at each of as many lower shares the fullest of memory, for which a few are looked at and no more. `spread`: the
emptiest.

A GPU fits if it is shared by the policy that is required, has the labels that are selected and keeps affinity, its host
is ready, not fenced, enrolled, online, confirmed for the database's epoch and without slices that the database does not
know, it was in its host's last report, one of its mdev types is large enough (the smallest such is taken), and share,
time to reserve and memory of that type are free.

A claim looks with its quotas locked, at GPUs that are `schedulable` first. Some of these may be of no use to it, since
it wants more memory than is left there for one: a `PLAIN` claim to pack looks at `WALKED` from the fullest, and at a
few at each of the shares that come next. Only where nothing fits it looks for any, at all GPUs.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Float,
    FromClause,
    ScalarSelect,
    Select,
    SelectBase,
    String,
    Subquery,
    UnaryExpression,
    and_,
    case,
    cast,
    func,
    literal,
    select,
    true,
    union_all,
)
from sqlalchemy.orm import aliased
from sqlalchemy.orm.util import AliasedClass

from vgpumgr.wire.common import PERMILLE, Policy
from vgpumgr.wire.resources import Placement
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.placement.obstacles import (
    MEM,
    OF_HOST,
    ROOM,
    SHAPES,
    SHARE,
    Shape,
    counted,
    has_labels,
    known_anywhere,
    obstacles,
    reserve_free,
    serves,
    share_free,
    type_mem_bytes,
    unlike,
)
from vgpumgr_api.placement.ties import NO_TIES

LOOKED_AT = 16
"""How many GPUs that fit are compared, and how many further amounts of free share are looked at."""

LOOKED_AT_EACH = 4
"""How many GPUs of each such amount are looked at."""

WALKED = 256
"""So many GPUs are looked at for some that fit, before those at the shares beyond."""

PLAIN = Shape(whole=False, policy=Policy.BEST_EFFORT, latency=False, on_host=False, labels=0, ties=NO_TIES.shape)
"""Of claims that ask for share and memory alone. What others ask for can be too dear to ask at many shares, and have so
few GPUs that fit that all have to be looked at.
"""


@lru_cache(maxsize=SHAPES)
def walk(shape: Shape, placement: Placement, *, schedulable: bool = True) -> Select[UUID]:
    """GPUs that fit, from the fullest to the emptiest or back; those that are `schedulable`, or the others."""
    hinted = Gpu.schedulable if schedulable else ~Gpu.schedulable
    return select(Gpu.id).where(hinted, *_fitting(shape)).order_by(*_order(placement)).limit(1)


@lru_cache(maxsize=SHAPES)
def anywhere(shape: Shape) -> Select[UUID]:
    """Any GPU that fits; looks at none for what none can have. All tables may be read from end to end: not for every
    claim.
    """
    return select(Gpu.id).where(*_fitting(shape), *known_anywhere(shape)).limit(1)


@lru_cache(maxsize=SHAPES)
def best(shape: Shape, placement: Placement) -> Select[UUID]:
    """Of the GPUs compared the one that is left with least. What a lock keeps is asked again under it."""
    return walk(shape, placement) if placement is Placement.SPREAD else _least_left(_compared(shape), shape)


@lru_cache(maxsize=SHAPES)
def best_beyond(shape: Shape) -> Select[UUID]:
    """As `best` to pack for `PLAIN` claims, where none of the GPUs walked fits; else none. Few are compared then, and
    others may have those locked.
    """
    first = _of_ids(_found_first(shape), shape).cte("first")
    found = _of_ids(_found_beyond(shape, first), shape).where(~select(first.c.id).correlate(None).exists())
    return _least_left(found.subquery(), shape)


def _least_left(compared: Subquery, shape: Shape) -> Select[UUID]:
    return (
        select(Gpu.id)
        .join(compared, compared.c.id == Gpu.id)
        .where(Gpu.mem_used + compared.c.type_mem <= Gpu.mem_bytes, *_kept(shape))
        .order_by(_larger_remainder(compared), *_order(Placement.PACK))
        .limit(1)
    )


def _kept(shape: Shape) -> Iterator[Any]:
    """What a lock on the GPU keeps as it is."""
    yield Gpu.present
    yield share_free(shape)
    yield Gpu.policy == literal(shape.policy.value, String())
    if shape.process:  # a GPU that is not for VMs has no type
        yield serves(shape)
    if shape.latency:
        yield reserve_free(shape)


def is_plain(shape: Shape) -> bool:
    """Whether it is `PLAIN`, whatever it counts."""
    return replace(shape, whole=PLAIN.whole) == PLAIN


def _compared(shape: Shape) -> Subquery:
    if not is_plain(shape):
        return _seen(walk(shape, Placement.PACK), shape).limit(LOOKED_AT).correlate(None).subquery()
    first = _of_ids(_found_first(shape), shape).cte("first")
    return union_all(select(first), _of_ids(_found_beyond(shape, first), shape)).subquery()


def _found_first(shape: Shape) -> CTE:
    """The first that fit of those walked. As a join, all GPUs would be asked, and then sorted."""
    walked = _walked(shape)
    fits = select(true()).where(Gpu.id == walked.c.id, *_fitting(shape)).correlate(walked).scalar_subquery()
    found = select(walked.c.id).where(fits.is_not(None))
    order = (walked.c.share_used.desc(), walked.c.mem_over.desc(), walked.c.id.desc())
    return _materialized(found.order_by(*order).limit(LOOKED_AT), "found_first")


def _walked(shape: Shape) -> Subquery:
    """The fullest GPUs that have share left, whatever else they lack. No more are read than are asked for."""
    walked = select(Gpu.id, Gpu.share_used, _mem_over(Gpu).label("mem_over"))
    walked = walked.where(*_of_walk(Gpu, shape), share_free(shape))
    return walked.order_by(*_order(Placement.PACK)).limit(WALKED).correlate(None).subquery()


def _of_walk(gpus: type[Gpu] | AliasedClass[Gpu], shape: Shape) -> Iterator[Any]:
    """What the index of the walk begins with."""
    yield gpus.schedulable
    yield gpus.policy == literal(shape.policy.value, String())


def _of_ids(found: CTE, shape: Shape) -> Select[Any]:
    return _seen(select(Gpu.id).join(found, found.c.id == Gpu.id), shape).correlate(None)


def _materialized(found: SelectBase, name: str) -> CTE:
    return found.cte(name).prefix_with("MATERIALIZED", dialect="postgresql")


def _seen(gpus: Select[UUID], shape: Shape) -> Select[Any]:
    return gpus.add_columns(
        Gpu.share_used,
        (PERMILLE - Gpu.share_used - counted(shape)).label("share_left"),
        Gpu.mem_bytes,
        (Gpu.mem_bytes - Gpu.mem_used).label("mem_free"),
        type_mem_bytes(shape).label("type_mem"),
    )


def _found_beyond(shape: Shape, first: CTE) -> CTE:
    """The first of the walk at each share beyond, since many GPUs are as full of share, if it is among the first few.

    Those that have too little memory left are passed over unseen. Where none of the `first` fits it is up to as many as
    are looked at, for claims that come at once. A join instead of the subqueries would be one with all GPUs.
    """
    beyond = _shares_beyond(shape, first)
    seen = aliased(Gpu)
    mem_over = _mem_over(seen)
    few = (
        select(seen.id, mem_over.label("mem_over"))
        .where(*_of_walk(seen, shape), seen.share_used == beyond.c.share_used, mem_over <= _one(-MEM))
        .order_by(mem_over.desc(), seen.id.desc())
        .limit(LOOKED_AT_EACH)
        .correlate(beyond)
        .subquery()
    )
    fitting = select(Gpu.id).join(few, few.c.id == Gpu.id).where(*_fitting(shape)).correlate(beyond)
    fitting = fitting.order_by(few.c.mem_over.desc(), few.c.id.desc()).limit(1)
    none_of_first = ~select(first.c.id).correlate(None).exists()
    each = (
        select(fitting.offset(number).scalar_subquery().label("id"))
        .select_from(beyond)
        .where(none_of_first if number else true())
        for number in range(LOOKED_AT_EACH)
    )
    # PostgreSQL expects many of what is so found, and would read all GPUs rather than look each up.
    found = union_all(*each).subquery()
    return _materialized(select(found.c.id).limit(2 * LOOKED_AT), "found_beyond")


def _shares_beyond(shape: Shape, first: CTE) -> CTE:
    """The last share that was walked past, and as many lower ones that GPUs have as GPUs are compared. None that could
    not leave less of it than the best of the `first` leaves.
    """
    walked = _walked(shape)
    enough = _one(func.count(first.c.id)) == LOOKED_AT  # or all that were walked were asked
    begin = case((enough, _one(func.min(first.c.share_used))), else_=_one(func.min(walked.c.share_used)))
    left_permille = cast(PERMILLE * func.min(_larger_remainder(first)), BigInteger)
    least = func.coalesce(_one(PERMILLE - SHARE - left_permille), 0)
    beyond = select(begin.label("share_used"), literal(0).label("number")).cte("beyond", recursive=True)
    lower = select(Gpu.share_used).where(
        *_of_walk(Gpu, shape), Gpu.share_used < beyond.c.share_used, Gpu.share_used >= least
    )
    following = lower.order_by(Gpu.share_used.desc()).limit(1).correlate(beyond).scalar_subquery()
    go_on = and_(beyond.c.share_used.is_not(None), beyond.c.number < LOOKED_AT)
    return beyond.union_all(select(following, beyond.c.number + 1).where(go_on))


def _one(value: ColumnElement[Any]) -> ScalarSelect[Any]:
    """An aggregate as a value of its own, which is found out only if it is needed."""
    return select(value).correlate(None).scalar_subquery()


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
        if reason not in (*OF_HOST, *ROOM, "gpu.absent", "labels.other", "policy.other", "workload.other"):
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
    yield Gpu.mem_used + type_mem_bytes(shape) <= Gpu.mem_bytes


def _order(placement: Placement) -> list[UnaryExpression[Any]]:
    """Of the walk, and of its index."""
    columns: list[Any] = [Gpu.share_used, _mem_over(Gpu), Gpu.id]
    if placement is Placement.SPREAD:
        return [column.asc() for column in columns]
    return [column.desc() for column in columns]


def _mem_over(gpus: type[Gpu] | AliasedClass[Gpu]) -> ColumnElement[int]:
    """How full a GPU is of memory, by how little is left, as its index has it: never above 0."""
    over: ColumnElement[int] = gpus.mem_used - gpus.mem_bytes
    return over
