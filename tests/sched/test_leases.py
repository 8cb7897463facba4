# SPDX-License-Identifier: Apache-2.0
"""Invariant 18 by hand: how long a lease lasts, what prolongs and ends it, and who pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sched.story import MS, SECOND, US
from vgpumgr.sched.core import (
    Band,
    CallError,
    Field,
    GroupParams,
    Idle,
    ItemInfo,
    Mode,
    Policy,
    RunReason,
    SchedParams,
    Scheduler,
    Slice,
    SliceParams,
    Yield,
)

# A gate that has closed 500 us after the end of a lease.
ENGINE = SchedParams(max_chunk_ns=500 * US, min_chunk_ns=20 * US, reserve_limit_permille=750)
FAIR = GroupParams(weight=1, timeslice_ns=5 * MS)
LATENCY = replace(FAIR, band=Band.LATENCY, reserve_ns=2 * MS, reserve_period_ns=20 * MS)
WANT = Yield(want=True)


def slice_of(core: Scheduler, params: GroupParams, name: str, *, ready: bool = True) -> Slice:
    group = core.add_group(params, core.now_ns, name=name)
    one = core.add_slice(group, SliceParams(), core.now_ns, name=name)
    if ready:
        core.ready(one, core.now_ns)
    return one


def engine_with(*groups: GroupParams, params: SchedParams = ENGINE) -> tuple[Scheduler, list[Slice]]:
    core = Scheduler(params)
    return core, [slice_of(core, group, f"g{i}") for i, group in enumerate(groups)]


# ---- how long


def test_a_lease_lasts_the_timeslice_not_a_chunk() -> None:
    core, (first, second) = engine_with(FAIR, FAIR)
    lease = core.lend(0)
    assert (lease.slice, lease.number, lease.begun_ns, lease.expires_ns) == (first, 1, 0, 5 * MS)
    assert lease.contended
    core.yield_lease(first, 5 * MS, WANT)
    lease = core.lend(5 * MS)
    assert (lease.slice, lease.number, lease.expires_ns) == (second, 2, 10 * MS)
    assert lease.ended is not None
    assert (lease.ended.length_ns, lease.ended.reason) == (5 * MS, RunReason.TIMESLICE)


def test_who_is_alone_and_has_no_cap_gets_a_lease_without_end_and_makes_no_calls() -> None:
    core, (only,) = engine_with(FAIR)
    lease = core.lend(0)
    assert (lease.slice, lease.expires_ns, lease.review_at_ns, lease.contended) == (only, None, None, False)
    core.advance(1003 * MS)
    stats = only.group.stats
    assert (stats.run_ns, stats.runs, stats.uncut_runs, stats.longest_run_ns) == (1003 * MS, 200, 200, 5 * MS)
    assert core.stats.picks == 1


def test_a_rival_brings_the_end_of_the_present_timeslice_back() -> None:
    core, (first,) = engine_with(FAIR)
    core.lend(0)
    second = slice_of(core, FAIR, "second", ready=False)
    core.ready(second, 1003 * MS)
    lease = core.review(1003 * MS)
    assert (lease.slice, lease.expires_ns, lease.contended) == (first, 1005 * MS, True)
    core.sleep(second, 1004 * MS)
    assert core.review(1004 * MS).expires_ns is None, "it has gone again"


def test_a_lease_is_prolonged_while_no_rival_would_be_chosen() -> None:
    """Weight 10 against 1: the heavy slice goes on, and stops only for the light one."""
    core, (heavy, light) = engine_with(replace(FAIR, weight=10), FAIR)
    lease = core.lend(0)
    leases, stops_for_nothing = 0, 0
    while core.now_ns < SECOND:
        assert lease.expires_ns is not None
        now = lease.expires_ns - 200 * US
        lease = core.review(now)
        assert lease.expires_ns is not None
        if lease.expires_ns > now + 200 * US:
            continue
        before = lease.slice
        assert before is not None
        core.yield_lease(before, lease.expires_ns, WANT)
        lease = core.lend(lease.expires_ns)
        leases += 1
        stops_for_nothing += lease.slice is before
    assert heavy.run_ns / light.run_ns == pytest.approx(10, rel=0.05)
    assert leases < 60, "one for each run would be 200"
    assert stops_for_nothing == 0


def test_what_was_foreseen_ends_with_the_weights_it_was_foreseen_by() -> None:
    """The prolonged lease was not reviewed since: the time beyond its run is an overrun, not another run."""
    core, (heavy, light) = engine_with(replace(FAIR, weight=10), FAIR)
    assert core.lend(0).slice is heavy
    core.yield_lease(heavy, 5 * MS, WANT)
    assert core.lend(5 * MS).slice is light
    core.yield_lease(light, 10 * MS, WANT)
    assert core.lend(10 * MS).slice is heavy
    assert core.review(14 * MS).expires_ns == 20 * MS
    core.update_group(light.group, replace(FAIR, weight=10), 14 * MS)
    core.yield_lease(heavy, 20 * MS, WANT)
    ended = core.lend(20 * MS).ended
    assert ended is not None
    assert (ended.group, ended.start_ns, ended.length_ns) == (heavy.group, 10 * MS, 10 * MS)


def test_a_capped_slice_gets_what_its_cap_leaves_even_alone() -> None:
    capped = replace(FAIR, cap_ns=2 * MS, cap_period_ns=10 * MS, burst_ns=4 * MS)
    core, (only,) = engine_with(capped)
    lease = core.lend(0)
    assert lease.expires_ns == 5 * MS, "4 ms, and a fifth of the time until then"
    assert core.review(4900 * US).expires_ns == 5 * MS
    core.yield_lease(only, 5 * MS, WANT)
    lease = core.lend(5 * MS)
    assert (lease.slice, lease.review_at_ns) == (None, 25 * MS)
    assert core.lend(25 * MS).slice is only


def test_a_lease_in_band_l_lasts_its_budget() -> None:
    core, (fair, quick) = engine_with(FAIR, LATENCY)
    lease = core.lend(0)
    assert (lease.slice, lease.band, lease.expires_ns) == (quick, Band.LATENCY, 2 * MS)
    core.yield_lease(quick, 2 * MS, WANT)
    lease = core.lend(2 * MS)
    assert lease.ended is not None
    assert lease.ended.reason is RunReason.BUDGET
    assert (lease.slice, lease.review_at_ns) == (fair, 20 * MS), "when band L has budget again"


def test_band_l_ends_a_lease_at_once() -> None:
    core, (fair,) = engine_with(FAIR)
    core.lend(0)
    quick = slice_of(core, LATENCY, "quick", ready=False)
    core.ready(quick, 7 * MS)
    assert core.review(7 * MS).expires_ns == 7 * MS
    assert core.review(7100 * US).expires_ns == 7 * MS, "a lease that has expired is not prolonged"
    core.yield_lease(fair, 7300 * US, WANT)
    lease = core.lend(7300 * US)
    assert (lease.slice, lease.band) == (quick, Band.LATENCY)
    core.yield_lease(quick, 8 * MS)
    assert core.lend(8 * MS).expires_ns is None


def test_a_lone_slice_of_band_l_uses_up_no_budget() -> None:
    core, (quick,) = engine_with(LATENCY)
    assert core.lend(0).expires_ns is None
    fair = slice_of(core, FAIR, "fair", ready=False)
    core.ready(fair, 503 * MS)
    lease = core.review(503 * MS)
    assert (lease.slice, lease.band, lease.expires_ns) == (quick, Band.LATENCY, 505 * MS)
    assert quick.group.stats.latency_ns == 0
    core.yield_lease(quick, 505 * MS, WANT)
    assert core.lend(505 * MS).slice is fair
    assert quick.group.stats.latency_ns == 2 * MS


def test_without_budget_band_l_goes_first_again_at_its_deadline() -> None:
    core, (fair, quick) = engine_with(FAIR, LATENCY)
    core.lend(0)
    core.yield_lease(quick, 2 * MS, WANT)
    core.lend(2 * MS)
    core.yield_lease(fair, 7 * MS, WANT)
    assert core.lend(7 * MS).band is Band.FAIR
    core.yield_lease(quick, 10 * MS, WANT)
    now = 10 * MS
    while (lease := core.lend(now)).slice is quick:
        now += MS
        core.yield_lease(quick, now, WANT)
    lease = core.review(20 * MS)
    assert (lease.slice, lease.expires_ns) == (fair, lease.expires_ns)


def test_the_owner_itself_moves_to_band_l_without_a_stop() -> None:
    core, (fair, quick) = engine_with(FAIR, replace(LATENCY, timeslice_ns=20 * MS))
    core.lend(0)
    core.yield_lease(quick, 2 * MS, WANT)
    assert core.lend(2 * MS).slice is fair
    core.yield_lease(fair, 7 * MS, WANT)
    lease = core.lend(7 * MS)
    assert (lease.slice, lease.band, lease.review_at_ns) == (quick, Band.FAIR, 20 * MS)
    lease = core.review(20 * MS)
    assert (lease.slice, lease.number, lease.band, lease.expires_ns) == (quick, 3, Band.LATENCY, 22 * MS)


def test_a_slice_whose_request_is_done_does_not_move_to_band_l() -> None:
    """The rest of a request that band L interrupted ends within a later run; a rival's deadline is then the earlier
    one."""
    core = Scheduler(ENGINE)
    group = core.add_group(replace(LATENCY, timeslice_ns=20 * MS, reserve_period_ns=101 * MS), 0)
    interrupted, debtor, rival = (core.add_slice(group, SliceParams(), 0, name=name) for name in "abc")
    for one in (interrupted, debtor, rival):
        core.ready(one, 0)
    for runs, begun, ended in ((interrupted, 0, 2), (debtor, 2, 62), (rival, 62, 82)):
        assert core.lend(begun * MS).slice is runs
        core.yield_lease(runs, ended * MS, WANT)
    lease = core.lend(82 * MS)
    assert (lease.slice, lease.band, lease.review_at_ns) == (interrupted, Band.FAIR, 101 * MS)
    lease = core.review(101 * MS)
    assert (lease.slice, lease.band, lease.expires_ns) == (interrupted, Band.FAIR, 101 * MS)
    core.yield_lease(interrupted, 101 * MS, WANT)
    lease = core.lend(101 * MS)
    assert (lease.slice, lease.band) == (rival, Band.LATENCY)


def test_a_slice_that_comes_last_among_equals_does_not_move_to_band_l() -> None:
    """Its run would end, and the slice with the same deadline that has waited longer goes first."""
    core = Scheduler(ENGINE)
    group = core.add_group(replace(LATENCY, timeslice_ns=10 * MS), 0)
    first, second, last = (core.add_slice(group, SliceParams(), 0, name=name) for name in "abc")
    for one in (first, second, last):
        core.ready(one, 0)
    now = 0
    for runs, ns in ((first, 3 * MS), (second, 2 * MS), (second, 3 * MS), (second, 10 * MS)):
        assert core.lend(now).slice is runs
        now += ns
        core.yield_lease(runs, now, WANT)
    assert core.lend(18 * MS).slice is last
    lease = core.review(20 * MS)
    assert (lease.slice, lease.band, lease.expires_ns) == (last, Band.FAIR, 20 * MS)
    core.yield_lease(last, 20 * MS, WANT)
    lease = core.lend(20 * MS)
    assert (lease.slice, lease.band) == (first, Band.LATENCY)


# ---- its end


def test_expiry_fails_nothing_and_charges_until_the_yield() -> None:
    core, (first, second) = engine_with(FAIR, FAIR)
    core.lend(0)
    core.yield_lease(first, 5400 * US, WANT)
    lease = core.lend(5450 * US)
    assert lease.slice is second
    assert first.run_ns == 5400 * US
    assert core.stats.idle_ns == 50 * US, "nobody pays for what lies between"
    assert lease.ended is not None
    assert lease.ended.length_ns == 5400 * US


def test_an_early_yield_gives_the_rest_away() -> None:
    core, (first, second) = engine_with(FAIR, FAIR)
    core.lend(0)
    core.yield_lease(first, MS)
    lease = core.lend(MS)
    assert (lease.slice, lease.expires_ns) == (second, None)
    assert lease.ended is not None
    assert lease.ended.reason is RunReason.DRY


def test_who_yields_and_wants_goes_on_with_the_same_run() -> None:
    core, (first, _) = engine_with(FAIR, FAIR)
    core.lend(0)
    core.yield_lease(first, MS, WANT)
    lease = core.lend(MS)
    assert (lease.slice, lease.number, lease.expires_ns, lease.switched) == (first, 2, 5 * MS, False)


def test_a_lease_is_at_least_as_long_as_the_shortest_piece() -> None:
    core, (first, _) = engine_with(FAIR, FAIR)
    core.lend(0)
    core.yield_lease(first, 5 * MS - 1, WANT)
    assert core.lend(5 * MS - 1).expires_ns == 5 * MS - 1 + 20 * US


def test_calls_out_of_order_are_refused() -> None:
    core, (first, second) = engine_with(FAIR, FAIR)

    def refused(call: object, *arguments: object) -> Field:
        with pytest.raises(CallError) as caught:
            call(*arguments)  # type: ignore[operator]
        return caught.value.field

    assert refused(core.review, 0) is Field.LEASE
    assert refused(core.yield_lease, first, 0) is Field.LEASE
    core.lend(0)
    assert refused(core.lend, 0) is Field.LEASE
    assert refused(core.pick, 0) is Field.LEASE
    assert refused(core.yield_lease, second, 0) is Field.LEASE
    core.advance(10)
    assert refused(core.review, 9) is Field.TIME
    assert refused(core.unused, 0, 9) is Field.TIME
    assert refused(core.owe, first, 1, 9) is Field.TIME
    core.remove_slice(first, 10)
    assert refused(core.owe, first, 1, 10) is Field.ABSENT
    assert core.lend(10).slice is second, "who is removed has no lease"


# ---- who pays


def test_what_a_lone_slice_does_not_use_is_idle() -> None:
    core, (only,) = engine_with(FAIR)
    core.lend(0)
    core.unused(30 * MS, 100 * MS)
    assert (only.run_ns, core.stats.idle_ns) == (70 * MS, 30 * MS)
    core.unused(50 * MS, 120 * MS)
    assert (only.run_ns, core.stats.idle_ns) == (70 * MS, 50 * MS), "of 20 ms no more can be unused"
    slice_of(core, FAIR, "rival")
    core.review(120 * MS)
    core.unused(MS, 122 * MS)
    assert only.run_ns == 72 * MS, "a lease with an end is paid for"
    assert core.stats.wall_ns == core.stats.idle_ns + only.run_ns


def test_work_found_after_a_yield_is_a_debt() -> None:
    core, (first, second) = engine_with(FAIR, FAIR)
    core.lend(0)
    core.yield_lease(first, 5 * MS)
    core.lend(5 * MS)
    core.owe(first, 10 * MS, 6 * MS)
    assert (first.run_ns, first.stats.debt_ns, first.group.stats.debt_ns) == (5 * MS, 10 * MS, 10 * MS)
    core.ready(first, 6 * MS)
    lease = core.review(6 * MS)
    for _ in range(20):
        assert lease.slice is not None
        assert lease.expires_ns is not None
        core.yield_lease(lease.slice, lease.expires_ns, WANT)
        lease = core.lend(lease.expires_ns)
    assert second.run_ns - first.run_ns == pytest.approx(10 * MS, abs=6 * MS)


def test_debt_counts_against_caps_and_reservation() -> None:
    capped = replace(LATENCY, cap_ns=5 * MS, cap_period_ns=20 * MS, burst_ns=5 * MS)
    core, (one,) = engine_with(capped)
    core.owe(one, 6 * MS, 0)
    lease = core.lend(0)
    assert (lease.slice, lease.review_at_ns) == (None, 24 * MS), "throttled, a millisecond overdrawn"
    core.owe(one, MS, 10 * MS)
    assert core.lend(24 * MS).review_at_ns == 28 * MS
    assert core.lend(28 * MS).slice is one


# ---- two levels, ghosts, holds


def test_slices_of_a_group_are_rivals_too() -> None:
    core, (first,) = engine_with(FAIR)
    second = core.add_slice(first.group, SliceParams(), 0, name="second")
    assert core.lend(0).expires_ns is None
    core.ready(second, 7 * MS)
    assert core.review(7 * MS).expires_ns == 10 * MS
    core.yield_lease(first, 10 * MS, WANT)
    lease = core.lend(10 * MS)
    assert (lease.slice, lease.expires_ns) == (second, 20 * MS), "two timeslices: it returned with credit"


def test_a_ghost_keeps_its_turn_and_a_lease_ends_with_it() -> None:
    engine = replace(ENGINE, reserve_limit_permille=0, policy=Policy.EQUAL_SHARE)
    core = Scheduler(engine)
    first, second = slice_of(core, FAIR, "first"), slice_of(core, FAIR, "second", ready=False)
    assert core.lend(0).expires_ns == 5 * MS
    core.unused(MS, MS)
    assert first.run_ns == MS
    core.yield_lease(first, 5 * MS, WANT)
    lease = core.lend(5 * MS)
    assert (lease.slice, lease.idle, lease.payer, lease.review_at_ns) == (None, Idle.GHOST, second, 10 * MS)
    core.ready(second, 7 * MS)
    assert core.lend(7 * MS).expires_ns == 10 * MS
    core.yield_lease(second, 8 * MS)
    assert core.lend(8 * MS).payer is second
    lease = core.lend(10 * MS)
    assert (lease.slice, lease.expires_ns) == (first, 15 * MS)


def test_places_that_are_not_sold_keep_their_turns() -> None:
    engine = replace(ENGINE, reserve_limit_permille=0, policy=Policy.FIXED_SHARE, places=2)
    core = Scheduler(engine)
    one = slice_of(core, replace(FAIR, mode=Mode.STRICT), "one")
    assert core.lend(0).review_at_ns == MS
    assert core.lend(MS).expires_ns == 6 * MS
    core.yield_lease(one, 6 * MS, WANT)
    assert core.lend(6 * MS).idle is Idle.GHOST


HOLDER = replace(
    LATENCY, weight=10, reserve_ns=8 * MS, hold_max_ns=10 * MS, inversion_permille=100, inversion_burst_ns=2 * MS
)
KERNEL = 7


def with_gaps(gap_ns: int, *, switch_cost_ns: int = 0) -> tuple[Scheduler, Slice, Slice]:
    """A holder whose gaps are known, in such a gap; the filler is ready."""
    core = Scheduler(replace(ENGINE, switch_cost_ns=switch_cost_ns))
    holder = slice_of(core, HOLDER, "holder")
    filler = slice_of(core, FAIR, "filler", ready=False)
    now = 0
    for _ in range(10):
        assert core.lend(now).slice is holder
        now += 40 * MS
        core.yield_lease(holder, now, Yield(more=True, kernel_id=KERNEL))
        assert core.lend(now).idle is Idle.HOLD
        now += gap_ns
        core.ready(holder, now)
    now = core.now_ns + 100 * MS
    core.lend(now)
    core.yield_lease(holder, now, Yield(more=True, kernel_id=KERNEL))
    core.ready(filler, now, first=ItemInfo(hint_ns=50 * US))
    return core, holder, filler


def test_a_filler_gets_a_lease_as_long_as_the_gap() -> None:
    core, holder, filler = with_gaps(3 * MS)
    lease = core.lend(core.now_ns)
    assert (lease.slice, lease.band) == (filler, Band.FAIR)
    assert lease.expires_ns is not None
    gap = lease.expires_ns - core.now_ns
    assert 2 * MS < gap <= 5 * MS, "the gap, and what the inversion budget covers"
    core.ready(holder, core.now_ns + MS)
    assert core.review(core.now_ns).expires_ns == core.now_ns, "the gap is over"
    core.yield_lease(filler, core.now_ns + 300 * US, WANT)
    assert core.lend(core.now_ns).slice is holder
    assert holder.group.stats.inversion_ns == 300 * US
    assert holder.group.stats.fills == 1


def test_a_gap_shorter_than_the_first_kernel_is_not_filled() -> None:
    core, holder, filler = with_gaps(3 * MS)
    core.ready(filler, core.now_ns, first=ItemInfo(hint_ns=20 * MS))
    lease = core.lend(core.now_ns)
    assert (lease.slice, lease.payer) == (None, holder)


def test_a_gap_of_two_switches_is_not_filled() -> None:
    core, holder, _ = with_gaps(200 * US, switch_cost_ns=250 * US)
    core.update_group(holder.group, replace(HOLDER, inversion_burst_ns=50 * US), core.now_ns)
    lease = core.lend(core.now_ns)
    assert (lease.slice, lease.payer) == (None, holder)


def test_the_end_of_a_request_ends_the_hold() -> None:
    core, (holder, _) = engine_with(HOLDER, FAIR)
    core.lend(0)
    core.yield_lease(holder, MS, Yield(more=True, end=True, kernel_id=KERNEL))
    assert core.lend(MS).idle is not Idle.HOLD


def test_a_holder_without_budget_waits_like_anybody() -> None:
    """Then the filler's lease becomes an ordinary one, and no inversion is counted."""
    core, holder, filler = with_gaps(3 * MS)
    assert core.lend(core.now_ns).slice is filler
    core.owe(holder, 20 * MS, core.now_ns)
    core.ready(holder, core.now_ns + MS)
    now = core.now_ns
    lease = core.review(now)
    assert lease.expires_ns is not None
    assert lease.expires_ns > now
    core.yield_lease(filler, lease.expires_ns, WANT)
    assert holder.group.stats.inversion_ns == 0
