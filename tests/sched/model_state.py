# SPDX-License-Identifier: Apache-2.0
"""The model's state, how time changes it, and who can be picked; see `model`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from tests.sched.exact import Bucket, Level, Party, Predictor, Reserve
from vgpumgr.sched.core import Band, GroupParams, ItemInfo, Policy, SchedParams, SliceParams


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


class State:
    """The whole state of the core, as lists and fractions."""

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
        """The largest error of a lag by rounding: one ns for each rounding, and a few for the present one.

        The pool of credit is a weight times a stretch of virtual time. Each change of that weight rounds a unit of
        2^-14 ns away.
        """
        weight = sum(party.weight for party in level.parties)
        return Fraction((10 << 13) + level.roundings * ((2 << 13) + weight), 1 << 13)

    def lags(self, level: Level, parties: Sequence[Party]) -> list[tuple[Fraction, Fraction]]:
        """The lag of each party and its slack.

        A party outside the average has its lag against the maximum of V. When a heavy party leaves light ones alone,
        the rounding of its own v moves V further in proportion.
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

    # Overridden for leases: see `lease_model`.

    is_open = False

    def pass_runs(self, now: int) -> None:
        self.pass_time(now)

    def unpaid(self, _ns: int) -> int:
        """The part of that time that the owner does not pay."""
        return 0

    def recall(self) -> None:
        """Drop the prediction of who is chosen after the present run."""

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
        """Charge an inversion if another slice executed during a hold while the holder was ready."""
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
        """All are ghosts: every slice is charged an equal part."""
        slices = [one for group in self.groups for one in group.slices]
        part = ns // max(len(slices), self.params.places, 1)
        for one in slices:
            for party in (one, one.group):
                party.run_ns += part
            one.group.ghost_ns += part
        return part * len(slices)

    def timers(self) -> list[tuple[int, ModelSlice | ModelGroup]]:
        """The ends of the throttles that keep parties with an item from running."""
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

    def review_caps(self, owner: ModelSlice) -> None:
        owner.bucket.throttle_if_empty(owner.resume_credit, self.now)
        owner.group.bucket.throttle_if_empty(owner.group.resume_credit, self.now)
        self.refresh(owner)

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
