# SPDX-License-Identifier: Apache-2.0
"""The workload for the module and the baselines: tenants, item lengths, and the changes with their times.

This file uses only the standard library, because it is also imported inside a lab host.
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
"""The time between two changes; four of them are ten seconds."""
PREPARED_NS = 120 * MS
"""A joining tenant and its slice are made this long before it has work."""

BATCHES = (1, 8, 32)
"""Items per doorbell in the measurements of an item's cost."""
CHUNK_US, URGENT_US = 400, 50
"""Pieces that cannot be interrupted, and the item that waits for them."""

BOUND_NS = TIMESLICE_NS + MAX_CHUNK_NS
"""R10: the lag of a tenant that always has work is at most the longest timeslice plus the longest item."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One tenant with one slice that always has work. `weights`: its weight in each epoch; 0 while it does not exist.

    `depth`: the length of its queue, which a leaving tenant finishes first.
    """

    name: str
    item_ns: int
    weights: tuple[int, int, int, int]
    depth: int = 32


def members(size: int, seed: int = SEED) -> list[Member]:
    """Return the tenants. Item lengths are log-uniform; the first two are the extremes. One tenant leaves, one joins,
    and one changes its weight.
    """
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
    """One stay of a tenant on the engine; times are relative to a moment before the first stay."""

    name: str
    start_ns: int
    length_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.length_ns


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of lags outside stays: a tenant is made, gets another weight, or gets or loses work.

    `time_ns`: on the clock of the stays. `weight`: 0 when the tenant is removed.
    """

    time_ns: int
    name: str
    weight: int | None = None
    has_work: bool | None = None


def work(stays: Sequence[Stay], ready: Iterable[tuple[str, int]]) -> list[Change]:
    """Return when tenants had work, from the times at which they got some. A tenant whose work had run out lost it at
    the end of its last stay.
    """
    found = []
    for name, time_ns in ready:
        earlier = [stay for stay in stays if stay.name == name and stay.start_ns < time_ns]
        last = max(earlier, key=lambda stay: stay.start_ns, default=None)
        if last and time_ns < last.end_ns:
            continue  # it got work before the engine saw that it had run out
        if last:
            found.append(Change(time_ns=last.end_ns, name=name, has_work=False))
        found.append(Change(time_ns=time_ns, name=name, has_work=True))
    return found


def lengths(stays: Sequence[Stay]) -> dict[str, int]:
    """Return the number of stays by length, in buckets from a length to twice the length; the outer buckets include the
    rest.
    """
    buckets = [max(4, min(17, max(stay.length_ns // US, 1).bit_length() - 1)) for stay in stays]
    return {f">= {1 << bucket} us": buckets.count(bucket) for bucket in range(4, 18)}
