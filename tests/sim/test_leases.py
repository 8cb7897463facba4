# SPDX-License-Identifier: Apache-2.0
"""The scheduler core with leases, on simulated engines: shares, caps, reservations, programs with gaps, gap fill."""

from __future__ import annotations

import pytest

from vgpumgr.sched.core import Band, GroupParams
from vgpumgr.sim.engine import Backlog, EngineModel, Program, SimGroup, SimSlice, Simulation

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
# An H100: a gate of 600 us, switches of 130 us.
ENGINE = EngineModel(kind="splittable", max_chunk_ns=600 * US, min_chunk_ns=20 * US, switch_cost_ns=130 * US)
BOUND = 5 * MS + 600 * US


def simulation(*, model: EngineModel = ENGINE, **parameters: int) -> Simulation:
    return Simulation(model, "vgpumgr_lease", parameters=parameters, seed=1)


def tenant(
    sim: Simulation, weight: int, source: Program | Backlog, timeslice_ns: int = 5 * MS, **params: int
) -> tuple[SimGroup, SimSlice]:
    group = sim.add_group("tenant", GroupParams(weight=weight, timeslice_ns=timeslice_ns, **params))  # type: ignore[arg-type]
    return group, sim.add_slice(group, source)


@pytest.mark.parametrize("weights", [(3, 1), (60, 30, 10), (1, 1, 1, 1)])
@pytest.mark.parametrize("kernel_ns", [20 * US, 300 * US, 2 * MS])
def test_shares_follow_weights(weights: tuple[int, ...], kernel_ns: int) -> None:
    sim = simulation()
    groups = [tenant(sim, weight, Backlog(work_ns=kernel_ns))[0] for weight in weights]
    sim.run_until(2 * SECOND)
    for group, weight in zip(groups, weights, strict=True):
        assert abs(sim.run_ns(group) - 2 * SECOND * weight / sum(weights)) <= BOUND
        assert abs(sim.core_lag_ns(group)) <= BOUND


def test_a_cap_holds_and_the_rest_is_shared() -> None:
    sim = simulation()
    capped, _ = tenant(sim, 3, Backlog(work_ns=200 * US), cap_ns=2 * MS, cap_period_ns=10 * MS, burst_ns=10 * MS)
    other, _ = tenant(sim, 1, Backlog(work_ns=200 * US))
    sim.run_until(2 * SECOND)
    assert sim.run_ns(capped) <= 0.2 * 2 * SECOND + 10 * MS + 600 * US
    assert sim.run_ns(capped) >= 0.95 * 0.2 * 2 * SECOND
    assert sim.counters().idle_ns == 0
    assert sim.run_ns(other) == 2 * SECOND - sim.run_ns(capped)


def test_two_slices_of_a_tenant_share_its_part() -> None:
    sim = simulation()
    two, first = tenant(sim, 1, Backlog(work_ns=200 * US))
    second = sim.add_slice(two, Backlog(work_ns=200 * US))
    one, _ = tenant(sim, 1, Backlog(work_ns=200 * US))
    sim.run_until(2 * SECOND)
    assert abs(sim.run_ns(two) - sim.run_ns(one)) <= 2 * BOUND
    runs = [sim.slice_counters(each).run_ns for each in (first, second)]
    assert abs(runs[0] - runs[1]) <= 2 * BOUND


def test_a_lone_tenant_has_one_lease_and_pays_for_what_it_uses() -> None:
    sim = simulation()
    gaps = Program(work_ns=[100 * US], think_ns=300 * US)
    group, one = tenant(sim, 1, gaps)
    sim.run_until(SECOND + 180 * US)
    used = sim.slice_counters(one).run_ns
    stats = sim.core_stats(group)
    assert (stats.run_ns, stats.switches) == (used, 1)
    assert sim.counters().idle_ns == sim.now_ns - used


def test_programs_that_wait_for_their_own_host_run_side_by_side() -> None:
    """Each tenant needs a quarter of the engine; exclusive turns with idle time would halve that."""

    def done(count: int) -> int:
        sim = simulation(model=EngineModel(kind="splittable", max_chunk_ns=600 * US, switch_cost_ns=10 * US))
        slices = [tenant(sim, 1, Program(work_ns=[500 * US], think_ns=1500 * US))[1] for _ in range(count)]
        sim.run_until(2 * SECOND)
        return sum(sim.slice_counters(one).requests_done for one in slices)

    assert done(2) >= 1.7 * done(1)


def test_a_reservation_is_served_within_a_chunk() -> None:
    """Demand within the reservation ends another tenant's lease at once, and the gate closes."""
    sim = simulation(reserve_limit_permille=750, model=EngineModel(kind="preemptible", max_chunk_ns=600 * US))
    group = sim.add_group(
        "quick",
        GroupParams(weight=5, timeslice_ns=5 * MS, band=Band.LATENCY, reserve_ns=2 * MS, reserve_period_ns=10 * MS),
    )
    quick = sim.add_slice(group, Program(work_ns=[400 * US], think_ns=4 * MS))
    for _ in range(4):
        tenant(sim, 1, Backlog(work_ns=3 * MS))
    sim.run_until(2 * SECOND)
    assert sim.slice_counters(quick).requests_done > 300
    assert sim.slice_counters(quick).max_wait_ns <= 600 * US


@pytest.mark.parametrize(("gap_us", "fills"), [(50, False), (1000, True)])
def test_a_gap_is_filled_if_it_is_longer_than_two_switches(gap_us: int, fills: bool) -> None:
    model = EngineModel(kind="preemptible", max_chunk_ns=600 * US, min_chunk_ns=5 * US, switch_cost_ns=50 * US)
    sim = simulation(reserve_limit_permille=750, model=model)
    holder = sim.add_group(
        "holder",
        GroupParams(
            weight=9,
            timeslice_ns=5 * MS,
            band=Band.LATENCY,
            reserve_ns=60 * MS,
            reserve_period_ns=100 * MS,
            hold_max_ns=5 * MS,
            inversion_permille=20,
            inversion_burst_ns=20 * US,
        ),
    )
    service = sim.add_slice(
        holder,
        Program(work_ns=[100 * US] * 40, sync_ns=[gap_us * US] * 40, sync=[True] * 40, think_ns=20 * MS),
    )
    tenant(sim, 1, Backlog(work_ns=20 * US))
    sim.run_until(3 * SECOND)
    stats = sim.core_stats(holder)
    assert stats.holds > 1000
    assert (stats.fills > 1000) == fills
    assert sim.slice_counters(service).requests_done > 0
    assert stats.inversion_ns <= 0.02 * sim.now_ns + 20 * US + 600 * US
