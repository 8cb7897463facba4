# SPDX-License-Identifier: Apache-2.0
"""The request-level loop: examples by hand, and properties that every discipline must keep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpumgr.sim.service_queues import edf, edf_fair, edf_shed, fifo, timeslice
from vgpumgr.sim.service_sharing import reserved, shared
from vgpumgr.sim.services import MS, SECOND_NS, Call, Engine, Load, Served, Service, offered, services

Discipline = Callable[[Sequence[Service], Sequence[Call], Engine], Served]
DISCIPLINES: dict[str, Discipline] = {
    "shared": shared,
    "fifo": fifo,
    "timeslice": timeslice,
    "edf": edf,
    "edf-shed": edf_shed,
    "edf-fair": edf_fair,
    "reserved": reserved,
}
DROPPING = {"edf-shed", "edf-fair", "reserved"}
TWO = (Service(name="a", work_ns=4 * MS, qos_ns=20 * MS), Service(name="b", work_ns=2 * MS, qos_ns=10 * MS))
PLAIN = Engine(interference=0.0, switch_ns=0)


def calls(*arrivals: tuple[int, float]) -> list[Call]:
    """(service, arrival in ms)"""
    return [
        Call(number, service, at * MS, at * MS + TWO[service].qos_ns, float(TWO[service].work_ns))
        for number, (service, at) in enumerate(arrivals)
    ]


def ends_ms(discipline: str, *arrivals: tuple[int, float], engine: Engine = PLAIN) -> list[float | None]:
    served = DISCIPLINES[discipline](TWO, calls(*arrivals), engine)
    return [None if call.end_ns is None else round(call.end_ns / MS, 3) for call in served.calls]


def test_two_requests_under_each_discipline() -> None:
    both = ((0, 0.0), (1, 1.0))
    assert ends_ms("fifo", *both) == [4, 6]
    assert ends_ms("shared", *both) == [6, 5]
    assert ends_ms("edf", *both) == [6, 3]
    assert ends_ms("edf-shed", *both) == [6, 3]
    assert ends_ms("timeslice", *both) == [6, 4]


def test_what_sharing_and_switching_cost() -> None:
    both = ((0, 0.0), (1, 1.0))
    assert ends_ms("shared", *both, engine=Engine(interference=0.5)) == [10, 9]
    assert ends_ms("timeslice", *both, engine=Engine(switch_ns=1 * MS)) == [9, 6]


def test_a_request_gives_way_at_the_end_of_a_kernel() -> None:
    engine = Engine(kernel_ns=3 * MS)
    assert ends_ms("edf", (0, 0.0), (1, 1.0), engine=engine) == [6, 5]


def test_what_cannot_be_in_time_is_dropped_and_counts() -> None:
    crowd = tuple((1, 0.0) for _ in range(8))
    assert ends_ms("edf-shed", *crowd).count(None) == 3
    served = edf_shed(TWO, calls(*crowd), PLAIN)
    assert served.goodput() == 5 / 8
    assert served.least_goodput() == 5 / 8
    assert edf(TWO, calls(*crowd), PLAIN).goodput() == 5 / 8
    assert edf(TWO, calls(*crowd), PLAIN).latency_ms(1.0) == 16


def test_goodput_of_a_stretch_counts_those_that_arrived_in_it() -> None:
    served = fifo(TWO, calls((1, 0.0), (1, 0.0), (1, 0.0), (1, 0.0), (1, 0.0), (1, 5.0), (1, 30.0)), PLAIN)
    assert served.goodput() == 1.0
    late = fifo(TWO, calls(*((1, 0.0) for _ in range(6)), (1, 30.0)), PLAIN)
    assert late.goodput(until_ns=20 * MS) == 5 / 6
    assert late.goodput(since_ns=20 * MS) == 1.0
    assert late.goodput(service=0) == 1.0


def test_offered_load_is_what_was_asked_for() -> None:
    everyone = services()
    for load in (Load(load=0.8), Load(load=0.8, poisson=False)):
        made = offered(everyone, load, until_ns=200 * SECOND_NS, seed=4)
        work = sum(call.left_ns for call in made) / (200 * SECOND_NS)
        assert work == pytest.approx(0.8, rel=0.05)
        assert [call.number for call in made] == list(range(len(made)))
        assert all(x.arrival_ns <= y.arrival_ns for x, y in itertools.pairwise(made))
    stepped = offered(
        everyone, Load(load=0.4, swing=0, step=(0, 50 * SECOND_NS, 2.0)), until_ns=100 * SECOND_NS, seed=4
    )
    first = [call.arrival_ns for call in stepped if call.service == 0]
    assert sum(at >= 50 * SECOND_NS for at in first) / sum(at < 50 * SECOND_NS for at in first) == pytest.approx(
        2, rel=0.1
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Service(name="a", work_ns=0, qos_ns=1), "service a: 0 ns"),
        (lambda: Service(name="a", work_ns=2, qos_ns=1), "not in 1..1 ns"),
        (lambda: Load(load=0), "impossible load"),
        (lambda: Load(load=1, swing=1.0), "impossible load"),
        (lambda: Engine(interference=1.0), "impossible engine"),
        (lambda: Engine(timeslice_ns=0), "impossible engine"),
    ],
)
def test_bad_input_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize("name", DISCIPLINES)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60)), min_size=1, max_size=25).map(
        lambda rows: sorted(rows, key=lambda row: row[1])
    )
)
@settings(max_examples=40, deadline=None)
def test_no_request_is_lost_and_no_engine_time_invented(name: str, arrivals: list[tuple[int, int]]) -> None:
    made = calls(*((service, float(at)) for service, at in arrivals))
    needed = {call.number: call.left_ns for call in made}
    served = DISCIPLINES[name](TWO, made, PLAIN)
    ended = [call for call in served.calls if call.end_ns is not None]
    if name not in DROPPING:
        assert len(ended) == len(arrivals)
    for call in ended:
        assert call.end_ns is not None
        assert call.end_ns >= call.arrival_ns + needed[call.number] - 1
        assert call.left_ns == pytest.approx(0, abs=1)
    for until in (call.end_ns for call in ended):
        assert until is not None
        begun = min(call.arrival_ns for call in made)
        done = sum(needed[call.number] for call in ended if call.end_ns is not None and call.end_ns <= until)
        assert done <= until - begun + 1, "more work than time"
    for service in (0, 1):
        mine = [call.end_ns for call in served.calls if call.service == service and call.end_ns is not None]
        assert mine == sorted(mine) or name.startswith("edf"), "first come, first served within a service"


@given(seed=st.integers(0, 10_000), load=st.sampled_from([0.4, 0.95, 1.5]))
@settings(max_examples=12, deadline=None)
def test_what_is_admitted_as_feasible_misses_by_no_more_than_the_prediction_error(seed: int, load: float) -> None:
    """With exact predictions, EDF with shedding ends no request late, except for the kernel that the request waited
    for.
    """
    everyone = services()
    made = offered(everyone, Load(load=load, noise=0.0), until_ns=3 * SECOND_NS, seed=seed)
    for served in (edf_shed(everyone, made, Engine()),):
        for call in served.calls:
            if call.end_ns is not None:
                assert call.end_ns <= call.deadline_ns + 1


@pytest.mark.parametrize(("load", "least"), [(0.95, 0.93), (1.2, 0.90)])
def test_shedding_keeps_goodput_where_queues_collapse(load: float, least: float) -> None:
    everyone = services()

    def goodput(discipline: Discipline) -> float:
        made = offered(everyone, Load(load=load), until_ns=20 * SECOND_NS, seed=2)
        return discipline(everyone, made, Engine()).goodput()

    assert goodput(edf_shed) >= least
    assert max(goodput(fifo), goodput(shared), goodput(timeslice)) < 0.6


def test_a_floor_keeps_every_service_near_its_part() -> None:
    everyone = services()
    made = offered(everyone, Load(load=0.95), until_ns=30 * SECOND_NS, seed=2)
    unfair = edf_shed(everyone, made, Engine()).least_goodput()
    made = offered(everyone, Load(load=0.95), until_ns=30 * SECOND_NS, seed=2)
    fair = edf_fair(everyone, made, Engine()).least_goodput()
    assert unfair < 0.85
    assert fair > 0.88


def test_reservations_are_reported_once_a_period() -> None:
    everyone = services()
    made = offered(everyone, Load(load=0.5), until_ns=2 * SECOND_NS, seed=2)
    history = reserved(everyone, made, Engine()).reservations
    assert [round(at / (100 * MS)) for at, _ in history[:20]] == list(range(20))
    assert all(sum(ppm) <= 1_000_000 for _, ppm in history)
    assert math.isclose(sum(history[0][1]), 1_000_000, rel_tol=1e-4)
