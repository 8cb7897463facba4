# SPDX-License-Identifier: Apache-2.0
"""The rules of the scheduler once more, in exact arithmetic and without any cleverness.

`Model` is told every call that is made to the core and predicts what the core may answer. It
keeps no sums, trees or remainders: lists and fractions only, V is computed from its definition.
Where rounding can decide in the core (who is eligible, whose deadline is earlier) the model allows
an error of `slack` and takes over the choice; everything else must be equal to the nanosecond.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from vgpumgr.sched.core import CapParams, Decision, GroupParams, RunReason, SchedParams, SliceParams

# Values that came out of a division by a sum of weights are rounded to this grid, or the
# denominators grow without limit.
GRID = 2**70


def on_grid(value: Fraction) -> Fraction:
    return Fraction(round(value * GRID), GRID)


@dataclass(eq=False)
class Party:
    """What a group is among groups and a slice among the slices of its group."""

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
        self.members: list[Party] = []
        self.resting_v = Fraction(0)
        self.high = Fraction(0)
        self.overrun = overrun
        self.roundings = 0

    @property
    def v(self) -> Fraction:
        if not self.members:
            return self.resting_v
        weight = sum(party.weight for party in self.members)
        return sum((party.weight * party.v for party in self.members), Fraction(0)) / weight

    def lag(self, party: Party) -> Fraction:
        v = self.v
        if not party.member:
            return party.weight * (v - max(party.v, self.least_v(party)))
        return party.weight * (v - party.v)

    def least_v(self, party: Party) -> Fraction:
        """Credit counts from the furthest V has been: one joining with credit must not help others."""
        return self.high - Fraction(party.timeslice, party.weight)

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
        self.resting_v = self.v
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
            self.roundings += 1
            party.v = max(party.v, on_grid(self.least_v(party)))
            if party.deadline <= party.v:
                self.new_request(party)
            party.member = True
            self.members.append(party)
        self.settle()

    def put(self, party: Party, request_done: bool) -> None:
        party.running = False
        if request_done or party.v >= party.deadline:
            self.new_request(party)
        self.settle()

    def set_weight(self, party: Party, weight: int) -> None:
        self.roundings += 1
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
class ModelGroup:
    party: Party
    params: GroupParams
    bucket: Bucket
    level: Level
    slices: list[ModelSlice] = field(default_factory=list)
    run_ns: int = 0

    @property
    def resume_credit(self) -> int:
        return min(self.params.timeslice_ns, self.bucket.burst)


@dataclass(eq=False)
class ModelSlice:
    party: Party
    params: SliceParams
    bucket: Bucket
    group: ModelGroup
    has_item: bool = False
    run_ns: int = 0

    @property
    def resume_credit(self) -> int:
        return min(self.group.params.timeslice_ns, self.bucket.burst)


class Model:
    """Told the same calls as the core; `picked()` raises AssertionError if the core broke a rule."""

    def __init__(self, params: SchedParams, now: int) -> None:
        self.params = params
        self.overrun = params.min_chunk_ns if params.splits else params.max_chunk_ns
        self.level = Level(self.overrun)
        self.groups: list[ModelGroup] = []
        self.start = now
        self.now = now
        self.idle_ns = 0
        self.owner: ModelSlice | None = None
        self.run_start = 0
        self.run_timeslice = 0
        self.calls = 0

    def slack(self, level: Level) -> Fraction:
        """How far rounding may have moved a lag: one ns for each rounding, and a few for now."""
        return Fraction(10 + 2 * level.roundings)

    # ---- time

    def advance(self, now: int) -> None:
        self.calls += 1
        while True:
            due = [t for t in self.timers() if t[0] <= now]
            if not due:
                break
            when, what = min(due, key=lambda t: t[0])
            self.pass_time(when)
            self.refresh(what)
        self.pass_time(now)

    def pass_time(self, now: int) -> None:
        ns = now - self.now
        if ns <= 0:
            return
        self.now = now
        if self.owner is None:
            self.idle_ns += ns
            return
        group = self.owner.group
        self.owner.run_ns += ns
        group.run_ns += ns
        group.level.charge(self.owner.party, ns)
        self.owner.bucket.use(ns, now)
        self.level.charge(group.party, ns)
        group.bucket.use(ns, now)

    def timers(self) -> list[tuple[int, ModelSlice | ModelGroup]]:
        """Ends of those throttles that keep somebody with an item from running."""
        timers: list[tuple[int, ModelSlice | ModelGroup]] = []
        for group in self.groups:
            if group.bucket.resume_at is not None and any(s.party.ready for s in group.slices):
                timers.append((group.bucket.resume_at, group))
            timers += [(s.bucket.resume_at, s) for s in group.slices if s.bucket.resume_at is not None and s.has_item]
        return timers

    # ---- who can be picked

    def refresh(self, what: ModelSlice | ModelGroup) -> None:
        if isinstance(what, ModelSlice):
            what.bucket.unthrottle_if_due(self.now)
            ready = what.has_item and what.bucket.resume_at is None
            what.group.level.set_ready(what.party, ready)
            what = what.group
        what.bucket.unthrottle_if_due(self.now)
        ready = any(s.party.ready for s in what.slices) and what.bucket.resume_at is None
        self.level.set_ready(what.party, ready)

    # ---- calls

    def add_group(self, name: str, params: GroupParams, now: int) -> ModelGroup:
        self.advance(now)
        v = on_grid(self.level.high)
        party = Party(name, params.weight, params.timeslice_ns, v, v)
        group = ModelGroup(party, params, Bucket(self.now), Level(self.overrun))
        group.bucket.configure(params, params.burst_ns or params.timeslice_ns, self.now)
        self.groups.append(group)
        return group

    def update_group(self, group: ModelGroup, params: GroupParams, now: int) -> None:
        self.advance(now)
        group.params = params
        group.bucket.configure(params, params.burst_ns or params.timeslice_ns, self.now)
        if group.bucket.resume_at is not None:
            group.bucket.resume_at = self.now + group.bucket.wait(group.resume_credit)
        self.level.set_timeslice(group.party, params.timeslice_ns)
        self.level.set_weight(group.party, params.weight)
        self.refresh(group)

    def remove_group(self, group: ModelGroup, now: int) -> None:
        self.advance(now)
        self.groups.remove(group)
        if group.party.member:
            self.level.leave(group.party)
            self.level.settle()

    def add_slice(self, group: ModelGroup, name: str, params: SliceParams, now: int) -> ModelSlice:
        self.advance(now)
        v = on_grid(group.level.high)
        party = Party(name, params.weight, group.params.timeslice_ns, v, v)
        new = ModelSlice(party, params, Bucket(self.now), group)
        new.bucket.configure(params, params.burst_ns or group.params.timeslice_ns, self.now)
        group.slices.append(new)
        return new

    def update_slice(self, target: ModelSlice, params: SliceParams, now: int) -> None:
        self.advance(now)
        target.params = params
        self.configure_slice_bucket(target)
        target.group.level.set_weight(target.party, params.weight)
        self.refresh(target)

    def configure_slice_bucket(self, target: ModelSlice) -> None:
        burst = target.params.burst_ns or target.group.params.timeslice_ns
        target.bucket.configure(target.params, burst, self.now)
        if target.bucket.resume_at is not None:
            target.bucket.resume_at = self.now + target.bucket.wait(target.resume_credit)

    def follow_group(self, target: ModelSlice) -> None:
        timeslice = target.group.params.timeslice_ns
        if target.party.timeslice != timeslice:
            target.group.level.set_timeslice(target.party, timeslice)
            self.configure_slice_bucket(target)

    def remove_slice(self, target: ModelSlice, now: int) -> None:
        self.advance(now)
        if self.owner is target:
            self.review_caps(target)
            self.end_run(request_done=False)
        self.set_item(target, False)
        if target.party.member:
            target.group.level.leave(target.party)
            target.group.level.settle()
        target.group.slices.remove(target)

    def wake(self, target: ModelSlice, now: int) -> None:
        self.advance(now)
        self.set_item(target, True)

    def sleep(self, target: ModelSlice, now: int) -> None:
        self.advance(now)
        self.set_item(target, False)

    def set_item(self, target: ModelSlice, has_item: bool) -> None:
        if target.has_item == has_item:
            return
        target.has_item = has_item
        self.follow_group(target)
        self.refresh(target)

    # ---- the pick

    def review_caps(self, owner: ModelSlice) -> None:
        owner.bucket.throttle_if_empty(owner.resume_credit, self.now)
        owner.group.bucket.throttle_if_empty(owner.group.resume_credit, self.now)
        self.refresh(owner)

    def end_run(self, *, request_done: bool) -> None:
        assert self.owner is not None
        group = self.owner.group
        group.level.put(self.owner.party, request_done)
        self.level.put(group.party, request_done)
        self.owner = None

    def why_run_is_over(self, owner: ModelSlice) -> RunReason | None:
        """R9: these and no others end a run."""
        if self.now - self.run_start >= self.run_timeslice:
            return RunReason.TIMESLICE
        if not any(s.has_item for s in owner.group.slices):
            return RunReason.DRY
        if not owner.group.party.ready:
            return RunReason.CAP
        return None

    def picked(self, now: int, decision: Decision, chosen: ModelSlice | None) -> None:
        """The core has decided `decision`, which gives the engine to `chosen`."""
        self.advance(now)
        owner = self.owner
        stays = False
        if owner is not None:
            self.review_caps(owner)
            reason = self.why_run_is_over(owner)
            if reason is not None:
                assert decision.ended is not None, f"the run should have ended: {reason.name}"
                assert decision.ended.reason is reason
                assert decision.ended.length_ns == self.now - self.run_start
                assert decision.ended.timeslice_ns == self.run_timeslice
                self.end_run(request_done=reason is RunReason.TIMESLICE)
            else:
                assert decision.ended is None, "a run was cut for no reason"
                assert chosen is not None
                assert chosen.group is owner.group, "the engine changed hands within a run"
                stays = owner.party.ready
                if stays:
                    assert chosen is owner, "a slice lost the engine within its stay"
                else:
                    owner.group.level.put(owner.party, False)
        if chosen is None:
            assert not any(g.party.ready for g in self.groups), "idle while a group is ready"
            times = [t for t, _ in self.timers()]
            assert decision.wake_at_ns == (min(times) if times else None)
            return
        if self.owner is None:
            self.check_choice(self.level, chosen.group.party)
            self.run_start = self.now
            self.run_timeslice = chosen.group.params.timeslice_ns
            chosen.group.bucket.refill(self.now)
        if not stays:
            self.check_choice(chosen.group.level, chosen.party)
            self.follow_group(chosen)
            chosen.bucket.refill(self.now)
        self.owner = chosen
        self.check_limit(decision, chosen)

    def check_choice(self, level: Level, chosen: Party) -> None:
        """R2: the earliest deadline among the eligible, as exactly as rounding allows."""
        slack = self.slack(level)
        assert chosen.ready, f"{chosen.name} is not ready"
        lag = level.lag(chosen)
        assert lag >= -slack, f"{chosen.name} was picked in debt of {float(-lag)} ns"
        v = level.v
        for other in level.members:
            if other is chosen or not other.ready or other.weight * (v - other.v) < slack:
                continue
            tolerance = slack / other.weight + slack / chosen.weight
            assert chosen.deadline <= other.deadline + tolerance, (
                f"{chosen.name} was picked, but {other.name} is eligible and"
                f" {float(chosen.deadline - other.deadline)} earlier"
            )
        chosen.running = True

    def check_limit(self, decision: Decision, chosen: ModelSlice) -> None:
        limits = [max(0, self.run_timeslice - (self.now - self.run_start))]
        for bucket in (chosen.bucket, chosen.group.bucket):
            lasts = bucket.lasts()
            if lasts is not None:
                limits.append(lasts)
        expected = min(max(min(limits), self.params.min_chunk_ns), self.params.max_chunk_ns)
        assert decision.limit_ns == expected
