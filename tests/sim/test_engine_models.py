# SPDX-License-Identifier: Apache-2.0
"""How each kind of engine runs kernels, by cases small enough to compute by hand."""

from __future__ import annotations

from tests.sim.engines import MS, US, WHOLE, check_sums, runs_of, tenant
from vgpumgr.sim.engine import Backlog, EngineModel, Program, Reason, Simulation


def once(work_us: int, *, start_us: int = 0) -> Program:
    """One kernel, launched once."""
    return Program(work_ns=[work_us * US], count=1, start_ns=start_us * US)


def test_a_kernel_of_a_non_preemptible_engine_runs_to_its_end() -> None:
    sim = Simulation(WHOLE, "timeslice", parameters={"timeslice_ns": MS})
    tenant(sim, once(2500))
    tenant(sim, once(100, start_us=10))
    sim.run_until(10 * MS)
    assert runs_of(sim) == [(0, 0, 2500 * US), (1, 2500 * US, 100 * US)]


def test_who_is_switched_in_pays_for_the_switch() -> None:
    sim = Simulation(EngineModel(max_chunk_ns=10 * MS, switch_cost_ns=50 * US), "fifo")
    first = tenant(sim, once(300))
    second = tenant(sim, Program(work_ns=[100 * US] * 2, count=1, start_ns=1))
    sim.run_until(10 * MS)
    assert runs_of(sim) == [(0, 0, 350 * US), (1, 350 * US, 250 * US)], "one switch for two kernels in a row"
    assert sim.slice_counters(first).overhead_ns == 50 * US
    assert sim.slice_counters(second).overhead_ns == 50 * US
    assert sim.counters().switches == 2
    check_sums(sim, [first, second])


def test_who_had_the_engine_last_comes_back_without_a_switch() -> None:
    sim = Simulation(EngineModel(max_chunk_ns=10 * MS, switch_cost_ns=50 * US), "fifo")
    only = tenant(sim, Program(work_ns=[100 * US], think_ns=MS, count=3))
    sim.run_until(10 * MS)
    assert sim.slice_counters(only).overhead_ns == 50 * US
    assert [run[1] for run in runs_of(sim)] == [0, 1150 * US, 2250 * US]


def test_a_splittable_engine_splits_at_the_limit_and_charges_for_it() -> None:
    model = EngineModel(kind="splittable", max_chunk_ns=MS, min_chunk_ns=10 * US, split_cost_ns=2 * US)
    sim = Simulation(model, "timeslice", parameters={"timeslice_ns": 500 * US})
    long = tenant(sim, once(1400))
    short = tenant(sim, once(100))
    sim.run_until(10 * MS)
    # 498 us and a split, the other's 100 us, 498 us and a split, the last 404 us
    assert runs_of(sim) == [
        (0, 0, 500 * US),
        (1, 500 * US, 100 * US),
        (0, 600 * US, 500 * US),
        (0, 1100 * US, 404 * US),
    ]
    assert sim.slice_counters(long).overhead_ns == 4 * US
    assert sim.slice_counters(long).items == 1
    check_sums(sim, [long, short])


def test_a_piece_is_never_longer_than_the_largest_chunk() -> None:
    sim = Simulation(EngineModel(kind="splittable", max_chunk_ns=250 * US), "timeslice")
    tenant(sim, once(1000))
    sim.run_until(10 * MS)
    assert sim.counters().decisions == 4


def test_a_limit_below_the_smallest_chunk_is_that_chunk() -> None:
    model = EngineModel(kind="splittable", max_chunk_ns=MS, min_chunk_ns=100 * US, switch_cost_ns=45 * US)
    sim = Simulation(model, "timeslice", parameters={"timeslice_ns": 120 * US})
    tenant(sim, once(1000))
    tenant(sim, once(1000))
    sim.run_until(300 * US)
    assert runs_of(sim)[:2] == [(0, 0, 145 * US), (1, 145 * US, 145 * US)]


def test_a_preemptible_engine_is_taken_away_in_the_middle_of_a_kernel() -> None:
    model = EngineModel(kind="preemptible", switch_cost_ns=10 * US, preempt_latency_ns=40 * US)
    sim = Simulation(model, "strict_priority")
    low = tenant(sim, once(1000), priority=1)
    high = tenant(sim, once(200, start_us=300), priority=0)
    sim.run_until(10 * MS)
    assert runs_of(sim) == [(0, 0, 300 * US), (1, 300 * US, 250 * US), (0, 550 * US, 720 * US)]
    assert [int(run["reason"]) for run in sim.runs()] == [Reason.PREEMPTED, Reason.DRY, Reason.DRY]
    assert sim.slice_counters(high).overhead_ns == 50 * US, "who is switched in pays for the preemption"
    assert sim.slice_counters(low).overhead_ns == 20 * US
    assert sim.counters().preemptions == 1
    check_sums(sim, [low, high])


def test_a_preemption_within_the_switch_loses_no_work() -> None:
    model = EngineModel(kind="preemptible", switch_cost_ns=50 * US)
    sim = Simulation(model, "strict_priority")
    low = tenant(sim, once(1000), priority=1)
    tenant(sim, once(200, start_us=30), priority=0)
    sim.run_until(10 * MS)
    assert sim.slice_counters(low).work_ns == MS
    assert sim.slice_counters(low).overhead_ns == 80 * US


def test_other_engines_finish_the_piece_before_a_better_priority() -> None:
    sim = Simulation(WHOLE, "strict_priority")
    tenant(sim, once(1000), priority=1)
    high = tenant(sim, once(200, start_us=300), priority=0)
    sim.run_until(10 * MS)
    assert sim.slice_counters(high).max_wait_ns == 700 * US
    assert sim.counters().preemptions == 0


def test_the_core_is_never_asked_for_more_than_it_granted() -> None:
    """The costs of starting a piece count towards its limit, so no run outlasts its timeslice."""
    model = EngineModel(kind="splittable", max_chunk_ns=400 * US, switch_cost_ns=30 * US, split_cost_ns=5 * US)
    sim = Simulation(model)
    slices = [tenant(sim, Backlog(work_ns=[3 * MS, 70 * US]), weight=1 + i) for i in range(3)]
    sim.run_until(200 * MS)
    runs = sim.runs()
    ended = runs[runs["reason"] == Reason.TIMESLICE]
    assert len(ended) > 100
    smallest_piece = 1_000 + 30 * US + 5 * US
    assert set(ended["length_ns"] // MS) == {1}
    assert max(ended["length_ns"]) < MS + smallest_piece
    check_sums(sim, slices)


def test_a_switch_takes_nothing_from_the_largest_chunk() -> None:
    sim = Simulation(EngineModel(kind="splittable", max_chunk_ns=400 * US, switch_cost_ns=30 * US, split_cost_ns=US))
    only = tenant(sim, once(400))
    sim.run_until(MS)
    assert sim.counters().decisions == 1
    assert sim.slice_counters(only).overhead_ns == 30 * US
