# SPDX-License-Identifier: Apache-2.0
"""How long the engine is held for a tenant, and which items may run meanwhile; see `model`."""

from __future__ import annotations

import math

from tests.sched.model_state import ModelGroup, ModelSlice, State
from vgpumgr.sched.core import Band, CapParams


class Holds(State):
    """Hold and gap gate (R5)."""

    def configure_inversion(self, group: ModelGroup) -> None:
        params = group.params
        rate = CapParams(cap_ns=params.inversion_permille, cap_period_ns=1000)
        group.inversion.configure(rate, params.inversion_burst_ns or self.params.max_chunk_ns, self.now)

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
        """The longest time for which the holder pays under the present settings."""
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
