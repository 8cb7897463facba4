# SPDX-License-Identifier: Apache-2.0
"""Invariant 4: sleepers that return together, or one after another, delay nobody by more than a timeslice in all.

The victim is always ready and has half of all weight, so it is due half of any window, whichever sleepers there are.
Its shortfall and its longest wait are bounded for any number of sleepers. The bounds are those of vgpu_sched.h: R10's
without sleepers, which is a timeslice and a chunk each way, plus a timeslice of credit each way.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sched.host import Host
from tests.sched.story import MS, US, SliceOf, Story, Tenant, Work
from vgpumgr.sched.core import GroupParams, ItemInfo, SchedParams, Scheduler, Slice, SliceParams, Yield

CHUNK = 400 * US
ENGINE = SchedParams(max_chunk_ns=CHUNK, min_chunk_ns=10 * US)
COUNTS = (2, 16, 64, 255)


@dataclass
class Sleepers:
    """That many sleepers of weight 10 beside a victim that weighs as much as all of them."""

    core: Scheduler
    victim: Slice
    sleepers: list[Slice]
    timeslice_ns: int
    deficit: Fraction = Fraction(0)
    least_due: Fraction = Fraction(0)
    longest_wait: int = 0
    ran_at: int = 0

    @classmethod
    def with_timeslice(cls, count: int, timeslice_ns: int) -> Sleepers:
        core = Scheduler(ENGINE)

        def one(weight: int) -> Slice:
            group = core.add_group(GroupParams(weight=weight, timeslice_ns=timeslice_ns), 0)
            return core.add_slice(group, SliceParams(), 0)

        return cls(core, one(10 * count), [one(10) for _ in range(count)], timeslice_ns)

    def note(self, owner: Slice, start: int, end: int) -> None:
        """`owner` had the engine between these moments."""
        for at, is_start in ((start, True), (end, False)):
            run_ns = self.victim.run_ns - (end - start if is_start and owner is self.victim else 0)
            due = Fraction(at, 2) - run_ns
            self.least_due = min(self.least_due, due)
            self.deficit = max(self.deficit, due - self.least_due)
        if owner is self.victim:
            self.longest_wait = max(self.longest_wait, start - self.ran_at)
            self.ran_at = end

    def check(self) -> None:
        bound = 2 * (self.timeslice_ns + CHUNK) + 2 * self.timeslice_ns
        assert self.deficit <= bound / 2, f"short of {float(self.deficit) / MS} ms"
        # While the victim waits, it is due half of the time.
        assert self.longest_wait <= bound, f"waited {self.longest_wait / MS} ms"


def play(world: Sleepers, wakes: list[tuple[int, int]], *, end: int) -> None:
    """`wakes`: (when, who), in order. Each sleeper that wakes has a timeslice of work, in pieces."""
    core, left, now, i = world.core, dict.fromkeys(world.sleepers, 0), 0, 0
    core.wake(world.victim, 0)
    while now < end:
        while i < len(wakes) and wakes[i][0] <= now:
            who = world.sleepers[wakes[i][1]]
            i += 1
            if not left[who]:
                left[who] = world.timeslice_ns
                core.wake(who, now)
        owner = core.pick(now).slice
        assert owner is not None
        piece = min(CHUNK, left.get(owner, CHUNK))
        now += piece
        core.advance(now)
        world.note(owner, now - piece, now)
        if owner in left:
            left[owner] -= piece
            if not left[owner]:
                core.item_done(owner, now)


def together(count: int, period: int, end: int) -> list[tuple[int, int]]:
    return [(at, who) for at in range(period, end, period) for who in range(count)]


def one_by_one(count: int, period: int, gap: int, end: int) -> list[tuple[int, int]]:
    return sorted((at + who * gap, who) for at in range(period, end, period) for who in range(count))


@pytest.mark.parametrize("timeslice_ns", [MS, 20 * MS])
@pytest.mark.parametrize("count", COUNTS)
def test_sleepers_that_return_together_delay_nobody(count: int, timeslice_ns: int) -> None:
    """255 sleepers with a timeslice of 1 ms once delayed the victim by 255 ms."""
    world = Sleepers.with_timeslice(count, timeslice_ns)
    end = 1200 * timeslice_ns
    play(world, together(count, 200 * timeslice_ns, end), end=end)
    world.check()


@pytest.mark.parametrize("gap_us", [400, 1000, 1001, 2000])
@pytest.mark.parametrize("count", COUNTS)
def test_nor_do_sleepers_that_return_one_by_one(count: int, gap_us: int) -> None:
    """Each sleeper wakes when the one before has used up its credit: a bound on the credit at one time is not
    enough."""
    world = Sleepers.with_timeslice(count, MS)
    play(world, one_by_one(count, 600 * MS, gap_us * US, 1300 * MS), end=1300 * MS)
    world.check()


@given(data=st.data(), count=st.sampled_from(COUNTS))
@settings(max_examples=12)
def test_nor_do_any_others(data: st.DataObject, count: int) -> None:
    crowd = st.tuples(
        st.integers(0, 300 * MS), st.integers(0, count - 1), st.integers(1, count), st.integers(0, 2 * MS)
    )
    wakes = []
    for at, first, many, gap in data.draw(st.lists(crowd, min_size=1, max_size=8)):
        wakes += [(at + n * gap, (first + n) % count) for n in range(many)]
    world = Sleepers.with_timeslice(count, MS)
    play(world, sorted(wakes), end=400 * MS)
    world.check()


@pytest.mark.parametrize("count", COUNTS)
def test_leases_of_sleepers_delay_nobody_either(count: int) -> None:
    world = Sleepers.with_timeslice(count, MS)
    core, now = world.core, 0
    left = dict.fromkeys(world.sleepers, 0)
    core.ready(world.victim, 0)
    while now < 1200 * MS:
        if now // (200 * MS) > (now - MS) // (200 * MS):
            for sleeper, ns in left.items():
                if not ns:
                    left[sleeper] = MS
                    core.ready(sleeper, now, first=ItemInfo())
        lease = core.lend(now)
        assert lease.slice is not None
        start, owner = now, lease.slice
        now = start + MS if lease.expires_ns is None else lease.expires_ns
        if owner in left:
            now = min(now, start + left[owner])
            left[owner] -= now - start
        core.yield_lease(owner, now, Yield(want=left.get(owner, 1) > 0))
        world.note(owner, start, now)
    world.check()


def test_the_model_says_the_same_of_a_crowd() -> None:
    """The model checks every call in exact arithmetic."""
    napper = Tenant(slices=(SliceOf(work=Work(items=(350 * US,), nap_every=2, nap_ns=9 * MS)),))
    victim = Tenant(weight=20, slices=(SliceOf(work=Work(items=(350 * US,))),))
    host = Host(Story(engine=ENGINE, tenants=(victim, *[napper] * 20), duration_ns=60 * MS)).run()
    assert host.tenants[0].core.run_ns >= host.now / 2 - 4 * MS
