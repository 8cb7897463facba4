# SPDX-License-Identifier: Apache-2.0
"""The core gets what programs tell it: requests with gaps, holds, hints, ghosts, urgent wakeups."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.engines import MS, SECOND, US, check_sums, params, share, tenant
from vgpumgr.sched.core import Band, Mode, Policy
from vgpumgr.sim.engine import (
    Backlog,
    Claim,
    EngineModel,
    GroupParams,
    Program,
    Reason,
    SimSlice,
    Simulation,
    requests_of_one_kernel,
)

MODEL = EngineModel(max_chunk_ns=500 * US)
RESERVED = {"reserve_limit_permille": 750}


def reserved(**others: int) -> GroupParams:
    return GroupParams(
        weight=3,
        timeslice_ns=MS,
        band=Band.LATENCY,
        reserve_ns=7 * MS,
        reserve_period_ns=10 * MS,
        **others,
    )


def request_with_gaps(**others: Any) -> Program:
    """20 kernels of 100 us, each waited for, with 50 us of host time before each: 3 ms in all."""
    return Program(work_ns=[100 * US] * 20, sync=True, launch_ns=50 * US, think_ns=5 * MS, **others)


def against_long_kernels(program: Program, **others: int) -> tuple[Simulation, SimSlice, SimSlice]:
    sim = Simulation(MODEL, parameters=RESERVED)
    high = sim.add_slice(sim.add_group("high", reserved(**others)), program)
    low = tenant(sim, Backlog(work_ns=500 * US))
    sim.run_until(SECOND)
    check_sums(sim, [high, low])
    return sim, high, low


def slowdown(sim: Simulation, one: SimSlice) -> float:
    requests = sim.requests(one)
    return float((requests["end_ns"] - requests["arrival_ns"]).mean() / (3 * MS))


def test_who_says_that_more_follows_keeps_the_engine_through_its_gaps() -> None:
    sim, high, _ = against_long_kernels(request_with_gaps(), hold_max_ns=MS)
    assert slowdown(sim, high) <= 1 + 500 / 3000, "only the first kernel of a request waits, for at most one chunk"
    assert sim.slice_counters(high).max_wait_ns <= 500 * US
    stats = sim.core_stats(high.group)
    assert stats.holds > 1000
    assert sim.slice_counters(high).hold_ns == stats.hold_ns
    assert sim.slice_counters(high).run_ns + stats.hold_ns == stats.run_ns


@pytest.mark.parametrize("claims", [Claim.NONE, Claim.MORE_FOLLOWS | Claim.END_OF_REQUEST])
def test_who_says_nothing_or_the_end_does_not(claims: Claim) -> None:
    sim, high, _ = against_long_kernels(request_with_gaps(claims=[int(claims)] * 20), hold_max_ns=MS)
    assert sim.core_stats(high.group).holds == 0
    assert slowdown(sim, high) > 3


def test_the_truth_is_what_a_program_says_by_itself() -> None:
    """Only the last kernel of a request ends it, so nobody holds the engine through a pause."""
    sim, high, _ = against_long_kernels(request_with_gaps(), hold_max_ns=MS)
    done = sim.slice_counters(high).requests_done
    assert abs(sim.core_stats(high.group).holds - 19 * done) <= 19


def test_gaps_are_learnt_and_filled_by_kernel_id() -> None:
    """With an inversion budget, kernels of 20 us fill gaps of 50 us, and kernels of 500 us do not."""
    shares = []
    for work_us in (20, 500):
        sim = Simulation(MODEL, parameters=RESERVED)
        program = Program(work_ns=[100 * US] * 20, launch_ns=150 * US, kernel_id=[7] * 20)
        high = sim.add_slice(sim.add_group("high", reserved(hold_max_ns=MS, inversion_permille=10)), program)
        low = tenant(sim, Backlog(work_ns=work_us * US, kernel_id=1))
        sim.run_until(SECOND)
        check_sums(sim, [high, low])
        shares.append(sim.core_stats(high.group).fills)
    assert shares[0] > 10 * max(shares[1], 1)


def test_a_hint_above_the_longest_chunk_is_that_chunk() -> None:
    """The core refuses such an item; the program must not get stuck because of it."""
    hashes = set()
    for hint_ns in (500 * US, SECOND):
        sim, _, low = against_long_kernels(request_with_gaps(hint_ns=hint_ns), hold_max_ns=MS)
        assert sim.slice_counters(low).items > 1000
        hashes.add(sim.schedule_hash)
    assert len(hashes) == 1


def test_an_urgent_wakeup_takes_a_preemptible_engine_away() -> None:
    for kind, longest_ns in (("preemptible", 0), ("splittable", 250 * US)):
        sim = Simulation(EngineModel(kind=kind, max_chunk_ns=250 * US), parameters=RESERVED)
        arrivals = range(3_333_333, SECOND, 9_999_991)
        high = sim.add_slice(sim.add_group("high", reserved()), requests_of_one_kernel(arrivals, 200 * US))
        low = tenant(sim, Backlog(work_ns=20 * MS))
        sim.run_until(SECOND)
        assert sim.slice_counters(high).max_wait_ns <= longest_ns
        assert (sim.counters().preemptions > 50) == (kind == "preemptible")
        assert Reason.LATENCY in set(sim.runs()["reason"])
        check_sums(sim, [high, low])


def test_ghosts_pay_for_the_engine_that_idles_for_them() -> None:
    sim = Simulation(MODEL, parameters={"policy": Policy.EQUAL_SHARE})
    busy = tenant(sim, Backlog(work_ns=100 * US))
    idle = tenant(sim, requests_of_one_kernel([2 * SECOND], 100 * US))
    sim.run_until(SECOND)
    assert share(sim, busy) == pytest.approx(0.5, abs=0.01)
    assert sim.slice_counters(idle).hold_ns == sim.core_stats(idle.group).ghost_ns
    check_sums(sim, [busy, idle])


def test_places_that_are_not_sold_idle_at_nobodys_cost() -> None:
    sim = Simulation(MODEL, parameters={"policy": Policy.FIXED_SHARE, "places": 4})
    group = sim.add_group("a", GroupParams(weight=1, timeslice_ns=MS, mode=Mode.STRICT))
    busy = sim.add_slice(group, Backlog(work_ns=100 * US))
    sim.run_until(SECOND)
    assert share(sim, busy) == pytest.approx(0.25, abs=0.01)
    assert sim.counters().idle_ns == SECOND - sim.slice_counters(busy).run_ns


def test_lags_of_backlogged_groups_are_the_cores() -> None:
    sim = Simulation(MODEL)
    slices = [tenant(sim, Backlog(work_ns=300 * US), weight=weight) for weight in (1, 2, 5)]
    sim.run_until(SECOND)
    lags = [sim.core_lag_ns(one.group) for one in slices]
    assert abs(sum(lags)) < 10
    for one, weight, lag in zip(slices, (1, 2, 5), lags, strict=True):
        assert lag == pytest.approx(SECOND * weight / 8 - sim.core_stats(one.group).run_ns, abs=10)


def test_a_baseline_has_no_counters_of_the_core() -> None:
    sim = Simulation(MODEL, "fifo")
    group = sim.add_group("a", params())
    for call in (sim.core_stats, sim.core_lag_ns):
        with pytest.raises(ValueError, match="scheduler: fifo is not the core"):
            call(group)
