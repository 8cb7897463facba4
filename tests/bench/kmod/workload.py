# SPDX-License-Identifier: Apache-2.0
"""What is played to the module and to the baselines alike: who is there, how long items are, and what changes when.

Nothing here needs more than the standard library: it is also read inside a lab host.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
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
    """One tenant with one slice that always has work. `weights`: in each epoch, 0 while it is not there."""

    name: str
    item_ns: int
    weights: tuple[int, int, int, int]


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
    found.append(Member(name="leaver", item_ns=2 * MS, weights=(leaver, 0, 0, 0)))
    found.append(Member(name="joiner", item_ns=500 * US, weights=(0, 0, joiner, joiner)))
    return found


@dataclass(frozen=True)
class Stay:
    """One stay of a tenant on the engine; times since the beginning of the first epoch."""

    name: str
    start_ns: int
    length_ns: int


@dataclass(frozen=True)
class Change:
    """From this time on, since the beginning of the first epoch, these tenants and no others always have work."""

    time_ns: int
    weights: Mapping[str, int]


def changes(played: Sequence[Member], times_ns: Sequence[int]) -> list[Change]:
    """Each epoch's weights, from when they were in force."""
    epochs = ({one.name: one.weights[epoch] for one in played if one.weights[epoch]} for epoch in range(4))
    return [Change(*begun) for begun in zip(times_ns, epochs, strict=True)]


def _pieces(stays: Sequence[Stay], changed: Sequence[Change]) -> Iterator[tuple[str, int, Mapping[str, int]]]:
    """Name, length and the weights in force, of stays cut where the weights change."""
    for stay in stays:
        start_ns, end_ns = stay.start_ns, stay.start_ns + stay.length_ns
        for change, until in zip(changed, [*(later.time_ns for later in changed[1:]), end_ns], strict=True):
            length_ns = min(end_ns, until) - max(start_ns, change.time_ns)
            if length_ns > 0:
                yield stay.name, length_ns, change.weights


def lag_spread_ns(stays: Sequence[Stay], changed: Sequence[Change]) -> int:
    """How far the worst tenant's lag moves between any two instants, changes between them or not: at most twice R10's
    bound. What who leaves was owed or owes is no one's.

    Against the time that was served, so what no tenant was charged has no part. A lag falls only while its tenant
    runs and rises only while it does not: edges of stays are enough.
    """
    names = {name for change in changed for name in change.weights}
    lag = dict.fromkeys(names, 0.0)
    least, most = dict(lag), dict(lag)
    for name, length_ns, weights in _pieces(stays, changed):
        if name not in weights:
            raise ValueError(f"{name} ran when it was not there")
        most[name] = max(most[name], lag[name])
        total_weight = sum(weights.values())
        for entitled, weight in weights.items():
            lag[entitled] += length_ns * weight / total_weight
        lag[name] -= length_ns
        least[name] = min(least[name], lag[name])
    return round(max(max(most[name], lag[name]) - least[name] for name in names))


def lengths(stays: Sequence[Stay]) -> dict[str, int]:
    """How many stays were at least so long and shorter than twice that; the ends take what is beyond them."""
    buckets = [max(4, min(17, max(stay.length_ns // US, 1).bit_length() - 1)) for stay in stays]
    return {f">= {1 << bucket} us": buckets.count(bucket) for bucket in range(4, 18)}
