# SPDX-License-Identifier: Apache-2.0
"""Reservations follow demand in bounded steps, and do not move when nothing changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vgpumgr.policy.reserve_controller import (
    DEADBAND,
    HEADROOM,
    LEAST_PPM,
    PERIOD_NS,
    PPM,
    STEP,
    Bounds,
    Measured,
    ReserveController,
    ServiceTimes,
)

MS = 1_000_000
QOS_NS = 100 * MS


def seen(requests: int, *, work_ms: float = 1, tail: float | None = 0.5) -> Measured:
    """Return measurements; `tail` is a fraction of QOS_NS."""
    return Measured(
        requests=requests, work_ns=round(work_ms * MS), tail_ns=None if tail is None else round(tail * QOS_NS)
    )


def controller(*names: str, **bounds: int) -> ReserveController:
    return ReserveController({name: Bounds(qos_ns=QOS_NS, **bounds) for name in names})


# ---- the predictor


def test_times_are_learned_from_batches_and_shares() -> None:
    times = ServiceTimes()
    for batch, share in ((1, 1_000_000), (4, 500_000), (8, 250_000), (2, 125_000), (16, 1_000_000)):
        times.add(batch=batch, share_ppm=share, took_ns=round((2 * batch * PPM / share + 0.5 * batch + 3) * MS))
    assert times.predict_ns(batch=3, share_ppm=300_000) == pytest.approx((20 + 1.5 + 3) * MS, rel=1e-3)
    assert times.largest_batch(share_ppm=500_000, within_ns=21 * MS, most=100) == 4
    assert times.largest_batch(share_ppm=500_000, within_ns=MS, most=100) == 0
    assert times.largest_batch(share_ppm=1_000_000, within_ns=1000 * MS, most=10) == 10


def test_one_batch_size_at_one_share_is_enough_to_predict_itself() -> None:
    times = ServiceTimes()
    times.add(batch=1, share_ppm=200_000, took_ns=7 * MS)
    assert times.predict_ns(batch=1, share_ppm=200_000) == pytest.approx(7 * MS, rel=1e-6)


def test_old_samples_fade() -> None:
    times = ServiceTimes()
    for took_ms in [5] * 300 + [9] * 300:
        times.add(batch=1, share_ppm=PPM, took_ns=took_ms * MS)
    assert times.predict_ns(batch=1, share_ppm=PPM) == pytest.approx(9 * MS, rel=0.01)


# ---- the controller, by hand


def test_services_start_even() -> None:
    assert controller("a", "b").reservations_ppm() == {"a": 500_000, "b": 500_000}


def test_a_start_outside_the_bounds_is_brought_inside_and_within_the_limit() -> None:
    control = ReserveController(
        {"a": Bounds(qos_ns=1, least_ppm=700_000), "b": Bounds(qos_ns=1), "c": Bounds(qos_ns=1, most_ppm=100_000)}
    )
    assert control.reservations_ppm() == {"a": 700_000, "b": 200_000, "c": 100_000}


def test_a_reservation_goes_to_demand_plus_headroom_and_stays() -> None:
    """20 requests of 1 ms in 100 ms are 20 %; with headroom 21 %."""
    control = controller("a", "b")
    for _ in range(100):
        now = control.step({"a": seen(20), "b": seen(20)})
    due = 200_000 * HEADROOM
    assert due <= now["a"] <= due / (1 - DEADBAND)
    for _ in range(100):
        assert control.step({"a": seen(20), "b": seen(20)}) == now


def test_a_doubled_load_is_covered_within_a_second() -> None:
    control = controller("a", "b", "c")
    for _ in range(100):
        control.step({name: seen(20) for name in "abc"})
    for _ in range(10):
        now = control.step({"a": seen(40), "b": seen(20), "c": seen(20)})
    assert now["a"] >= 400_000
    assert min(now["b"], now["c"]) >= 200_000


def test_a_late_tail_lifts_a_service_and_a_calm_one_gives_it_back() -> None:
    control = controller("a", "b")
    for _ in range(100):
        rest = control.step({"a": seen(20), "b": seen(20)})["a"]
    lifted = control.step({"a": seen(20, tail=1.1), "b": seen(20)})["a"]
    assert lifted == int(rest * 1.05)
    for _ in range(10):
        lifted = control.step({"a": seen(20, tail=1.1), "b": seen(20)})["a"]
    kept = [control.step({"a": seen(20, tail=0.8), "b": seen(20)})["a"] for _ in range(30)]
    assert set(kept) == {lifted}, "between the bands nothing moves"
    for _ in range(100):
        calm = control.step({"a": seen(20, tail=0.5), "b": seen(20)})["a"]
    assert calm <= rest * 1.01


def test_more_than_the_engine_is_shared_in_proportion_to_need() -> None:
    control = controller("a", "b")
    for _ in range(200):
        now = control.step({"a": seen(120, tail=2), "b": seen(60, tail=2)})
    assert sum(now.values()) <= PPM
    assert now["a"] / now["b"] == pytest.approx(2, rel=0.06)


def test_a_late_service_takes_from_one_that_is_fine_and_not_from_another_late_one() -> None:
    control = controller("fine", "late", "later")
    for _ in range(20):
        start = control.step({name: seen(10, tail=0.8) for name in ("fine", "late", "later")})
    now = control.step({"fine": seen(10, tail=0.8), "late": seen(10, tail=0.95), "later": seen(10, tail=1.3)})
    assert now["later"] > start["later"] * 1.08
    assert now["late"] > start["late"]
    assert now["fine"] < start["fine"] * 0.901
    for _ in range(60):
        now = control.step({"fine": seen(10, tail=0.8), "late": seen(10, tail=0.95), "later": seen(10, tail=1.3)})
        assert now["late"] > start["late"]


def test_chance_is_not_a_change_of_load() -> None:
    """The counts of a constant Poisson load vary, but the reservation stays near the need."""
    rng = random.Random(11)
    control = controller("a", "b")
    kept = []
    for period in range(1200):
        arrivals = sum(rng.random() < 0.02 for _ in range(1000))
        reserve = control.step({"a": seen(arrivals), "b": seen(20)})["a"]
        if period >= 200:
            kept.append(reserve)
    mean = sum(kept) / len(kept)
    assert mean == pytest.approx(200_000 * HEADROOM, rel=0.1)
    assert sum(abs(reserve - mean) <= 0.1 * mean for reserve in kept) >= 0.95 * len(kept)


# ---- bad input


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: ReserveController({}), "no service"),
        (lambda: ReserveController({"a": Bounds(qos_ns=1)}, limit_ppm=PPM + 1), "limit_ppm 1000001"),
        (
            lambda: ReserveController({"a": Bounds(qos_ns=1, least_ppm=600_000)}, limit_ppm=500_000),
            "add up to 600000 ppm, above the limit of 500000",
        ),
        (lambda: Bounds(qos_ns=0), "qos_ns 0"),
        (lambda: Bounds(qos_ns=1, least_ppm=LEAST_PPM - 1), "a reservation of 999..1000000"),
        (lambda: Bounds(qos_ns=1, least_ppm=5000, most_ppm=4000), "a reservation of 5000..4000"),
        (lambda: seen(-1), "impossible measurement"),
        (lambda: ServiceTimes().predict_ns(batch=1, share_ppm=1), "nothing was measured"),
        (lambda: ServiceTimes().add(batch=0, share_ppm=1, took_ns=1), "batch 0"),
        (lambda: ServiceTimes().add(batch=1, share_ppm=0, took_ns=1), "share_ppm 0"),
        (lambda: ServiceTimes().add(batch=1, share_ppm=1, took_ns=0), "took_ns 0"),
    ],
)
def test_bad_input_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def test_a_missing_or_strange_measurement_changes_nothing() -> None:
    control, twin = controller("a", "b"), controller("a", "b")
    for _ in range(20):
        control.step({"a": seen(30), "b": seen(10)})
        twin.step({"a": seen(30), "b": seen(10)})
    for wrong in ({"a": seen(90)}, {"a": seen(90), "b": seen(10), "c": seen(1)}):
        with pytest.raises(ValueError, match=r"controlled \['a', 'b'\]"):
            control.step(wrong)
    after = {"a": seen(30), "b": seen(10)}
    assert [control.step(after) for _ in range(20)] == [twin.step(after) for _ in range(20)]


# ---- properties (research: I18)

measurements = st.tuples(
    st.integers(0, 200),
    st.floats(0.01, 50),
    st.one_of(st.none(), st.floats(0, 5)),
)


@given(
    rows=st.lists(st.tuples(measurements, measurements, measurements), min_size=1, max_size=40),
    least=st.integers(LEAST_PPM, 300_000),
    most=st.integers(300_000, PPM),
    limit=st.integers(900_000, PPM),
)
@settings(max_examples=150, deadline=None)
def test_reservations_stay_in_their_bounds(
    rows: list[tuple[tuple[int, float, float | None], ...]], least: int, most: int, limit: int
) -> None:
    control = ReserveController(
        {number: Bounds(qos_ns=QOS_NS, least_ppm=least, most_ppm=most) for number in range(3)}, limit_ppm=limit
    )
    before = control.reservations_ppm()
    assert sum(before.values()) <= limit
    for row in rows:
        now = control.step(
            {number: seen(requests, work_ms=work_ms, tail=tail) for number, (requests, work_ms, tail) in enumerate(row)}
        )
        assert now == control.reservations_ppm()
        assert sum(now.values()) <= limit
        for number, reserve in now.items():
            assert least <= reserve <= most
            assert abs(reserve - before[number]) <= STEP * before[number] + 1
        before = now


@given(
    loads=st.lists(st.tuples(st.integers(1, 60), st.floats(0.05, 10), st.floats(0, 3)), min_size=2, max_size=5),
)
@example(loads=[(1, 1.0, 1.0), (1, 1.0, 2.0)])  # both are late: neither may take from the other
@settings(max_examples=60, deadline=None)
def test_constant_measurements_end_in_constant_reservations(loads: list[tuple[int, float, float]]) -> None:
    """There is no limit cycle above 5 % for any load and any tails, overload included."""
    control = ReserveController({number: Bounds(qos_ns=QOS_NS) for number in range(len(loads))})
    constant = {
        number: seen(requests, work_ms=work_ms, tail=tail) for number, (requests, work_ms, tail) in enumerate(loads)
    }
    for _ in range(600):
        control.step(constant)
    history = [control.step(constant) for _ in range(100)]
    for number in constant:
        values = [now[number] for now in history]
        assert max(values) - min(values) <= 0.05 * max(values) + 1


def test_a_period_is_what_the_agent_polls_at() -> None:
    assert PERIOD_NS == 100 * MS
