# SPDX-License-Identifier: Apache-2.0
"""A second implementation of leases (invariant 18), like `model`: it gets every call and predicts the core's answers.

The core may choose whether to prolong a lease where rounding, or sleepers in debt, can decide it. That the slice would
really have been chosen again is checked when the run before ends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from tests.sched.model import Model, ModelGroup, ModelSlice
from vgpumgr.sched.core import Band, Decision, ItemInfo, Lease, RunReason, SchedParams, Yield

if TYPE_CHECKING:
    from tests.sched.exact import Level, Party

FILL_SWITCHES = 2


@dataclass
class Loan:
    """A lease; `until` is None while it has no end."""

    begun: int
    gap_end: float
    until: int | None
    kept: bool = False


@dataclass(frozen=True)
class Ended:
    group: str
    start: int
    length: int
    timeslice: int
    reason: RunReason


class LeaseModel(Model):
    def __init__(self, params: SchedParams, now: int) -> None:
        self.loan: Loan | None = None
        self.returned = False
        self.unused_ns = 0
        self.ended: Ended | None = None
        self.run_counts: Counter[str] = Counter()
        self.debts: Counter[str] = Counter()
        super().__init__(params, now)

    # ---- time

    @property
    def is_open(self) -> bool:  # type: ignore[override]
        return self.loan is not None and self.loan.until is None

    @property
    def run_end(self) -> int:
        return self.now + self.unused_ns + max(0, self.run_timeslice - self.run_charged)

    @property
    def is_alone(self) -> bool:
        assert self.owner is not None
        parties = [p for level in (self.level, self.owner.group.level) for p in level.parties if p.ready]
        both = self.owner.party.ready and self.owner.group.party.ready
        return both and len(parties) == 2 and not self.unsold.ready and self.holder is None

    def pass_runs(self, now: int) -> None:
        while (loan := self.loan) is not None and (end := self.run_end) <= now:
            if not (self.is_alone if loan.until is None else loan.kept):
                break
            loan.kept = False
            self.pass_time(end)
            assert self.owner is not None
            self.review_caps(self.owner)
            if self.owner.party.ready and self.owner.group.party.ready:
                self.begin_again(RunReason.TIMESLICE, self.run_band)
            else:
                loan.until = self.now
        self.pass_time(now)

    def unpaid(self, ns: int) -> int:
        if self.returned:
            return ns
        unused = min(ns, self.unused_ns)
        self.unused_ns -= unused
        return unused

    def recall(self) -> None:
        if self.loan is not None and self.loan.kept:
            self.loan.until = max(self.run_end, self.loan.begun + self.params.min_chunk_ns)
            self.loan.kept = False

    def end_run(self, reason: RunReason) -> None:
        assert self.owner is not None
        self.ended = Ended(self.owner.group.party.name, self.run_start, self.run_charged, self.run_timeslice, reason)
        self.run_counts[self.owner.group.party.name] += 1
        if reason is RunReason.REMOVED:
            self.loan, self.returned = None, False
        super().end_run(reason)

    def remove_group(self, group: ModelGroup, now: int) -> None:
        if self.ended is not None and self.ended.group == group.party.name:
            self.ended = None
        super().remove_group(group, now)

    def begin_again(self, reason: RunReason, band: Band) -> None:
        """The owner's run is over; check that it is chosen again, as the core predicted."""
        owner = self.owner
        assert owner is not None
        self.end_run(reason)
        if band is Band.LATENCY and not self.is_open:
            assert owner.group.in_latency_band
            assert owner.group.reserve.deadline == self.first_deadline()
            owner.group.party.running = True
        elif not self.is_open:
            assert self.first_deadline() is None, "band L was passed over"
            self.check_choice(self.level, owner.group.party)
        self.begin_run(owner, band)

    # ---- calls

    def ready(self, target: ModelSlice, now: int, first: ItemInfo | None) -> None:
        self.wake(target, now, first)

    def unused(self, unused_ns: int, now: int) -> None:
        if self.is_open and not self.has_ghosts:
            self.unused_ns = min(unused_ns, now - self.now)
        self.advance(now)
        self.unused_ns = 0

    def yielded(self, target: ModelSlice, now: int, how: Yield) -> None:
        self.advance(now)
        assert self.owner is target
        self.end_open()
        self.loan, self.returned = None, True
        target.more = how.more and not how.want and not how.end
        target.done_kernel_id, target.done_at = how.kernel_id, self.now
        self.set_item(target, how.want)
        if how.want:
            target.item = ItemInfo(kernel_id=how.kernel_id, hint_ns=how.hint_ns)

    def owe(self, target: ModelSlice, ns: int, now: int) -> None:
        self.advance(now)
        group = target.group
        for level, party in ((group.level, target.party), (self.level, group.party)):
            outside = not party.member
            if outside:
                level.resume(party)
            level.charge(party, ns)
            if outside:
                level.put(party, True)
        if group.reserve.exists:
            group.reserve.use(ns, self.now)
        self.debts[group.party.name] += ns
        self.overdraw(target, ns)
        self.recall()

    # ---- what the core answers

    def lent(self, now: int, lease: Lease, chosen: ModelSlice | None, payer: ModelSlice | None) -> None:
        self.advance(now)
        self.returned = False
        ended = lease.ended
        if ended is not None and (self.owner is None or ended.start_ns != self.run_start):
            ended = None
        decision = Decision(None, 0, lease.review_at_ns, lease.switched, ended, lease.idle, None, lease.band)
        self.picked(now, decision, chosen, payer)
        self.check_ended(lease)
        if chosen is not None:
            self.loan = Loan(self.now, self.now + self.gate_allows(chosen), self.now)
            self.check_end(lease)

    def reviewed(self, now: int, lease: Lease) -> None:
        self.advance(now)
        for group in self.groups:
            if group.party.ready and group.reserve.budget <= 0:
                group.reserve.replenish(self.now)
        if not self.is_due:
            self.review_hold()
        assert self.loan is not None
        if self.loan.until is None or self.now < self.loan.until:
            self.check_end(lease)
        else:
            assert lease.expires_ns == self.loan.until, "a lease that has expired stays so"
        self.check_ended(lease)

    def check_ended(self, lease: Lease) -> None:
        known = self.ended
        self.ended = None
        assert (lease.ended is None) == (known is None)
        if known is not None and lease.ended is not None:
            told = lease.ended
            same = Ended(told.group.name, told.start_ns, told.length_ns, told.timeslice_ns, told.reason)
            assert same == known, f"{same} {known}"

    def check_limit(self, decision: Decision, chosen: ModelSlice) -> None:
        """A lease has no limit except its end."""

    # ---- how long a lease lasts

    @property
    def is_due(self) -> bool:
        """Does a group of band L end the lease at once?"""
        assert self.owner is not None
        first = self.first_deadline()
        return first is not None and (self.run_band is Band.FAIR or first < self.owner.group.reserve.deadline)

    def end_open(self) -> None:
        if not self.is_open:
            return
        assert self.owner is not None
        assert self.loan is not None
        self.loan.until = self.now
        self.owner.group.reserve.wake(self.now)

    @property
    def funds(self) -> float:
        assert self.owner is not None
        group = self.owner.group
        lasts = [ns for bucket in (self.owner.bucket, group.bucket) if (ns := bucket.lasts()) is not None]
        if self.run_band is Band.LATENCY:
            lasts.append(max(0, group.reserve.budget))
        return min(lasts, default=float("inf"))

    def check_end(self, lease: Lease) -> None:
        owner, loan = self.owner, self.loan
        assert owner is not None
        assert loan is not None
        group = owner.group
        for bucket in (owner.bucket, group.bucket):
            bucket.refill(self.now)
        loan.kept = False
        if owner.has_item and self.is_alone and all(bucket.lasts() is None for bucket in (owner.bucket, group.bucket)):
            loan.until = None
            assert lease.expires_ns is None, "nobody else is there"
            assert not lease.contended
            return
        self.end_open()
        goes_first = group.in_latency_band and group.reserve.deadline == self.first_deadline()
        if goes_first and self.run_band is Band.FAIR and self.run_charged < self.run_timeslice:
            self.review_caps(owner)
        assert lease.contended == (not self.is_alone)
        if self.run_band is Band.FAIR and lease.band is Band.LATENCY:
            self.begin_again(RunReason.LATENCY, Band.LATENCY)
        assert lease.band is self.run_band
        if self.is_due:
            loan.until = self.now
            assert lease.expires_ns == self.now, "band L goes first"
            return
        ordinary, prolonged = self.end_after(0), self.end_after(group.params.timeslice_ns)
        assert lease.expires_ns in {ordinary, prolonged}
        loan.until = lease.expires_ns
        loan.kept = lease.expires_ns == prolonged > ordinary
        if lease.expires_ns == ordinary < prolonged:
            assert not self.is_clearly_kept(owner), "it stops for nothing"

    def end_after(self, more_ns: int) -> int:
        loan = self.loan
        assert loan is not None
        left = min(max(0, self.run_timeslice - self.run_charged) + more_ns, self.funds)
        end = self.now + left
        if self.holder is not None and self.run_band is Band.FAIR:
            end = min(end, loan.gap_end)
        return int(max(end, loan.begun + self.params.min_chunk_ns))

    def is_clearly_kept(self, owner: ModelSlice) -> bool:
        group = owner.group
        if self.holder is not None:
            return False
        first = self.first_deadline()
        if self.run_band is Band.LATENCY:
            others = [g for g in self.groups if g is not group and g.in_latency_band]
            if any(g.reserve.deadline <= group.reserve.deadline for g in others):
                return False
        elif first is not None or not self.keeps(self.level, group.party):
            return False
        return self.keeps(group.level, owner.party)

    def keeps(self, level: Level, party: Party) -> bool:
        """Whether it is certainly chosen again after the rest of the run."""
        if any(not p.ready and not p.running for p in level.members):
            return False
        then = level.copied()
        mine = next(p for p in then.members if p.name == party.name)
        then.charge(mine, max(0, self.run_timeslice - self.run_charged))
        then.new_request(mine)
        slack = self.slack(level)
        v = then.v
        if mine.weight * (v - mine.v) < slack and len(then.members) > 1:
            mine_may = False
        else:
            mine_may = True
        for rival in then.members:
            if rival is mine or not rival.ready or rival.weight * (v - rival.v) < -slack:
                continue
            tolerance = slack / rival.weight + slack / mine.weight
            if not mine_may or mine.deadline + tolerance >= rival.deadline:
                return False
        return True

    # ---- gaps

    def least_lease(self, one: ModelSlice) -> int:
        first = one.item.hint_ns if one.item and one.item.hint_ns else self.params.max_chunk_ns
        return max(first, self.params.min_chunk_ns, FILL_SWITCHES * self.params.switch_cost_ns)

    def gate_allows(self, one: ModelSlice) -> float:
        if self.holder is None:
            return float("inf")
        group: ModelGroup = self.holder.group
        credit = group.inversion.credit.__floor__()
        if not group.params.inversion_permille or credit < 0:
            return 0
        gaps = group.predictor.open_gaps(self.holder.done_kernel_id, self.now - self.holder.done_at)
        if not gaps:
            return 0
        samples = sum(count for _, count in gaps)
        # The length at which the expected inversion reaches the credit: it is the largest of the sums over the first
        # gaps.
        length = min(
            Fraction(credit * samples + sum(count * left for left, count in known), sum(count for _, count in known))
            for known in (gaps[: n + 1] for n in range(len(gaps)))
        )
        whole = length.__floor__()
        return whole if whole >= self.least_lease(one) else 0
