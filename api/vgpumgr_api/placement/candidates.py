# SPDX-License-Identifier: Apache-2.0
"""Chooses the best of the GPUs that fit a claim.

`pack` rates a GPU by what the claim would leave of its share and of its memory, as fractions of the whole GPU. The
larger of these two remainders counts, because a remainder of share is useless without memory, and the reverse. The GPU
with the smallest rating is taken. The `LOOKED_AT` fitting GPUs with the most used share are compared. For `PLAIN`
claims, one more GPU is compared at each of up to `LOOKED_AT` lower values of used share: the fitting GPU with the least
free memory, among a few. `spread` takes the emptiest GPU.

A GPU fits if all of the following hold. It has the required policy and the selected labels, and keeps the affinities.
Its host is ready, not fenced, enrolled, online, confirmed for the database's epoch and without slices that the database
does not know. It was in its host's last report. One of its mdev types is large enough; the smallest of these is taken.
Share, reservable time and memory of that type are free.

A claim holds the locks of its quotas while it searches, and searches `schedulable` GPUs first. Some of these may not
fit, because the claim wants more memory than is left there. So a packed `PLAIN` claim examines the `WALKED` fullest
GPUs, and then a few GPUs at each of the next lower shares. It searches all GPUs only if none of these fits.
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
"""How many GPUs that fit are compared, and how many lower values of used share are examined."""

LOOKED_AT_EACH = 4
"""How many GPUs at each of these values are examined."""

WALKED = 256
"""How many of the fullest GPUs are examined, before GPUs at lower shares."""

PLAIN = Shape(whole=False, policy=Policy.BEST_EFFORT, latency=False, on_host=False, labels=0, ties=NO_TIES.shape)
"""The shape of claims that ask only for share and memory. The conditions of other claims may be too expensive to check
at many shares, and may match so few GPUs that all have to be examined.
"""


@lru_cache(maxsize=SHAPES)
def walk(shape: Shape, placement: Placement, *, schedulable: bool = True) -> Select[UUID]:
    """Selects GPUs that fit, from the fullest to the emptiest or in reverse: the `schedulable` ones, or the others."""
    hinted = Gpu.schedulable if schedulable else ~Gpu.schedulable
    return select(Gpu.id).where(hinted, *_fitting(shape)).order_by(*_order(placement)).limit(1)


@lru_cache(maxsize=SHAPES)
def anywhere(shape: Shape) -> Select[UUID]:
    """Selects any GPU that fits.

    It examines no GPU if the claim needs something that no GPU has. It may read whole tables, so it is not run for
    every claim.
    """
    return select(Gpu.id).where(*_fitting(shape), *known_anywhere(shape)).limit(1)


@lru_cache(maxsize=SHAPES)
def best(shape: Shape, placement: Placement) -> Select[UUID]:
    """Selects the GPU with the smallest remainder. Conditions that a lock on the GPU keeps true are checked again."""
    return walk(shape, placement) if placement is Placement.SPREAD else _least_left(_compared(shape), shape)


@lru_cache(maxsize=SHAPES)
def best_beyond(shape: Shape) -> Select[UUID]:
    """Like `best` for packing a `PLAIN` claim, but selects nothing if one of the walked GPUs fits.

    If none of the walked GPUs fits, few GPUs are compared, and concurrent claims may have locked all of these.
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
    """Yields conditions that cannot change while the GPU is locked."""
    yield Gpu.present
    yield share_free(shape)
    yield Gpu.policy == literal(shape.policy.value, String())
    if shape.process:  # a GPU for processes has no mdev type
        yield serves(shape)
    if shape.latency:
        yield reserve_free(shape)


def is_plain(shape: Shape) -> bool:
    """Whether a shape is `PLAIN`, regardless of how it counts its share."""
    return replace(shape, whole=PLAIN.whole) == PLAIN


def _compared(shape: Shape) -> Subquery:
    if not is_plain(shape):
        return _seen(walk(shape, Placement.PACK), shape).limit(LOOKED_AT).correlate(None).subquery()
    first = _of_ids(_found_first(shape), shape).cte("first")
    return union_all(select(first), _of_ids(_found_beyond(shape, first), shape)).subquery()


def _found_first(shape: Shape) -> CTE:
    """Selects the first of the walked GPUs that fit. With a join, all GPUs would be checked and then sorted."""
    walked = _walked(shape)
    fits = select(true()).where(Gpu.id == walked.c.id, *_fitting(shape)).correlate(walked).scalar_subquery()
    found = select(walked.c.id).where(fits.is_not(None))
    order = (walked.c.share_used.desc(), walked.c.mem_over.desc(), walked.c.id.desc())
    return _materialized(found.order_by(*order).limit(LOOKED_AT), "found_first")


def _walked(shape: Shape) -> Subquery:
    """Selects the fullest GPUs with free share, whatever else they lack. No more rows are read than are consumed."""
    walked = select(Gpu.id, Gpu.share_used, _mem_over(Gpu).label("mem_over"))
    walked = walked.where(*_of_walk(Gpu, shape), share_free(shape))
    return walked.order_by(*_order(Placement.PACK)).limit(WALKED).correlate(None).subquery()


def _of_walk(gpus: type[Gpu] | AliasedClass[Gpu], shape: Shape) -> Iterator[Any]:
    """Yields conditions on the first columns of the walk's index."""
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
    """Selects the first fitting GPU at each share beyond the walk, among the first few there.

    Many GPUs may have the same used share, so those with too little free memory are skipped. If `first` is empty, up to
    `LOOKED_AT_EACH` GPUs are taken per share, so that concurrent claims find an unlocked one. A join instead of the
    subqueries would read all GPUs.
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
    # PostgreSQL overestimates the number of these rows. Without the LIMIT it would read all GPUs instead of looking up
    # each one.
    found = union_all(*each).subquery()
    return _materialized(select(found.c.id).limit(2 * LOOKED_AT), "found_beyond")


def _shares_beyond(shape: Shape, first: CTE) -> CTE:
    """Selects the last share that was walked, and up to `LOOKED_AT` lower shares that GPUs have.

    Shares at which no remainder can be smaller than the smallest remainder in `first` are left out.
    """
    walked = _walked(shape)
    enough = _one(func.count(first.c.id)) == LOOKED_AT  # if there are fewer, all walked GPUs were checked
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
    """Returns an aggregate as a scalar subquery, which is evaluated only if it is needed."""
    return select(value).correlate(None).scalar_subquery()


def _larger_remainder(seen: FromClause) -> ColumnElement[float]:
    share = seen.c.share_left / cast(PERMILLE, Float)
    mem = (seen.c.mem_free - seen.c.type_mem) / cast(seen.c.mem_bytes, Float)
    return case((share > mem, share), else_=mem)


def _fitting(shape: Shape) -> Iterator[Any]:
    """Yields the conditions of a GPU without obstacles, in a form for which PostgreSQL has only one plan.

    Its host is looked up for one GPU at a time. With a join, all hosts would be read, and their GPUs sorted, for each
    claim. The cheapest conditions come first, because they are evaluated in this order.
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
    # This is NULL, and therefore not true, if no type is large enough.
    yield Gpu.mem_used + type_mem_bytes(shape) <= Gpu.mem_bytes


def _order(placement: Placement) -> list[UnaryExpression[Any]]:
    """Returns the order of the walk and of its index."""
    columns: list[Any] = [Gpu.share_used, _mem_over(Gpu), Gpu.id]
    if placement is Placement.SPREAD:
        return [column.asc() for column in columns]
    return [column.desc() for column in columns]


def _mem_over(gpus: type[Gpu] | AliasedClass[Gpu]) -> ColumnElement[int]:
    """Returns used minus total memory, as in the index: never above 0, and closer to 0 the less memory is free."""
    over: ColumnElement[int] = gpus.mem_used - gpus.mem_bytes
    return over
