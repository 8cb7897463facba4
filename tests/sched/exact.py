# SPDX-License-Identifier: Apache-2.0
"""The parts of `model`: averages, caps, reservations and predictions in exact arithmetic."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from vgpumgr.sched.core import (
    Band,
    CapParams,
    GroupParams,
    ItemInfo,
    histogram_bucket,
    histogram_bucket_start_ns,
)

# Results of a division by a sum of weights are rounded to this grid, because otherwise the
# denominators grow without limit.
GRID = 2**70

# The core treats a credit of virtual time below this as none, so that rounding decides nothing.
NO_CREDIT = Fraction(64, 2**14)


def on_grid(value: Fraction) -> Fraction:
    return Fraction(round(value * GRID), GRID)


@dataclass(eq=False)
class Party:
    """A member of an average: a group among groups, or a slice among the slices of its group."""

    name: str
    weight: int
    timeslice: int
    v: Fraction
    deadline: Fraction
    ready: bool = False
    running: bool = False
    member: bool = False


class Level:
    """The members of one average, and R2's eligibility, R3's charge and R4's debt and credit."""

    def __init__(self, overrun: int) -> None:
        self.parties: list[Party] = []
        self.members: list[Party] = []
        self.resting_v = Fraction(0)
        self.high = Fraction(0)
        self.pool = Fraction(0)
        self.pool_mark = Fraction(0)
        self.overrun = overrun
        self.roundings = 0

    @property
    def v(self) -> Fraction:
        if not self.members:
            return self.resting_v
        # Whole numbers over one denominator: a sum of fractions computes a common divisor at every step.
        common = math.lcm(*(party.v.denominator for party in self.members))
        total = sum(party.weight * party.v.numerator * (common // party.v.denominator) for party in self.members)
        return Fraction(total, common * sum(party.weight for party in self.members))

    def lag(self, party: Party) -> Fraction:
        return self.lags([party])[0]

    def lags(self, parties: Iterable[Party]) -> list[Fraction]:
        v = self.v
        return [party.weight * (v - (party.v if party.member else self.joining_v(party)[0])) for party in parties]

    def copied(self) -> Level:
        """An independent copy with copies of its parties."""
        of = {party: copy.copy(party) for party in (*self.parties, *self.members)}
        level = copy.copy(self)
        level.parties = [of[party] for party in self.parties]
        level.members = [of[party] for party in self.members]
        return level

    def least_v(self, party: Party) -> Fraction:
        """Credit counts from the maximum that V has reached: a party that joins with credit must not help others."""
        return self.high - Fraction(party.timeslice, party.weight)

    # ---- credit: what is out, and what may still be given (I4)

    def add(self, party: Party) -> None:
        self.settle_pool()
        self.parties.append(party)

    def remove(self, party: Party) -> None:
        """Remove a party, which is no longer ready."""
        if party.member:
            self.leave(party)
            self.settle()
        self.settle_pool()
        self.parties.remove(party)

    def settle_pool(self) -> None:
        asleep = sum(party.weight for party in self.parties if not party.member)
        self.pool += asleep * (self.high - self.pool_mark)
        self.pool_mark = self.high

    def credit_out(self) -> Fraction:
        return sum((party.weight * (self.high - party.v) for party in self.members), Fraction(0))

    def joining_v(self, party: Party) -> tuple[Fraction, Fraction]:
        """The v with which it joins, and the rest of the pool afterwards."""
        self.settle_pool()
        v = max(party.v, self.least_v(party))
        if v >= self.high - NO_CREDIT:
            return max(v, self.high), self.pool
        pool = min(self.pool, max(Fraction(0), party.timeslice - self.credit_out()))
        v = max(v, self.high - pool / party.weight)
        return v, pool - party.weight * (self.high - v)

    # ---- requests and service

    def new_request(self, party: Party) -> None:
        party.deadline = party.v + Fraction(party.timeslice + self.overrun, party.weight)

    def charge(self, party: Party, ns: int) -> None:
        left = Fraction(ns)
        weight = sum(member.weight for member in self.members)
        while sleepers := [m for m in self.members if not m.ready and not m.running]:
            first = min(sleepers, key=lambda m: m.v)
            until = max(Fraction(0), (first.v - self.v) * weight)
            if until > left:
                break
            party.v += until / party.weight
            left -= until
            self.leave(first)
            weight -= first.weight
        party.v += left / party.weight
        self.high = max(self.high, self.v)

    def leave(self, party: Party) -> None:
        self.roundings += 1
        self.resting_v = self.v
        self.high = max(self.high, self.v)
        self.settle_pool()
        self.pool += max(Fraction(0), party.weight * (self.high - party.v))
        self.members.remove(party)
        party.member = False
        if self.members:
            self.resting_v = self.v
        self.high = max(self.high, self.v)

    def settle(self) -> None:
        """Members that are neither ready nor running leave unless they are in debt."""
        gone = True
        while gone:
            v = self.v
            idle = (m for m in self.members if not m.ready and not m.running and m.v <= v)
            gone = False
            for party in idle:
                self.leave(party)
                gone = True
                break

    def set_ready(self, party: Party, ready: bool) -> None:
        if party.ready == ready:
            return
        party.ready = ready
        if ready and not party.member:
            self.join(party)
        if ready and not party.running:
            self.new_request(party)
        self.settle()

    def join(self, party: Party) -> None:
        self.roundings += 1
        v, self.pool = self.joining_v(party)
        party.v = on_grid(v)
        self.pool = on_grid(self.pool)
        party.member = True
        self.members.append(party)

    def resume(self, party: Party) -> None:
        """It has nothing to execute, and pays for the engine nevertheless."""
        if not party.member:
            self.join(party)
        self.new_request(party)
        party.running = True

    def put(self, party: Party, request_done: bool) -> None:
        party.running = False
        if request_done or party.v >= party.deadline:
            self.new_request(party)
        self.settle()

    def set_weight(self, party: Party, weight: int) -> None:
        self.roundings += 1
        self.settle_pool()
        v = self.v if party.member else self.high
        if not party.member and party.v < self.least_v(party):
            party.v = party.deadline = self.least_v(party)
        left = (party.deadline - party.v) * party.weight / weight
        party.v = on_grid(v - (v - party.v) * party.weight / weight)
        party.deadline = party.v + on_grid(left)
        party.weight = weight
        self.settle()

    def set_timeslice(self, party: Party, timeslice: int) -> None:
        if party.timeslice == timeslice:
            return
        party.timeslice = timeslice
        latest = party.v + Fraction(timeslice + self.overrun, party.weight)
        party.deadline = min(party.deadline, latest)


class Bucket:
    """R7: credit as a real number, refilled continuously."""

    def __init__(self, now: int) -> None:
        self.rate: Fraction | None = None
        self.burst = 0
        self.credit = Fraction(0)
        self.last = now
        self.resume_at: int | None = None
        self.since = 0
        self.throttles = 0
        self.throttled_ns = 0

    def refill(self, now: int) -> None:
        if self.rate is not None:
            self.credit = min(Fraction(self.burst), self.credit + self.rate * (now - self.last))
        self.last = now

    def use(self, ns: int, now: int) -> None:
        self.credit -= ns
        self.refill(now)

    def configure(self, params: CapParams, burst: int, now: int) -> None:
        self.refill(now)
        rate = Fraction(params.cap_ns, params.cap_period_ns) if params.cap_ns else None
        if self.rate is None:
            self.credit = Fraction(burst)
        elif rate != self.rate:
            self.credit = Fraction(math.floor(self.credit))
        self.rate = rate
        self.burst = burst
        self.credit = min(self.credit, Fraction(burst))

    def wait(self, target: int) -> int:
        if self.rate is None or self.credit >= target:
            return 0
        return math.ceil((target - self.credit) / self.rate)

    def lasts(self) -> int | None:
        if self.rate is None or self.rate == 1:
            return None
        return math.ceil(self.credit / (1 - self.rate)) if self.credit >= 1 else 0

    @property
    def empty(self) -> bool:
        return self.rate is not None and self.credit < 1

    def throttle_if_empty(self, resume_credit: int, now: int) -> None:
        if self.resume_at is not None:
            self.resume_at = now + self.wait(resume_credit)
        if self.resume_at is None and self.empty:
            self.resume_at = now + self.wait(resume_credit)
            self.since = now
            self.throttles += 1

    def unthrottle_if_due(self, now: int) -> None:
        if self.resume_at is not None and now >= self.resume_at:
            self.throttled_ns += self.resume_at - self.since
            self.resume_at = None
            self.refill(now)


@dataclass(eq=False)
class Reserve:
    """R6: a constant bandwidth server."""

    params: GroupParams
    budget: int = 0
    deadline: int = 0

    @property
    def exists(self) -> bool:
        return self.params.band is Band.LATENCY

    def configure(self, params: GroupParams, now: int) -> None:
        kept, self.params = self.exists and params.band is Band.LATENCY, params
        latest = now + params.reserve_period_ns
        self.budget = min(self.budget, params.reserve_ns) if kept else params.reserve_ns
        self.deadline = min(self.deadline, latest) if kept else latest

    def replenish(self, now: int) -> None:
        while self.exists and now >= self.deadline:
            self.budget = min(self.budget + self.params.reserve_ns, self.params.reserve_ns)
            self.deadline += self.params.reserve_period_ns

    def use(self, ns: int, now: int) -> None:
        """Budget that was due before these last `ns` does not pay debt made in them."""
        if self.budget <= 0:
            self.replenish(now - ns)
        self.budget -= ns

    def wake(self, now: int) -> None:
        if not self.exists:
            return
        self.replenish(now)
        fluid = Fraction(self.params.reserve_ns, self.params.reserve_period_ns) * (self.deadline - now)
        if self.budget > 0 and self.budget > fluid:
            self.budget = self.params.reserve_ns
            self.deadline = now + self.params.reserve_period_ns


BUCKETS = 64
SAMPLES = 8


def bucket_end(bucket: int) -> float:
    return histogram_bucket_start_ns(bucket + 1) if bucket < BUCKETS - 1 else math.inf


class Counts:
    """Counts by bucket; when one is full, all are halved."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS

    def add(self, ns: int) -> None:
        bucket = min(histogram_bucket(ns), BUCKETS - 1)
        if self.counts[bucket] == 255:
            self.counts = [count // 2 for count in self.counts]
        self.counts[bucket] += 1

    @property
    def known(self) -> list[tuple[int, int]]:
        """(bucket, count) in order, nothing if there are too few samples."""
        if sum(self.counts) < SAMPLES:
            return []
        return [(bucket, count) for bucket, count in enumerate(self.counts) if count]


@dataclass(eq=False)
class Predictor:
    """I15: the history of a group's kernels. Stories have so few kernels that none is ever forgotten."""

    durations: dict[int, Counts] = field(default_factory=lambda: defaultdict(Counts))
    gaps: dict[int, Counts] = field(default_factory=lambda: defaultdict(Counts))

    def duration(self, item: ItemInfo, longest: int) -> float:
        known = self.durations[item.kernel_id].known
        return bucket_end(known[-1][0]) if known else max(longest, item.hint_ns)

    def open_gaps(self, kernel_id: int, elapsed: int) -> list[tuple[int, int]]:
        """(least time left, count) of the gaps that are not over."""
        return [
            (max(0, histogram_bucket_start_ns(bucket) - elapsed), count)
            for bucket, count in self.gaps[kernel_id].known
            if bucket_end(bucket) > elapsed
        ]

    def inversion(self, kernel_id: int, elapsed: int, piece: int) -> float:
        gaps = self.open_gaps(kernel_id, elapsed)
        if not gaps:
            return math.inf
        delayed = sum(count * max(0, piece - left) for left, count in gaps)
        return math.ceil(Fraction(delayed, sum(count for _, count in gaps)))
