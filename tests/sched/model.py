# SPDX-License-Identifier: Apache-2.0
"""The rules of the scheduler once more, in exact arithmetic and without any cleverness.

`Model` is told every call that is made to the core and predicts what the core may answer. It
keeps no sums, trees or remainders: lists and fractions only, V is computed from its definition.
Where rounding can decide in the core (who is eligible, whose deadline is earlier) the model allows
an error of `slack` and takes over the choice; everything else must be equal to the nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tests.sched.exact import Bucket, Level, Party, Predictor, Reserve, on_grid
from vgpumgr.sched.core import (
    Band,
    CapParams,
    Decision,
    GroupParams,
    Idle,
    ItemInfo,
    Policy,
    RunReason,
    SchedParams,
    SliceParams,
)


@dataclass(eq=False)
class ModelGroup:
    party: Party
    params: GroupParams
    bucket: Bucket
    level: Level
    reserve: Reserve
    inversion: Bucket
    predictor: Predictor = field(default_factory=Predictor)
    slices: list[ModelSlice] = field(default_factory=list)
    rest: int = 0
    run_ns: int = 0
    latency_ns: int = 0
    hold_ns: int = 0
    inversion_ns: int = 0
    ghost_ns: int = 0

    @property
    def has_item(self) -> bool:
        return any(s.has_item for s in self.slices)

    @property
    def in_latency_band(self) -> bool:
        return self.party.ready and self.reserve.exists and self.reserve.budget > 0

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
    item: ItemInfo | None = None
    item_ns: int = 0
    more: bool = False
    done_kernel_id: int = 0
    done_at: int = 0
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
        self.holder: ModelSlice | None = None
        self.hold_since = 0
        self.hold_bound = 0
        self.holding = False
        self.parked = False
        self.has_ghosts = params.policy is not Policy.BEST_EFFORT
        floor = max(20 * params.switch_cost_ns, 10_000)
        self.unsold = Party("unsold", 1, max(floor, 1_000_000), Fraction(0), Fraction(0))
        self.weigh(None)
        self.run_band = Band.FAIR
        self.run_cuts = False
        self.run_charged = 0
        self.run_start = 0
        self.run_timeslice = 0
        self.calls = 0

    def slack(self, level: Level) -> Fraction:
        """How far rounding may have moved a lag: one ns for each rounding, and a few for now.

        The pool of credit is a weight times a stretch of virtual time, of which each change of that weight rounds
        a unit of 2^-14 ns away.
        """
        weight = sum(party.weight for party in level.parties)
        return Fraction((10 << 13) + level.roundings * ((2 << 13) + weight), 1 << 13)

    def lags(self, level: Level, parties: Sequence[Party]) -> list[tuple[Fraction, Fraction]]:
        """The lag of each party, and the slack of it.

        Who is outside the average has a lag against where V has been. When a heavy one leaves light ones alone, what
        was rounded of its own v moves V by so much more.
        """
        slack = self.slack(level)
        weights = [party.weight for party in level.parties]
        outside = Fraction(level.roundings * max(weights), min(weights) * 2**14) if weights else Fraction(0)
        return [
            (lag, slack if party.member else slack + party.weight * outside)
            for party, lag in zip(parties, level.lags(parties), strict=True)
        ]

    # ---- time

    def advance(self, now: int) -> None:
        self.calls += 1
        while True:
            due = [t for t in self.timers() if t[0] <= now]
            if not due:
                break
            when, what = min(due, key=lambda t: t[0])
            self.pass_runs(when)
            self.refresh(what)
        self.pass_runs(now)

    # What leases add: see `lease_model`.

    is_open = False

    def pass_runs(self, now: int) -> None:
        self.pass_time(now)

    def unpaid(self, _ns: int) -> int:
        """Of that time, what the owner does not pay."""
        return 0

    def recall(self) -> None:
        """Nobody knows any more who is chosen after the present run."""

    def pass_time(self, now: int) -> None:
        ns = now - self.now
        if ns <= 0:
            return
        self.now = now
        if self.parked:
            ns -= self.park(ns)
        if self.holding:
            late = min(ns, max(0, now - self.hold_bound))
            self.idle_ns += late
            ns -= late
        if self.owner is not None:
            unpaid = self.unpaid(ns)
            self.idle_ns += unpaid
            ns -= unpaid
        self.run_charged += ns
        if self.owner is None:
            self.idle_ns += ns
            if self.unsold.running:
                self.level.charge(self.unsold, ns)
            return
        group = self.owner.group
        self.owner.run_ns += ns
        group.run_ns += ns
        group.level.charge(self.owner.party, ns)
        self.owner.bucket.use(ns, now)
        self.level.charge(group.party, ns)
        group.bucket.use(ns, now)
        if self.owner.has_item:
            self.owner.item_ns += ns
        elif self.has_ghosts:
            group.ghost_ns += ns
        if self.run_band is Band.LATENCY and not self.is_open:
            group.reserve.use(ns, now)
            group.latency_ns += ns
        if self.holding:
            group.hold_ns += ns
        elif self.holder is not None:
            self.invert(self.holder.group, ns)

    def invert(self, holder: ModelGroup, ns: int) -> None:
        """Somebody executed during a hold: was the holder ready?"""
        holder.inversion.refill(self.now - ns)
        if self.run_band is Band.FAIR and holder.party.ready:
            holder.inversion_ns += ns
            holder.inversion.use(ns, self.now)
        holder.inversion.refill(self.now)

    # ---- turns that are not given away

    def weigh(self, group: ModelGroup | None) -> None:
        self.recall()
        if not self.has_ghosts:
            return
        if group is not None:
            self.level.set_weight(group.party, max(1, len(group.slices)))
        unsold = max(0, self.params.places - sum(len(g.slices) for g in self.groups))
        if unsold:
            self.level.set_weight(self.unsold, unsold)
        self.level.set_ready(self.unsold, unsold > 0)

    def park(self, ns: int) -> int:
        """All are ghosts: what is charged to slices, an equal part to each."""
        slices = [one for group in self.groups for one in group.slices]
        part = ns // max(len(slices), self.params.places, 1)
        for one in slices:
            for party in (one, one.group):
                party.run_ns += part
            one.group.ghost_ns += part
        return part * len(slices)

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
            ready = (what.has_item or self.has_ghosts) and what.bucket.resume_at is None
            self.set_ready(what.group.level, what.party, ready)
            what = what.group
        what.bucket.unthrottle_if_due(self.now)
        ready = any(s.party.ready for s in what.slices) and what.bucket.resume_at is None
        if ready and not what.party.ready:
            what.reserve.wake(self.now)
        elif not ready:
            what.rest = 0
        self.set_ready(self.level, what.party, ready)

    def set_ready(self, level: Level, party: Party, ready: bool) -> None:
        changed = party.ready != ready
        level.set_ready(party, ready)
        if changed:
            self.recall()

    # ---- calls

    def add_group(self, name: str, params: GroupParams, now: int) -> ModelGroup:
        self.advance(now)
        v = on_grid(self.level.high)
        party = Party(name, 1 if self.has_ghosts else params.weight, params.timeslice_ns, v, v)
        group = ModelGroup(party, params, Bucket(self.now), Level(self.overrun), Reserve(params), Bucket(self.now))
        group.reserve.deadline = self.now + params.reserve_period_ns
        group.reserve.budget = params.reserve_ns
        self.configure_inversion(group)
        group.bucket.configure(params, params.burst_ns or params.timeslice_ns, self.now)
        self.groups.append(group)
        self.level.add(party)
        return group

    def configure_inversion(self, group: ModelGroup) -> None:
        params = group.params
        rate = CapParams(cap_ns=params.inversion_permille, cap_period_ns=1000)
        group.inversion.configure(rate, params.inversion_burst_ns or self.params.max_chunk_ns, self.now)

    def update_group(self, group: ModelGroup, params: GroupParams, now: int) -> None:
        self.advance(now)
        group.params = params
        if group.reserve.budget <= 0:
            group.reserve.replenish(self.now)
        group.reserve.configure(params, self.now)
        self.configure_inversion(group)
        group.bucket.configure(params, params.burst_ns or params.timeslice_ns, self.now)
        if group.bucket.resume_at is not None:
            group.bucket.resume_at = self.now + group.bucket.wait(group.resume_credit)
        self.level.set_timeslice(group.party, params.timeslice_ns)
        if not self.has_ghosts:
            self.level.set_weight(group.party, params.weight)
        self.refresh(group)
        self.recall()
        self.bound_hold()

    def remove_group(self, group: ModelGroup, now: int) -> None:
        self.advance(now)
        self.groups.remove(group)
        self.level.remove(group.party)

    def add_slice(self, group: ModelGroup, name: str, params: SliceParams, now: int) -> ModelSlice:
        self.advance(now)
        v = on_grid(group.level.high)
        party = Party(name, 1 if self.has_ghosts else params.weight, group.params.timeslice_ns, v, v)
        new = ModelSlice(party, params, Bucket(self.now), group)
        new.bucket.configure(params, params.burst_ns or group.params.timeslice_ns, self.now)
        group.slices.append(new)
        group.level.add(party)
        self.weigh(group)
        self.refresh(new)
        return new

    def update_slice(self, target: ModelSlice, params: SliceParams, now: int) -> None:
        self.advance(now)
        target.params = params
        self.configure_slice_bucket(target)
        if not self.has_ghosts:
            target.group.level.set_weight(target.party, params.weight)
        self.refresh(target)
        self.recall()
        self.bound_hold()

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
        if self.holder is target:
            self.pause_hold()
            self.holder = None
        if self.owner is target:
            self.review_caps(target)
            self.end_run(RunReason.REMOVED)
        self.set_item(target, False)
        target.group.level.set_ready(target.party, False)
        target.group.level.remove(target.party)
        target.group.slices.remove(target)
        self.weigh(target.group)
        self.refresh(target.group)

    def overdraw(self, target: ModelSlice, ns: int) -> None:
        """Caps and what ends their throttles, after so much use that nobody saw."""
        for bucket, credit in (
            (target.bucket, target.resume_credit),
            (target.group.bucket, target.group.resume_credit),
        ):
            bucket.refill(self.now)
            bucket.credit -= ns if bucket.rate is not None else 0
            bucket.throttle_if_empty(credit, self.now)
        self.refresh(target)

    def wake(self, target: ModelSlice, now: int, item: ItemInfo | None = None) -> None:
        self.advance(now)
        if target.more and not target.has_item:
            target.group.predictor.gaps[target.done_kernel_id].add(self.now - target.done_at)
        self.set_item(target, True)
        if item is not None:
            target.item = item

    def item_done(self, target: ModelSlice, now: int, next_item: ItemInfo | None) -> None:
        self.advance(now)
        predictor, item = target.group.predictor, target.item
        target.more, target.done_at = item is not None and item.more, self.now
        if item is not None:
            predictor.durations[item.kernel_id].add(target.item_ns)
            target.done_kernel_id = item.kernel_id
        target.item_ns = 0
        if next_item is None:
            self.set_item(target, False)
            return
        if target.more:
            predictor.gaps[target.done_kernel_id].add(0)
        target.item = next_item

    def end_request(self, target: ModelSlice, now: int) -> None:
        self.advance(now)
        target.more = False
        self.bound_hold()

    def sleep(self, target: ModelSlice, now: int) -> None:
        self.advance(now)
        if target.has_item:
            target.more = False
        self.set_item(target, False)

    def set_item(self, target: ModelSlice, has_item: bool) -> None:
        if target.has_item == has_item:
            return
        target.has_item = has_item
        target.item, target.item_ns = None, 0
        self.follow_group(target)
        self.refresh(target)

    # ---- the pick

    def review_caps(self, owner: ModelSlice) -> None:
        owner.bucket.throttle_if_empty(owner.resume_credit, self.now)
        owner.group.bucket.throttle_if_empty(owner.group.resume_credit, self.now)
        self.refresh(owner)

    def end_run(self, reason: RunReason) -> None:
        assert self.owner is not None
        group, slice_party = self.owner.group, self.owner.party
        if self.run_cuts:
            group.reserve.use(self.params.switch_cost_ns, self.now)
            self.run_cuts = False
        done = reason is RunReason.TIMESLICE
        if self.run_band is Band.FAIR:
            left = self.run_timeslice - self.run_charged if reason is RunReason.LATENCY else 0
        else:
            left = max(0, (group.rest or group.params.timeslice_ns) - self.run_charged)
        group.rest = left if group.party.ready else 0
        self.owner = None
        group.level.put(slice_party, done)
        self.level.put(group.party, done if self.run_band is Band.FAIR else not left)
        self.run_band = Band.FAIR

    def first_deadline(self) -> int | None:
        return min((g.reserve.deadline for g in self.groups if g.in_latency_band), default=None)

    def why_run_is_over(self, owner: ModelSlice) -> RunReason | None:
        """R9: these and no others end a run."""
        group = owner.group
        if self.run_charged >= self.run_timeslice:
            return RunReason.TIMESLICE
        if not any(g.has_item for g in (self.groups if self.has_ghosts else [group])):
            return RunReason.DRY
        if not group.party.ready:
            return RunReason.CAP
        if self.run_band is Band.LATENCY and group.reserve.budget <= 0:
            return RunReason.BUDGET
        first = self.first_deadline()
        if first is not None and (self.run_band is Band.FAIR or first < group.reserve.deadline):
            return RunReason.LATENCY
        return None

    def picked(self, now: int, decision: Decision, chosen: ModelSlice | None, payer: ModelSlice | None = None) -> None:
        """The core has decided `decision`, which gives the engine to `chosen`, or its idling to `payer`."""
        self.advance(now)
        for group in self.groups:
            if group.party.ready and group.reserve.budget <= 0:
                group.reserve.replenish(self.now)
        self.pause_hold()
        self.review_hold()
        if self.owner is not None:
            self.review_run(self.owner, decision, chosen or payer)
        elif self.unsold.running:
            self.review_unsold()
        self.parked = False
        taken = chosen or payer
        if self.owner is None and not self.unsold.running:
            self.begin(decision, chosen, payer)
        elif self.owner is not None:
            assert taken is self.owner
        if chosen is not None:
            assert chosen.has_item
            assert decision.band is self.run_band
            self.check_limit(decision, chosen)
        elif decision.idle is Idle.GHOST:
            assert self.has_ghosts
            assert decision.wake_at_ns == self.now + self.run_timeslice - self.run_charged
            assert self.owner is payer

    # ---- runs

    def review_run(self, owner: ModelSlice, decision: Decision, taken: ModelSlice | None) -> None:
        self.review_caps(owner)
        group = owner.group
        reason = self.why_run_is_over(owner)
        start, charged, timeslice = self.run_start, self.run_charged, self.run_timeslice
        if reason is None:
            ended = decision.ended
            if not owner.party.ready:
                group.level.put(owner.party, False)
                if ended is None:
                    assert taken is not None
                    assert taken.group is group, "the engine changed hands within a run"
                    self.take_slice(taken)
                else:  # which slice was refused at the gate cannot be seen, nor does it matter
                    self.owner = next(s for s in group.slices if s.party.ready)
            elif ended is None:
                assert taken is owner, "a slice lost the engine within its stay"
            if self.run_band is Band.FAIR and self.holder is not None:
                assert self.owner is not None
                passes = self.gate_allows(self.owner) > 0
                if ended is None:
                    assert passes, "an item passed the gate that does not fit"
                else:
                    assert not passes or self.owner is not owner
                    reason = RunReason.LATENCY
        if reason is None:
            assert decision.ended is None, "a run was cut for no reason"
            return
        assert decision.ended is not None, f"the run should have ended: {reason.name}"
        assert decision.ended.reason is reason
        assert decision.ended.length_ns == charged, f"{decision.ended} {charged} {start} {timeslice} {reason}"
        assert decision.ended.start_ns == start
        assert decision.ended.timeslice_ns == timeslice
        self.end_run(reason)
        if self.holder is None and not group.has_item and self.may_hold(owner):
            self.holder = owner
            self.configure_inversion(group)
            self.hold_since = self.now

    def review_unsold(self) -> None:
        over = self.run_charged >= self.run_timeslice
        if over or not self.unsold.ready or not any(g.has_item for g in self.groups):
            self.level.put(self.unsold, over)

    def begin(self, decision: Decision, chosen: ModelSlice | None, payer: ModelSlice | None) -> None:
        """Nobody has the engine, so somebody was chosen, in the order of R2."""
        first = self.first_deadline()
        taken = chosen or payer
        if first is not None:
            assert chosen is not None
            assert chosen.group.in_latency_band, "band L was passed over"
            assert chosen.group.reserve.deadline == first
            self.run_cuts = decision.ended is not None and decision.ended.reason is RunReason.LATENCY
            self.begin_run(chosen, Band.LATENCY)
        elif self.holder is not None:
            self.begin_in_hold(self.holder, decision, chosen, payer)
        elif self.has_ghosts and not any(g.has_item for g in self.groups):
            assert (taken, decision.idle, decision.wake_at_ns) == (None, Idle.EMPTY, None)
            self.parked = True
        elif taken is not None:
            self.check_choice(self.level, taken.group.party)
            self.begin_run(taken, Band.FAIR)
        elif decision.idle is Idle.GHOST:
            self.check_choice(self.level, self.unsold)
            self.run_charged = 0
            self.run_timeslice = self.unsold.timeslice
        else:
            assert not any(g.party.ready for g in self.groups), "idle while a group is ready"
            times = [t for t, _ in self.timers()]
            assert decision.wake_at_ns == (min(times) if times else None)

    def begin_run(self, taken: ModelSlice, band: Band) -> None:
        group = taken.group
        self.run_band = band
        self.run_start = self.now
        self.run_charged = 0
        self.run_timeslice = group.params.timeslice_ns
        if band is Band.FAIR and group.rest:
            self.run_timeslice = min(self.run_timeslice, group.rest)
        group.party.running = True
        group.bucket.refill(self.now)
        self.take_slice(taken)

    def take_slice(self, taken: ModelSlice) -> None:
        self.check_choice(taken.group.level, taken.party)
        self.follow_group(taken)
        taken.bucket.refill(self.now)
        self.owner = taken

    # ---- hold and gap gate

    def may_hold(self, one: ModelSlice) -> bool:
        group = one.group
        return (
            one.more
            and group.params.hold_max_ns > 0
            and not group.has_item
            and group.reserve.budget > 0
            and group.bucket.resume_at is None
            and one.bucket.resume_at is None
        )

    def hold_end(self, holder: ModelSlice) -> int:
        return self.hold_since + holder.group.params.hold_max_ns

    def bound_hold(self) -> None:
        """For how long the holder pays at most, by the terms of now."""
        if not self.holding or self.holder is None:
            return
        group = self.holder.group
        for bucket in (self.holder.bucket, group.bucket):
            bucket.refill(self.now)
        lasts = [self.hold_end(self.holder) - self.now, group.reserve.budget]
        lasts += [ns for bucket in (self.holder.bucket, group.bucket) if (ns := bucket.lasts()) is not None]
        self.hold_bound = self.now + (max(0, min(lasts)) if self.may_hold(self.holder) else 0)

    def review_hold(self) -> None:
        if self.holder is None:
            return
        self.holder.group.inversion.refill(self.now)
        if self.now >= self.hold_end(self.holder) or not self.may_hold(self.holder):
            self.holder = None

    def pause_hold(self) -> None:
        if not self.holding:
            return
        assert self.owner is not None
        self.review_caps(self.owner)
        self.holding = False
        one, self.owner, self.run_band = self.owner, None, Band.FAIR
        one.group.level.put(one.party, True)
        self.level.put(one.group.party, True)

    def begin_in_hold(
        self, holder: ModelSlice, decision: Decision, chosen: ModelSlice | None, payer: ModelSlice | None
    ) -> None:
        """Which of several items passes is the core's choice; that it passes is not."""
        if chosen is not None:
            assert self.level.lag(chosen.group.party) >= -self.slack(self.level)
            assert self.gate_allows(chosen) > 0, "an item passed the gate that does not fit"
            self.begin_run(chosen, Band.FAIR)
            return
        assert decision.idle is Idle.HOLD
        assert payer is holder
        ready = [g for g in self.groups if g.party.ready]
        if len(ready) == 1 and len(ready[0].slices) == 1:
            assert not self.gate_allows(ready[0].slices[0]), "an item that fits did not pass the gate"
        assert decision.wake_at_ns is not None
        group = holder.group
        self.holding = True
        self.bound_hold()
        assert self.now < decision.wake_at_ns <= self.hold_bound
        self.run_band = Band.LATENCY
        self.owner = holder
        group.level.resume(holder.party)
        self.level.resume(group.party)

    def gate_allows(self, one: ModelSlice) -> float:
        """R5: the longest piece of `one` that may begin now."""
        if self.holder is None:
            return math.inf
        group, longest = self.holder.group, self.params.max_chunk_ns
        credit = math.floor(group.inversion.credit)
        if not group.params.inversion_permille or credit < 0:
            return 0
        duration = one.group.predictor.duration(one.item, longest) if one.item else longest
        piece = int(min(duration - one.item_ns, longest)) if duration > one.item_ns else longest
        elapsed = self.now - self.holder.done_at
        kernel = self.holder.done_kernel_id
        if group.predictor.inversion(kernel, elapsed, piece) <= credit:
            return piece
        gaps = group.predictor.open_gaps(kernel, elapsed)
        least = gaps[0][0] if gaps else 0
        return least if self.params.splits and least >= self.params.min_chunk_ns else 0

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
        limits: list[float] = [self.run_timeslice - self.run_charged]
        if self.run_band is Band.LATENCY:
            limits.append(chosen.group.reserve.budget)
        else:
            limits.append(self.gate_allows(chosen))
        for bucket in (chosen.bucket, chosen.group.bucket):
            lasts = bucket.lasts()
            if lasts is not None:
                limits.append(lasts)
        expected = min(max(min(limits), self.params.min_chunk_ns), self.params.max_chunk_ns)
        assert decision.limit_ns == expected
