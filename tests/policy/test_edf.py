# SPDX-License-Identifier: Apache-2.0
"""Planned requests end in time, as few as possible are dropped, and no service pays for all others."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpumgr.policy.edf import Ledger, Plan, Request, moore_hodgson, plan


def request(key: str, deadline: int, left: int, service: str = "s") -> Request:
    return Request(key=key, service=service, deadline_ns=deadline, left_ns=left)


def names(planned: Plan) -> tuple[str, str]:
    return "".join(str(one.key) for one in planned.run), "".join(str(one.key) for one in planned.drop)


def test_by_hand() -> None:
    """Moore's rule on six jobs: a 1 due 2, b 5 due 7, c 3 due 8, d 9 due 13, e 7 due 11."""
    queue = [request("a", 2, 1), request("b", 7, 5), request("c", 8, 3), request("d", 13, 9), request("e", 11, 7)]
    assert names(moore_hodgson(queue, 0)) == ("ace", "bd")
    assert names(moore_hodgson(reversed(queue), 0)) == ("ace", "bd")
    assert names(moore_hodgson([], 0)) == ("", "")


def test_what_cannot_be_in_time_even_alone_costs_nobody_else_a_place() -> None:
    assert names(moore_hodgson([request("a", 10, 11), request("b", 12, 10)], 0)) == ("b", "a")


def fair_ledger(offered: dict[str, int], floor: int = 500) -> Ledger:
    ledger = Ledger(floor_permille=floor)
    for service, number in offered.items():
        for _ in range(number):
            ledger.offer(service)
    return ledger


def test_the_longest_pays_while_its_service_may() -> None:
    ledger = fair_ledger({"long": 10, "short": 10})
    queue = [request("l", 10, 8, "long"), request("s", 11, 4, "short")]
    assert names(plan(queue, 0, ledger)) == ("s", "l")
    assert ledger.lost("long") == Fraction(1, 10)


def test_then_the_other_one_pays() -> None:
    ledger = fair_ledger({"long": 10, "short": 10})
    queue = [request("l", 10, 8, "long"), request("s", 11, 4, "short")]
    dropped = [names(plan(queue, 0, ledger))[1] for _ in range(8)]
    assert dropped == list("llllssss"), "each may lose 4 of 10 at a floor of one half and a margin"


def test_when_none_may_lose_the_one_that_lost_least_does() -> None:
    ledger = fair_ledger({"long": 10, "short": 20}, floor=1000)
    queue = [request("l", 10, 8, "long"), request("s", 11, 4, "short")]
    dropped = Counter(names(plan(queue, 0, ledger))[1] for _ in range(15))
    assert dropped == {"l": 5, "s": 10}


def test_old_losses_are_forgotten() -> None:
    ledger = fair_ledger({"a": 10})
    for _ in range(10):
        ledger.lose("a")
    for _ in range(100_000):
        ledger.offer("a")
    assert ledger.lost("a") < Fraction(1, 2000)


def test_bad_input_changes_nothing() -> None:
    with pytest.raises(ValueError, match="0 ns of work left"):
        request("a", 5, 0)
    with pytest.raises(ValueError, match="floor_permille 1001"):
        Ledger(floor_permille=1001)
    ledger = fair_ledger({"a": 1})
    ledger.lose("a")
    for service in ("a", "unknown"):
        with pytest.raises(ValueError, match="no request is left to lose"):
            ledger.lose(service)
    assert ledger.lost("a") == 1
    assert ledger.lost("unknown") == 0


# ---- properties (research: I17)

queues = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12), st.sampled_from("xyz")), max_size=9).map(
    lambda rows: [request(str(number), *row) for number, row in enumerate(rows)]
)


def feasible(requests: list[Request], now: int) -> bool:
    for one in sorted(requests, key=lambda one: one.deadline_ns):
        now += one.left_ns
        if now > one.deadline_ns:
            return False
    return True


@given(queue=queues, now=st.integers(0, 10))
@settings(max_examples=150, deadline=None)
def test_moore_hodgson_drops_as_few_as_any_choice_could(queue: list[Request], now: int) -> None:
    planned = moore_hodgson(queue, now)
    assert feasible(list(planned.run), now)
    best = next(
        size
        for size in range(len(queue), -1, -1)
        if any(feasible(list(chosen), now) for chosen in combinations(queue, size))
    )
    assert len(planned.run) == best


@given(queue=queues, now=st.integers(0, 10), floor=st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_a_fair_plan_is_in_time_and_accounts_for_every_request(queue: list[Request], now: int, floor: int) -> None:
    ledger = Ledger(floor_permille=floor)
    for one in queue:
        ledger.offer(one.service)
    planned = plan(queue, now, ledger)
    assert feasible(list(planned.run), now)
    assert sorted(str(one.key) for one in (*planned.run, *planned.drop)) == sorted(str(one.key) for one in queue)
    assert [one.deadline_ns for one in planned.run] == sorted(one.deadline_ns for one in planned.run)
    for service in "xyz":
        number = sum(one.service == service for one in queue)
        assert ledger.lost(service) * number == sum(one.service == service for one in planned.drop)
    if feasible(queue, now):
        assert not planned.drop
