# SPDX-License-Identifier: Apache-2.0
"""The behaviour of host programs, by cases small enough to compute by hand."""

from __future__ import annotations

import numpy as np

from tests.sim.engines import MS, SECOND, US, WHOLE, tenant
from vgpumgr.sim.engine import Backlog, Program, Simulation, requests_of_one_kernel


def fifo(**options: bool) -> Simulation:
    return Simulation(WHOLE, "fifo", **options)


def times(sim: Simulation, *columns: str) -> list[tuple[int, ...]]:
    """These columns of each completed kernel, in us."""
    items = sim.items()
    return [tuple(int(item[column]) // US for column in columns) for item in items]


def test_launches_run_ahead_of_the_engine() -> None:
    sim = fifo(record_items=True)
    tenant(sim, Program(work_ns=[100 * US] * 3, launch_ns=10 * US, count=1))
    sim.run_until(MS)
    assert times(sim, "submitted_ns", "ready_ns", "start_ns", "end_ns") == [
        (10, 10, 10, 110),
        (20, 110, 110, 210),
        (30, 210, 210, 310),
    ]


def test_slow_launches_leave_gaps() -> None:
    sim = fifo(record_items=True)
    tenant(sim, Program(work_ns=[10 * US] * 3, launch_ns=[5 * US, 50 * US, 20 * US], count=1))
    sim.run_until(MS)
    assert times(sim, "start_ns", "end_ns") == [(5, 15), (55, 65), (75, 85)]


def test_a_synchronisation_waits_for_all_before_it() -> None:
    sim = fifo(record_items=True)
    tenant(
        sim,
        Program(
            work_ns=[100 * US] * 4,
            launch_ns=10 * US,
            sync=[False, True, False, False],
            sync_ns=1000 * US,
            count=1,
        ),
    )
    sim.run_until(10 * MS)
    # two kernels end at 210 us; the third comes 1000 us of host time and a launch later
    assert times(sim, "submitted_ns", "end_ns") == [(10, 110), (20, 210), (1220, 1320), (1230, 1420)]


def test_a_full_queue_stops_the_host() -> None:
    sim = fifo(record_items=True)
    tenant(sim, Program(work_ns=[100 * US] * 4, launch_ns=10 * US, count=1, queue_depth=2))
    sim.run_until(MS)
    # the third is launched at 30 us but has to wait for a place until the first is done
    assert times(sim, "submitted_ns") == [(10,), (20,), (110,), (210,)]


def test_closed_requests_follow_their_pause() -> None:
    sim = fifo()
    device = tenant(
        sim,
        Program(work_ns=[100 * US, 200 * US, 400 * US], requests=[0, 1], think_ns=[MS, 2 * MS], count=3),
    )
    sim.run_until(20 * MS)
    found = [tuple(int(value) // US for value in request) for request in sim.requests(device)]
    assert found == [(0, 0, 100, 100), (1100, 1100, 1700, 600), (3700, 3700, 3800, 100)]
    assert sim.is_over
    assert sim.slice_counters(device).requests_arrived == 3


def test_open_requests_queue_in_order() -> None:
    sim = fifo()
    device = tenant(sim, requests_of_one_kernel([0, 50 * US, 60 * US, MS], 100 * US))
    sim.run_until(500 * US)
    assert sim.slice_counters(device).requests_arrived == 3
    assert not sim.is_over
    sim.run_until(2 * MS)
    found = [(int(r["arrival_ns"]) // US, int(r["end_ns"]) // US) for r in sim.requests(device)]
    assert found == [(0, 100), (50, 200), (60, 300), (1000, 1100)]
    assert sim.is_over


def test_a_backlog_always_has_work() -> None:
    sim = fifo()
    device = tenant(sim, Backlog(work_ns=[10 * US, 30 * US], start_ns=MS))
    sim.run_until(11 * MS)
    assert sim.counters().idle_ns == MS
    assert sim.slice_counters(device).items == 499, "what ends at the end has not happened yet"
    sim.run_until(11 * MS + 1)
    assert sim.slice_counters(device).items == 500
    assert not len(sim.requests(device))


def test_a_backlog_may_nap() -> None:
    sim = fifo()
    device = tenant(sim, Backlog(work_ns=[100 * US, 200 * US], nap_every=3, nap_ns=MS))
    sim.run_until(5 * MS)
    found = [(int(r["start_ns"]) // US, int(r["end_ns"]) // US) for r in sim.requests(device)]
    assert found == [(0, 400), (1400, 1900), (2900, 3300), (4300, 4800)], "the sizes go on where they stopped"


def test_jitter_has_the_deviation_asked_for_and_stays_with_the_seed() -> None:
    def works(seed: int) -> np.ndarray:
        sim = Simulation(WHOLE, "fifo", seed=seed, record_items=True)
        tenant(sim, Backlog(work_ns=100 * US, work_jitter_permille=50))
        sim.run_until(SECOND)
        return sim.items()["work_ns"]

    first = works(7)
    assert abs(first.mean() / (100 * US) - 1) < 0.002
    assert abs(first.std() / (100 * US) - 0.05) < 0.002
    assert first.min() > 80 * US
    assert np.array_equal(first, works(7))
    assert not np.array_equal(first[:100], works(8)[:100])


def test_a_parked_slice_waits_and_a_removed_one_is_gone() -> None:
    sim = fifo()
    one, other = (tenant(sim, Backlog(work_ns=100 * US)) for _ in range(2))
    sim.park_slice(one)
    sim.run_until(MS)
    assert sim.slice_counters(one).run_ns == 0
    sim.park_slice(one, parked=False)
    sim.park_slice(other)
    sim.run_until(2 * MS)
    assert sim.slice_counters(one).run_ns > 800 * US
    before = sim.slice_counters(one).run_ns
    sim.remove_slice(one)
    sim.run_until(3 * MS)
    assert sim.slice_counters(one).run_ns == before
    assert sim.counters().idle_ns == MS
