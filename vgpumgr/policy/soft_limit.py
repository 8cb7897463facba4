# SPDX-License-Identifier: Apache-2.0
"""Hard and elastic limits: a container keeps to its part of the engine, or may use time that others leave idle.

GaiaGPU (Gu et al., ISPA 2018; vcuda-controller) has a loop in user space. Every 120 ms it reads the use of the last
second and adjusts how many blocks each process may launch. An elastic container gains a tenth per step while a part of
the GPU is free, and when a newcomer wants its part back, all containers are reset. That takes seconds.

There is no such controller here. Both limits are parameters of the core (`terms`): a hard limit is a cap; an elastic
limit is a weight, with the elastic top as its cap. The core is work-conserving: idle time is used at once, and given
back at once, because an owner that wakes is eligible at the next pick. The lag bound (scheduler.md, R10) determines how
soon the owner then has its *part*; `reclaim_ns` computes it. If that time is above RECLAIM_NS, because the part is
small compared with the timeslices, the owner also gets a reservation of its part per RECLAIM_NS (R6). The reservation
bounds the time whatever the weights are. Reservations make other containers wait longer for their turn. So that they
lose no cap credit while they wait, containers can save up RECLAIM_NS of credit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from vgpumgr.policy.terms import Terms, permille
from vgpumgr.ranges import PERMILLE

RECLAIM_NS = 10_000_000
# As in GaiaGPU, an elastic container never fills a GPU that a newcomer may want.
ELASTIC_TOP_PERMILLE = 900


@dataclass(frozen=True, kw_only=True)
class SoftLimit:
    """`share_permille` of the engine belongs to the container; if `elastic`, it may use idle time up to the top."""

    share_permille: int
    elastic: bool = False
    top_permille: int = ELASTIC_TOP_PERMILLE

    def __post_init__(self) -> None:
        permille("share_permille", self.share_permille, least=1)
        permille("top_permille", self.top_permille, least=1)
        if self.elastic and self.top_permille < self.share_permille:
            raise ValueError(f"the elastic top {self.top_permille} is below the share {self.share_permille} permille")

    @property
    def cap_permille(self) -> int:
        return self.top_permille if self.elastic else self.share_permille


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The engine's times that limit how soon it can change hands, and the part that may be reserved in total."""

    timeslice_ns: int
    max_chunk_ns: int
    reserve_limit_permille: int = PERMILLE

    def __post_init__(self) -> None:
        if self.timeslice_ns <= 0 or self.max_chunk_ns <= 0:
            raise ValueError(f"timeslice {self.timeslice_ns} ns and chunk {self.max_chunk_ns} ns must be above 0")
        permille("reserve_limit_permille", self.reserve_limit_permille)


def reclaim_ns(share_permille: int, engine: Engine) -> int:
    """Return the longest time from an owner's waking to its first service, with weights alone.

    When it wakes, an owner may be behind by one timeslice and one chunk. It catches up at its share of the engine.
    """
    permille("share_permille", share_permille, least=1)
    behind_ns = engine.timeslice_ns + engine.max_chunk_ns
    return -(-behind_ns * PERMILLE // share_permille)


def terms(limits: Mapping[Hashable, SoftLimit], engine: Engine) -> dict[Hashable, Terms]:
    """Return terms that give every owner its part back within RECLAIM_NS of its waking, plus one chunk.

    ValueError if the parts exceed the engine, or the necessary reservations exceed `reserve_limit_permille`.
    """
    total = sum(limit.share_permille for limit in limits.values())
    if total > PERMILLE:
        raise ValueError(f"shares add up to {total} of {PERMILLE} permille")
    if 4 * engine.max_chunk_ns > RECLAIM_NS:
        raise ValueError(
            f"chunks of {engine.max_chunk_ns} ns: at most {RECLAIM_NS // 4} ns for a reclaim within {RECLAIM_NS} ns"
        )
    reserved = {
        key
        for key, limit in limits.items()
        if len(limits) > 1 and reclaim_ns(limit.share_permille, engine) > RECLAIM_NS
    }
    if (needed := sum(limits[key].share_permille for key in reserved)) > engine.reserve_limit_permille:
        raise ValueError(
            f"{needed} permille must be reserved for a reclaim within {RECLAIM_NS} ns, {engine.reserve_limit_permille}"
            " may be: shorten the timeslice"
        )
    return {key: _terms(limit, reserve=key in reserved) for key, limit in limits.items()}


def _terms(limit: SoftLimit, *, reserve: bool) -> Terms:
    capped = limit.cap_permille < PERMILLE
    return Terms(
        weight=limit.share_permille,
        cap_ns=limit.cap_permille * RECLAIM_NS // PERMILLE if capped else 0,
        cap_period_ns=RECLAIM_NS if capped else 0,
        burst_ns=RECLAIM_NS if capped else 0,
        reserve_ns=limit.share_permille * RECLAIM_NS // PERMILLE if reserve else 0,
        reserve_period_ns=RECLAIM_NS if reserve else 0,
    )
