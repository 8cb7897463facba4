# SPDX-License-Identifier: Apache-2.0
"""Which job runs next, and what that does to completion times."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpumgr.policy.job_order import (
    FIRST_ESTIMATE_NS,
    LAS_LEVEL_NS,
    ORDERS,
    Job,
    charge,
    error_sigma_of,
    expected_rest,
    fair,
    fifo,
    join,
    las,
    pack,
    srtf,
)
from vgpumgr.sim.jobs import Device, JobSpec, shortest_remaining_bound_ns, simulate


def job(name: str, arrived: int = 0, *, estimate: int | None = None, ready: int | None = 0, used: int = 0) -> Job:
    return Job(key=name, number=ord(name), arrived_ns=arrived, estimate_ns=estimate, ready_since_ns=ready, used_ns=used)


def chosen(order: object, *jobs: Job) -> object:
    picked = order(jobs)  # type: ignore[operator]
    return picked and picked.key


def test_fifo_waits_for_the_first_job_even_while_its_host_works() -> None:
    assert chosen(fifo, job("b", 2), job("a", 1)) == "a"
    assert chosen(fifo, job("b", 2), job("a", 1, ready=None)) is None


def test_pack_runs_what_has_been_ready_longest() -> None:
    assert chosen(pack, job("a", 1, ready=7), job("b", 2, ready=5), job("c", 0, ready=None)) == "b"


def test_srtf_runs_what_needs_least_still() -> None:
    assert chosen(srtf, job("a", estimate=100, used=80), job("b", estimate=30), job("c", estimate=90, used=10)) == "a"


def test_an_exact_estimate_that_proves_short_is_doubled() -> None:
    assert [job("a", estimate=10, used=used).remaining_ns for used in (0, 9, 10, 19, 20, 39, 40)] == [
        10,
        1,
        10,
        1,
        20,
        1,
        40,
    ]


def test_a_job_of_unknown_length_is_thought_to_need_the_first_estimate() -> None:
    assert job("a").remaining_ns == FIRST_ESTIMATE_NS


def test_a_newcomer_starts_level_under_fair_and_is_served_alone_under_las() -> None:
    old, older, new = (job(name) for name in "abc")
    charge(old, 50 * LAS_LEVEL_NS)
    charge(older, 40 * LAS_LEVEL_NS)
    join(new, [old, older])
    assert new.fair_ns == older.fair_ns
    charge(new, 5 * LAS_LEVEL_NS)
    assert chosen(fair, old, older, new) == "b"
    assert chosen(las, old, older, new) == "c"


def test_las_keeps_to_the_oldest_within_a_level() -> None:
    assert chosen(las, job("a", 2, used=LAS_LEVEL_NS // 2), job("b", 1, used=LAS_LEVEL_NS - 1)) == "b"
    assert chosen(las, job("a", 2), job("b", 1, used=LAS_LEVEL_NS)) == "a"


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_nobody_runs_where_nobody_is_ready(order: object) -> None:
    assert chosen(order) is None
    assert chosen(order, job("a", ready=None)) is None


def test_the_expected_rest_is_the_mean_of_what_is_left() -> None:
    rng = random.Random(3)
    lengths = [100 * math.exp(rng.gauss(0, 0.5)) for _ in range(200_000)]
    for used in (30, 100, 250):
        rest = fmean(length - used for length in lengths if length > used)
        assert expected_rest(100, 0.5, used) == pytest.approx(rest, rel=0.03)


def test_far_beyond_its_estimate_a_job_is_thought_to_need_as_much_again() -> None:
    assert expected_rest(100, 0.1, 10_000) == 10_000


def test_the_error_of_estimates_is_learned_from_ended_jobs() -> None:
    rng = random.Random(5)
    history = [(1_000_000, round(1_000_000 * math.exp(rng.gauss(0, 0.5)))) for _ in range(4000)]
    assert error_sigma_of(history) == pytest.approx(0.5, rel=0.05)
    assert error_sigma_of([]) == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: job("a", -1), "arrived_ns -1"),
        (lambda: job("a", estimate=0), "estimate of 0 ns"),
        (lambda: Job(key="a", number=0, arrived_ns=0, error_sigma=-0.1), "error_sigma -0.1"),
        (lambda: charge(job("a"), -5), "iteration of -5 ns"),
        (lambda: error_sigma_of([(0, 1)]), "both must be above 0"),
        (lambda: simulate([], fifo), "no jobs"),
        (lambda: JobSpec(arrival_ns=0, work_ns=0, iteration_ns=1), "above 0"),
        (lambda: Device(overlap=(1.0, 0.9)), "must not be slower"),
        (lambda: Device(overlap=(2.0,)), "alone runs at 1.0"),
        (lambda: Device(switch_cost_ns=-1), "switch_cost_ns -1"),
    ],
)
def test_bad_input_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]


# ---- on a device, by hand


def specs(*jobs: tuple[int, int], iteration: int = 1) -> list[JobSpec]:
    return [
        JobSpec(arrival_ns=arrival, work_ns=work, iteration_ns=iteration, estimate_ns=work) for arrival, work in jobs
    ]


def ends(order: str, jobs: list[JobSpec], device: Device | None = None) -> list[int]:
    return [ended.end_ns for ended in simulate(jobs, ORDERS[order], device or Device(switch_cost_ns=0)).ended]


def test_three_jobs_under_each_order() -> None:
    jobs = specs((0, 6), (1, 2), (2, 1))
    assert ends("fifo", jobs) == [6, 8, 9]
    assert ends("srtf", jobs) == [9, 3, 4]
    assert ends("fair", jobs) == [9, 6, 4]


def test_a_job_is_not_stopped_inside_an_iteration() -> None:
    assert ends("srtf", specs((0, 6), (1, 1), iteration=4)) == [7, 5]


def test_two_lanes_do_the_overlap_between_them() -> None:
    device = Device(overlap=(1.0, 1.25), switch_cost_ns=0)
    assert ends("fifo", specs((0, 1000), (0, 500), iteration=500), device) == [1300, 800]


def test_a_switch_costs_and_is_counted() -> None:
    outcome = simulate(specs((0, 3), (1, 1)), ORDERS["srtf"], Device(switch_cost_ns=10))
    assert outcome.switches == 2
    assert [ended.end_ns for ended in outcome.ended] == [24, 12]


# ---- properties (research: I15)


@st.composite
def unit_traces(draw: st.DrawFn) -> list[JobSpec]:
    return specs(*draw(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=12)))


@given(jobs=unit_traces())
@settings(max_examples=150, deadline=None)
def test_srtf_with_exact_estimates_is_the_optimum(jobs: list[JobSpec]) -> None:
    device = Device(switch_cost_ns=0)
    means = {name: simulate(jobs, order, device).mean_completion_ns for name, order in ORDERS.items()}
    assert means["srtf"] == pytest.approx(shortest_remaining_bound_ns(jobs))
    assert means["srtf"] <= min(means.values()) + 1e-9


@given(jobs=unit_traces(), lanes=st.integers(1, 3), order=st.sampled_from(sorted(ORDERS)))
@settings(max_examples=80, deadline=None)
def test_no_work_is_lost_or_invented(jobs: list[JobSpec], lanes: int, order: str) -> None:
    device = Device(overlap=(1.0,) * lanes, switch_cost_ns=0)
    outcome = simulate(jobs, ORDERS[order], device)
    assert outcome.iterations == sum(spec.work_ns for spec in jobs)
    busy_until = 0
    for arrival, work in sorted((spec.arrival_ns, spec.work_ns) for spec in jobs):
        busy_until = max(busy_until, arrival) + work
    assert max(ended.end_ns for ended in outcome.ended) == pytest.approx(busy_until), "the device never idles"


@given(
    works=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40), st.integers(1, 9)), min_size=2, max_size=8),
    order=st.sampled_from(sorted(ORDERS)),
)
@settings(max_examples=80, deadline=None)
def test_srtf_picks_the_least_at_every_boundary(works: list[tuple[int, int, int]], order: str) -> None:
    """Each choice is compared with all ready jobs, by a plain implementation of the rule."""

    def checked(jobs: list[Job]) -> Job | None:
        picked = ORDERS[order](jobs)
        assert (picked is None) == (not jobs)
        if order == "srtf" and picked is not None:
            assert all((picked.estimate_ns or 0) - picked.used_ns <= (j.estimate_ns or 0) - j.used_ns for j in jobs)
        return picked

    jobs = [
        JobSpec(arrival_ns=arrival, work_ns=work, iteration_ns=iteration, estimate_ns=work)
        for arrival, work, iteration in works
    ]
    simulate(jobs, checked)  # type: ignore[arg-type]


@given(
    works=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=6),
)
@settings(max_examples=150, deadline=None)
def test_srtf_is_never_worse_than_fifo_whatever_the_iterations(works: list[tuple[int, int, int]]) -> None:
    jobs = [
        JobSpec(arrival_ns=arrival, work_ns=work, iteration_ns=iteration, estimate_ns=work)
        for arrival, work, iteration in works
    ]
    device = Device(switch_cost_ns=0)
    assert simulate(jobs, srtf, device).mean_completion_ns <= simulate(jobs, fifo, device).mean_completion_ns + 1e-9


def test_rounding_never_stops_the_clock() -> None:
    """Three lanes share a speed that no float represents exactly, a day after the start."""
    day_ns = 86_400 * 10**9
    jobs = specs(*((day_ns + 7 * number, 999_999_937) for number in range(9)), iteration=10_000_019)
    outcome = simulate(jobs, ORDERS["fair"], Device(overlap=(1.0, 1.1, 1.3), switch_cost_ns=1))
    assert len(outcome.ended) == 9
    assert outcome.makespan_ns == pytest.approx(9 * 999_999_937 / 1.3, rel=0.02)
