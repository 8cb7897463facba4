# SPDX-License-Identifier: Apache-2.0
"""The core's possible decisions: who is picked, for how long, and why a run ends; see `model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sched.model_holds import Holds
from vgpumgr.sched.core import Band, Decision, Idle, RunReason

if TYPE_CHECKING:
    from tests.sched.model_state import ModelSlice


class Runs(Holds):
    """`picked()` raises AssertionError if the core broke a rule."""

    def picked(self, now: int, decision: Decision, chosen: ModelSlice | None, payer: ModelSlice | None = None) -> None:
        """Check `decision` of the core, which gives the engine to `chosen`, or charges its idle time to `payer`."""
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

    def first_deadline(self) -> int | None:
        return min((g.reserve.deadline for g in self.groups if g.in_latency_band), default=None)

    def why_run_is_over(self, owner: ModelSlice) -> RunReason | None:
        """R9: the only reasons for the end of a run."""
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
                else:  # it cannot be seen which slice was refused at the gate, and it does not matter
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

    def review_unsold(self) -> None:
        over = self.run_charged >= self.run_timeslice
        if over or not self.unsold.ready or not any(g.has_item for g in self.groups):
            self.level.put(self.unsold, over)

    # ---- beginning

    def begin(self, decision: Decision, chosen: ModelSlice | None, payer: ModelSlice | None) -> None:
        """Nobody had the engine, so the core chose a slice in the order of R2."""
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

    def begin_in_hold(
        self, holder: ModelSlice, decision: Decision, chosen: ModelSlice | None, payer: ModelSlice | None
    ) -> None:
        """The core may choose which of several items passes, but one has to pass."""
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
