# SPDX-License-Identifier: Apache-2.0
"""A second implementation of the scheduler's rules, in exact arithmetic and without optimizations.

`Model` gets every call that is made to the core and predicts the core's possible answers. It keeps no sums, trees or
remainders, only lists and fractions; V is computed from its definition. Where rounding can decide in the core (which
party is eligible, which deadline is earlier), the model allows an error of `slack` and adopts the core's choice.
Everything else must be equal to the nanosecond.

`model_state` has its state and the effect of time on it, `model_holds` the hold and its gate, `model_runs` the pick.
This file has the calls.
"""

from __future__ import annotations

from tests.sched.exact import Bucket, Level, Party, Reserve, on_grid
from tests.sched.model_runs import Runs
from tests.sched.model_state import ModelGroup, ModelSlice
from vgpumgr.sched.core import GroupParams, ItemInfo, RunReason, SliceParams

__all__ = ["Model", "ModelGroup", "ModelSlice"]


class Model(Runs):
    """Gets the same calls as the core; `picked()` raises AssertionError if the core broke a rule."""

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
        """Update the caps and the ends of their throttles after use that no call reported."""
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
