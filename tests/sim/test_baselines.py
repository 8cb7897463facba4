# SPDX-License-Identifier: Apache-2.0
"""The defining behaviour of each published scheduler, by stories small enough to compute by hand."""

from __future__ import annotations

import pytest

from tests.sim.engines import MS, SECOND, US, WHOLE, params, runs_of, share, tenant
from vgpumgr.sched.core import Band
from vgpumgr.sim.engine import (
    Backlog,
    EngineModel,
    GroupParams,
    Program,
    Reason,
    Simulation,
    requests_of_one_kernel,
)

PREEMPTIBLE = EngineModel(kind="preemptible")


def at(start_us: int, *work_us: int) -> Program:
    """A program that launches these kernels at that time."""
    return Program(work_ns=[us * US for us in work_us], start_ns=start_us * US, count=1)


def order(sim: Simulation) -> list[int]:
    """The slices that ran, in order."""
    return [run[0] for run in runs_of(sim)]


def test_fifo_runs_kernels_in_the_order_of_their_launches() -> None:
    sim = Simulation(WHOLE, "fifo", record_items=True)
    tenant(sim, at(0, 100, 100))
    tenant(sim, at(10, 50))
    tenant(sim, Program(work_ns=[10 * US, 10 * US], launch_ns=5 * US, count=1))
    sim.run_until(MS)
    done = [(int(item["slice"]), int(item["submitted_ns"]) // US) for item in sim.items()]
    assert done == [(0, 0), (0, 0), (2, 5), (1, 10), (2, 10)]


def test_time_slices_last_their_time_and_end_early_without_work() -> None:
    sim = Simulation(PREEMPTIBLE, "timeslice")
    tenant(sim, Backlog(work_ns=10 * MS))
    tenant(sim, Backlog(work_ns=10 * MS))
    tenant(sim, at(0, 500))
    sim.run_until(9 * MS)
    expected = [(0, 0, 2000), (1, 2000, 2000), (2, 4000, 500), (0, 4500, 2000), (1, 6500, 2000), (0, 8500, 500)]
    assert [(who, start // US, length // US) for who, start, length in runs_of(sim)] == expected
    reasons = [int(run["reason"]) for run in sim.runs()]
    assert reasons[:4] == [Reason.TIMESLICE, Reason.TIMESLICE, Reason.DRY, Reason.TIMESLICE]


def test_a_time_slice_ends_after_the_kernel_if_nothing_can_be_preempted() -> None:
    sim = Simulation(WHOLE, "timeslice")
    tenant(sim, Backlog(work_ns=1500 * US))
    tenant(sim, Backlog(work_ns=2 * MS))
    sim.run_until(10 * MS)
    assert [length // US for _, _, length in runs_of(sim)] == [3000, 2000, 3000, 2000]


def test_time_slicing_gives_each_slice_the_same_whatever_the_weight() -> None:
    """More slices get more of the engine: the driver knows contexts, not tenants."""
    sim = Simulation(PREEMPTIBLE, "timeslice")
    heavy = tenant(sim, Backlog(work_ns=MS), weight=100)
    light = tenant(sim, Backlog(work_ns=MS), weight=1)
    second = sim.add_slice(light.group, Backlog(work_ns=MS))
    sim.run_until(600 * MS)
    assert [round(share(sim, one), 3) for one in (heavy, light, second)] == [0.333] * 3


def test_kernel_round_robin_is_fair_in_launches_not_in_time() -> None:
    sim = Simulation(WHOLE, "kernel_rr")
    short = tenant(sim, Backlog(work_ns=20 * US))
    long = tenant(sim, Backlog(work_ns=2 * MS))
    sim.run_until(202 * MS)
    assert sim.slice_counters(short).items == sim.slice_counters(long).items + 1
    assert share(sim, short) == pytest.approx(20 / 2020)


def test_strict_priority_serves_the_best_and_equals_in_order() -> None:
    sim = Simulation(WHOLE, "strict_priority")
    tenant(sim, at(0, 100, 100, 100), priority=2)
    tenant(sim, at(20, 50), priority=1)
    tenant(sim, at(10, 50), priority=1)
    tenant(sim, at(120, 50), priority=0)
    sim.run_until(MS)
    assert order(sim) == [0, 2, 3, 1, 0]


def test_a_priority_can_change_and_otherwise_stays() -> None:
    sim = Simulation(WHOLE, "strict_priority")
    low, high = (tenant(sim, Backlog(work_ns=100 * US), priority=priority) for priority in (1, 0))
    for change, who in (({}, high), ({"priority": 2}, low), ({"priority": 0}, high)):
        sim.update_group(low.group, params(7))
        sim.update_group(high.group, params(7), **change)
        before = sim.slice_counters(who).run_ns
        sim.run_until(sim.now_ns + MS)
        assert sim.slice_counters(who).run_ns - before >= 900 * US


def test_exclusive_serves_one_program_to_its_end() -> None:
    sim = Simulation(WHOLE, "exclusive")
    tenant(sim, Program(work_ns=[100 * US], think_ns=MS, count=2))
    tenant(sim, at(50, 10, 10))
    sim.run_until(10 * MS)
    # 0: 100 us, a pause, 100 us, a pause; it ends only then
    assert runs_of(sim) == [(0, 0, 100 * US), (0, 1100 * US, 100 * US), (1, 2200 * US, 20 * US)]


def test_deficit_round_robin_saves_what_a_kernel_does_not_fit_in() -> None:
    sim = Simulation(WHOLE, "drr", parameters={"quantum_ns": MS})
    tenant(sim, Backlog(work_ns=700 * US), weight=1)
    tenant(sim, Backlog(work_ns=700 * US), weight=2)
    sim.run_until(14 * MS)
    # deficits of the first: 1000, 300 + 1000, 600 + 1000, 200 + 1000, ...
    first = [length // US for who, _, length in runs_of(sim) if who == 0]
    second = [length // US for who, _, length in runs_of(sim) if who == 1]
    assert first[:5] == [700, 700, 1400, 700, 1400]
    assert second[:3] == [1400, 2100, 2100]


def test_deficit_round_robin_takes_from_who_has_no_work() -> None:
    sim = Simulation(WHOLE, "drr", parameters={"quantum_ns": MS})
    device = tenant(sim, Program(work_ns=[600 * US] * 2, think_ns=100 * US, count=3))
    tenant(sim, Backlog(work_ns=MS))
    sim.run_until(20 * MS)
    assert [length // US for who, _, length in runs_of(sim) if who == device.index] == [600] * 6


def test_stride_gives_time_by_weight_in_quanta() -> None:
    sim = Simulation(PREEMPTIBLE, "stride")
    slices = [tenant(sim, Backlog(work_ns=10 * MS), weight=weight) for weight in (3, 2, 1)]
    sim.run_until(600 * MS)
    assert [sim.slice_counters(one).run_ns // MS for one in slices] == [300, 200, 100]
    assert order(sim)[:6] == [0, 1, 2, 0, 1, 0]
    assert {length for _, _, length in runs_of(sim)} == {MS}


def test_stride_remembers_who_was_ahead() -> None:
    """A slice that overran its quantum and leaves comes back as far ahead of its share as before."""
    sim = Simulation(WHOLE, "stride")
    overrunner = tenant(sim, Backlog(work_ns=5 * MS, nap_every=1, nap_ns=1))
    tenant(sim, Backlog(work_ns=MS))
    sim.run_until(SECOND)
    assert share(sim, overrunner) == pytest.approx(0.5, abs=0.02)


def test_stride_charges_who_is_withheld_while_it_runs() -> None:
    sim = Simulation(WHOLE, "stride")
    leaver = tenant(sim, Program(work_ns=[5 * MS, MS], launch_ns=[0, 2 * MS], think_ns=0, count=1))
    sim.run_until(MS)
    sim.park_slice(leaver)
    sim.run_until(10 * MS)
    assert sim.slice_counters(leaver).run_ns == 5 * MS


class TestGvtG:
    def test_a_weight_is_also_a_cap(self) -> None:
        sim = Simulation(WHOLE, "gvt_g")
        busy = tenant(sim, Backlog(work_ns=100 * US), weight=1)
        tenant(sim, at(10_000_000, 100), weight=3)
        sim.run_until(1001 * MS)
        assert sim.slice_counters(busy).run_ns == pytest.approx(250 * MS, abs=2 * MS)

    def test_the_engine_changes_hands_at_ticks(self) -> None:
        sim = Simulation(WHOLE, "gvt_g")
        tenant(sim, Backlog(work_ns=300 * US))
        tenant(sim, Backlog(work_ns=300 * US))
        sim.run_until(7 * MS)
        # the first tick is at 1 ms; a kernel that began before a tick is finished first
        starts = [start // US for _, start, _ in runs_of(sim)]
        assert starts[:4] == [1000, 2200, 3100, 4000]
        assert order(sim)[:4] == [0, 1, 0, 1]

    def test_nobody_takes_over_between_ticks(self) -> None:
        sim = Simulation(WHOLE, "gvt_g")
        tenant(sim, at(0, 200))
        tenant(sim, at(0, 200))
        sim.run_until(4 * MS)
        assert runs_of(sim) == [(0, MS, 200 * US), (1, 2 * MS, 200 * US)]

    def test_debt_is_forgotten_at_every_tenth_balance(self) -> None:
        sim = Simulation(WHOLE, "gvt_g")
        tenant(sim, Backlog(work_ns=95 * MS))
        tenant(sim, at(10_000_000, 100))
        sim.run_until(1500 * MS)
        # It gets 50 ms per 100 ms. In the first second it runs 570 ms; with that debt it could
        # not start again before 1101 ms, but at 1001 ms everything starts anew.
        starts = [start // MS for _, start, _ in runs_of(sim)]
        assert [start for start in starts if start > 900][:1] == [1001]


class TestVcuda:
    def test_use_is_steered_to_the_cap(self) -> None:
        sim = Simulation(PREEMPTIBLE, "vcuda")
        capped = tenant(sim, Backlog(work_ns=MS), cap_permille=300)
        sim.run_until(20 * SECOND)
        before = sim.slice_counters(capped).run_ns
        sim.run_until(60 * SECOND)
        assert (sim.slice_counters(capped).run_ns - before) / (40 * SECOND) == pytest.approx(0.3, abs=0.05)

    def test_a_lower_cap_takes_the_share_back(self) -> None:
        sim = Simulation(PREEMPTIBLE, "vcuda")
        capped = tenant(sim, Backlog(work_ns=MS), cap_permille=700)
        sim.run_until(20 * SECOND)
        sim.update_group(capped.group, params(cap_permille=200))
        sim.run_until(40 * SECOND)
        before = sim.slice_counters(capped).run_ns
        sim.run_until(60 * SECOND)
        assert (sim.slice_counters(capped).run_ns - before) / (20 * SECOND) == pytest.approx(0.2, abs=0.05)

    def test_a_negative_pool_is_looked_at_every_ten_milliseconds(self) -> None:
        sim = Simulation(WHOLE, "vcuda", record_items=True)
        tenant(sim, Program(work_ns=[MS], queue_depth=1), cap_permille=300)
        sim.run_until(131 * MS)
        # The pool begins at 0, so one launch passes; shares come at 120 ms.
        assert [int(item["submitted_ns"]) // MS for item in sim.items()][:2] == [0, 121]

    def test_without_a_cap_nothing_is_limited(self) -> None:
        sim = Simulation(PREEMPTIBLE, "vcuda")
        free = tenant(sim, Backlog(work_ns=MS))
        sim.run_until(SECOND)
        assert share(sim, free) == 1


class TestGemini:
    def test_a_token_is_good_for_its_quota_used_or_not(self) -> None:
        sim = Simulation(PREEMPTIBLE, "gemini")
        tenant(sim, at(0, 100))
        tenant(sim, Backlog(work_ns=10 * MS, start_ns=1))
        sim.run_until(300 * MS)
        assert runs_of(sim)[:2] == [(0, 0, 100 * US), (1, 250 * MS, 50 * MS)]

    def test_who_lacks_most_of_its_request_is_next(self) -> None:
        sim = Simulation(PREEMPTIBLE, "gemini")
        tenant(sim, Backlog(work_ns=10 * MS), weight=3)
        tenant(sim, Backlog(work_ns=10 * MS), weight=1)
        sim.run_until(20 * SECOND)
        assert sim.run_ns(sim.groups[0]) == pytest.approx(15 * SECOND, abs=500 * MS)
        assert {length % (250 * MS) for _, _, length in runs_of(sim)} == {0}

    def test_a_limit_holds_over_the_window(self) -> None:
        sim = Simulation(PREEMPTIBLE, "gemini")
        capped = tenant(sim, Backlog(work_ns=10 * MS), cap_permille=200)
        sim.run_until(10 * SECOND)
        before = sim.slice_counters(capped).run_ns
        sim.run_until(40 * SECOND)
        assert (sim.slice_counters(capped).run_ns - before) / (30 * SECOND) == pytest.approx(0.2, abs=0.03)


class TestTgs:
    def test_opportunistic_jobs_wait_while_the_production_job_is_profiled(self) -> None:
        sim = Simulation(PREEMPTIBLE, "tgs")
        tenant(sim, Backlog(work_ns=MS, depth=1), priority=0)
        low = tenant(sim, Backlog(work_ns=MS, depth=1, start_ns=60 * MS), priority=1)
        sim.run_until(250 * MS)
        assert sim.slice_counters(low).items <= 5, "one launch per interval slips through a limit of 0"

    def test_alone_they_are_not_limited(self) -> None:
        sim = Simulation(PREEMPTIBLE, "tgs")
        low = tenant(sim, Backlog(work_ns=MS), priority=1)
        sim.run_until(SECOND)
        assert share(sim, low) == 1

    def test_a_production_job_with_gaps_leaves_some_to_the_others(self) -> None:
        sim = Simulation(PREEMPTIBLE, "tgs")
        high = tenant(sim, requests_of_one_kernel(range(0, 60 * SECOND, 2 * MS), 500 * US), priority=0)
        low = tenant(sim, Backlog(work_ns=200 * US), priority=1)
        sim.run_until(60 * SECOND)
        assert share(sim, high) == pytest.approx(0.25, abs=0.01)
        assert 0.05 < share(sim, low) <= 0.75


class TestHami:
    def test_a_blocked_launch_sleeps_a_second(self) -> None:
        sim = Simulation(WHOLE, "hami", record_items=True)
        tenant(sim, requests_of_one_kernel([4 * SECOND], 100 * US), priority=0)
        tenant(sim, requests_of_one_kernel([5500 * MS], 100 * US), priority=1)
        sim.run_until(30 * SECOND)
        # seen at 5 s and (its counter was 2) at 10 s, unblocked at 15 s; 5.5 s + n * 1 s
        assert [int(item["start_ns"]) for item in sim.items()] == [4 * SECOND, 15500 * MS]

    def test_nobody_is_blocked_by_equals(self) -> None:
        sim = Simulation(WHOLE, "hami")
        both = [tenant(sim, Backlog(work_ns=100 * US)) for _ in range(2)]
        sim.run_until(20 * SECOND)
        assert [round(share(sim, one), 3) for one in both] == [0.5, 0.5]


class TestNvshare:
    def test_the_lock_goes_round_every_thirty_seconds(self) -> None:
        sim = Simulation(WHOLE, "nvshare")
        tenant(sim, Backlog(work_ns=MS))
        tenant(sim, Backlog(work_ns=MS))
        sim.run_until(70 * SECOND)
        assert [(who, start // SECOND) for who, start, _ in runs_of(sim)] == [(0, 0), (1, 30), (0, 60)]

    def test_an_idle_holder_lets_go_after_five(self) -> None:
        sim = Simulation(WHOLE, "nvshare")
        tenant(sim, at(0, 1000))
        tenant(sim, at(10, 1000))
        sim.run_until(10 * SECOND)
        assert runs_of(sim) == [(0, 0, MS), (1, MS + 5 * SECOND, MS)]

    def test_requests_are_served_in_order(self) -> None:
        sim = Simulation(WHOLE, "nvshare")
        for start_us in (20, 0, 10):
            tenant(sim, at(start_us, 100))
        sim.run_until(20 * SECOND)
        assert order(sim) == [1, 2, 0]


class TestFikit:
    def high(self, launch_us: int) -> Program:
        return Program(work_ns=[100 * US] * 4, launch_ns=launch_us * US, think_ns=10 * MS)

    def test_only_what_fits_the_mean_gap_fills_it(self) -> None:
        # 300 us per launch, 100 us per kernel: gaps of 200 us
        for work_us, fills in ((150, True), (250, False)):
            sim = Simulation(WHOLE, "fikit")
            tenant(sim, self.high(300), priority=0)
            tenant(sim, Backlog(work_ns=work_us * US, start_ns=310 * US), priority=1)
            sim.run_until(1300 * US)  # within the first request, after its first launch
            assert (1 in order(sim)) == fills

    def test_the_longest_that_fits_is_taken(self) -> None:
        sim = Simulation(WHOLE, "fikit")
        tenant(sim, self.high(300), priority=0)
        for work_us in (50, 180, 120):
            tenant(sim, Program(work_ns=[work_us * US], start_ns=310 * US, count=1), priority=1)
        sim.run_until(650 * US)
        assert order(sim) == [0, 2, 0], "of 50, 180 and 120 us"

    def test_short_gaps_are_left_alone(self) -> None:
        sim = Simulation(WHOLE, "fikit")
        tenant(sim, self.high(150), priority=0)
        tenant(sim, Backlog(work_ns=10 * US, start_ns=160 * US), priority=1)
        sim.run_until(700 * US)
        assert 1 not in order(sim), "gaps of 50 us, less than eps"

    def test_between_requests_others_run_freely(self) -> None:
        sim = Simulation(WHOLE, "fikit")
        tenant(sim, self.high(300), priority=0)
        low = tenant(sim, Backlog(work_ns=MS, start_ns=310 * US), priority=1)
        sim.run_until(100 * MS)
        assert share(sim, low) > 0.8


def test_a_reservation_means_nothing_to_a_baseline() -> None:
    """Every scheduler gets the same tenants, and ignores the settings that it does not support."""
    sim = Simulation(WHOLE, "fifo")
    reserved = GroupParams(weight=5, timeslice_ns=MS, band=Band.LATENCY, reserve_ns=100 * US, reserve_period_ns=10 * MS)
    group = sim.add_group("a", reserved)
    sim.add_slice(group, Backlog(work_ns=MS))
    sim.run_until(MS)
    assert sim.run_ns(group) == MS
