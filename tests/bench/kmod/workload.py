# SPDX-License-Identifier: Apache-2.0
"""What is played to the module and to the baselines alike: who is there, how long items are, and what changes when.

Nothing here needs more than the standard library: it is also read inside a lab host.
"""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

SIZES = (2, 8, 32)
SEED = 5
SHORTEST_NS, LONGEST_NS = 20 * US, 20 * MS
TIMESLICE_NS = 2 * MS
MAX_CHUNK_NS = LONGEST_NS
WEIGHTS = (100, 200, 300, 400)
EPOCH_NS = 2500 * MS
"""Between two changes; four of them are ten seconds."""
PREPARED_NS = 120 * MS
"""Before who joins has work, its tenant and slice are made."""

BATCHES = (1, 8, 32)
"""Items per doorbell, where an item's cost is measured."""
CHUNK_US, URGENT_US = 400, 50
"""Pieces that nobody can interrupt, and the item that waits for them."""

BOUND_NS = TIMESLICE_NS + MAX_CHUNK_NS
"""R10: the lag of a tenant that always has work is at most the longest timeslice and the longest item."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One tenant with one slice that always has work. `weights`: in each epoch, 0 while it is not there.

    `depth`: of its queue, which who leaves finishes before.
    """

    name: str
    item_ns: int
    weights: tuple[int, int, int, int]
    depth: int = 32


def members(size: int, seed: int = SEED) -> list[Member]:
    """Item lengths log-uniform, the first two at both ends; one tenant leaves, one joins, one changes its weight."""
    rng = random.Random(seed * 1000 + size)
    found = []
    for number in range(size):
        item_ns = round(math.exp(rng.uniform(math.log(SHORTEST_NS), math.log(LONGEST_NS))) / US) * US
        if number < 2:
            item_ns = (SHORTEST_NS, LONGEST_NS)[number]
        weight = rng.choice(WEIGHTS)
        weights = (weight,) * 4
        if number == 0:  # reweighted in the last epoch
            weights = (weight, weight, weight, 2 * weight)
        found.append(Member(name=f"t{number}", item_ns=item_ns, weights=weights))
    leaver, joiner = rng.choice(WEIGHTS), rng.choice(WEIGHTS)
    found.append(Member(name="leaver", item_ns=2 * MS, weights=(leaver, 0, 0, 0), depth=8))
    found.append(Member(name="joiner", item_ns=500 * US, weights=(0, 0, joiner, joiner)))
    return found


@dataclass(frozen=True)
class Stay:
    """One stay of a tenant on the engine; times since some moment before the first."""

    name: str
    start_ns: int
    length_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.length_ns


@dataclass(frozen=True, kw_only=True)
class Change:
    """What moves lags beside stays: a tenant is made, has another weight, or has work or none.

    `time_ns`: as those of stays. `weight`: 0 when it is gone for good.
    """

    time_ns: int
    name: str
    weight: int | None = None
    has_work: bool | None = None


def work(stays: Sequence[Stay], ready: Iterable[tuple[str, int]]) -> list[Change]:
    """When who had work, from who got some when: had it run out before, then at the end of the last stay."""
    found = []
    for name, time_ns in ready:
        earlier = [stay for stay in stays if stay.name == name and stay.start_ns < time_ns]
        last = max(earlier, key=lambda stay: stay.start_ns, default=None)
        if last and time_ns < last.end_ns:
            continue  # before anybody saw that it had run out
        if last:
            found.append(Change(time_ns=last.end_ns, name=name, has_work=False))
        found.append(Change(time_ns=time_ns, name=name, has_work=True))
    return found


def lengths(stays: Sequence[Stay]) -> dict[str, int]:
    """How many stays were at least so long and shorter than twice that; the ends take what is beyond them."""
    buckets = [max(4, min(17, max(stay.length_ns // US, 1).bit_length() - 1)) for stay in stays]
    return {f">= {1 << bucket} us": buckets.count(bucket) for bucket in range(4, 18)}
