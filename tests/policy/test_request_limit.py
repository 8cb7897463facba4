# SPDX-License-Identifier: Apache-2.0
"""Request and limit over a sliding window."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpumgr.entitlement import Backlogged, entitled
from vgpumgr.policy.request_limit import Choice, RequestLimit, Usage, choose, terms
from vgpumgr.policy.terms import Terms


def used(*runs: tuple[int, int], window: int = 1000) -> Usage:
    usage = Usage(window_ns=window)
    for run in runs:
        usage.add(*run)
    return usage


def promise(request: int, limit: int = 1000) -> RequestLimit:
    return RequestLimit(request_permille=request, limit_permille=limit)


def test_use_slides_out_of_the_window() -> None:
    usage = used((0, 100), (500, 700))
    assert [usage.used_ns(now) for now in (700, 1000, 1050, 1100, 1600, 1700)] == [300, 300, 250, 200, 100, 0]


def test_the_one_that_misses_most_of_its_request_is_first() -> None:
    clients = {
        "met": (promise(100), used((0, 100))),
        "half": (promise(400), used((100, 300))),
        "most": (promise(100), used((300, 310))),
    }
    assert choose(clients, 1000) == Choice("most")
    del clients["most"]
    assert choose(clients, 1000) == Choice("half")


def test_with_requests_met_the_one_that_used_least_is_next() -> None:
    clients = {
        "much": (promise(100), used((0, 400))),
        "little": (promise(100), used((400, 600))),
        "opportunist": (promise(0), used((600, 900))),
    }
    assert choose(clients, 1000) == Choice("little")


def test_nobody_is_chosen_at_its_limit_and_the_answer_says_until_when() -> None:
    clients = {
        "a": (promise(100, 200), used((0, 50), (100, 250))),
        "b": (promise(100, 300), used((300, 620))),
    }
    assert choose(clients, 1000) == Choice(None, 1001)
    assert choose(clients, 1001) == Choice("a")
    assert choose({}, 1000) == Choice(None, None)


def test_terms_are_weights_and_caps() -> None:
    assert terms({"a": promise(300, 600), "b": promise(0)}, period_ns=10_000_000) == {
        "a": Terms(weight=300, cap_ns=6_000_000, cap_period_ns=10_000_000),
        "b": Terms(weight=1),
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: promise(300, 200), "request 300 is above the limit 200"),
        (lambda: promise(0, 0), "limit_permille 0"),
        (lambda: promise(-1), "request_permille -1"),
        (lambda: promise(True), "request_permille True"),
        (lambda: Usage(window_ns=0), "window_ns 0"),
        (lambda: terms({"a": promise(600), "b": promise(500)}, period_ns=10_000), "add up to 1100"),
        (lambda: terms({"a": promise(600)}, period_ns=10), "period_ns 10"),
        (lambda: used().below_at_ns(0, 0), "no use is below it"),
        (lambda: Terms(weight=0), "weight 0"),
        (lambda: Terms(weight=10_001), "weight 10001"),
        (lambda: Terms(weight=1, cap_ns=5, cap_period_ns=4), "cap 5 ns"),
        (lambda: Terms(weight=1, burst_ns=5), "burst of 5 ns needs a cap"),
        (
            lambda: Terms(weight=1, cap_ns=1, cap_period_ns=10, reserve_ns=2, reserve_period_ns=10),
            "below the reservation",
        ),
    ],
)
def test_bad_input_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def test_runs_out_of_order_change_nothing() -> None:
    usage = used((0, 100))
    for start, end in ((50, 150), (200, 150)):
        with pytest.raises(ValueError, match="a run that starts at"):
            usage.add(start, end)
    assert usage.used_ns(100) == 100


# ---- properties


@given(
    gaps=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=20),
    window=st.integers(1, 60),
    wait=st.integers(0, 80),
    allowed=st.integers(1, 30),
)
@settings(max_examples=150, deadline=None)
def test_use_is_counted_to_the_nanosecond(gaps: list[tuple[int, int]], window: int, wait: int, allowed: int) -> None:
    usage, busy, now = Usage(window_ns=window), set(), 0
    for gap, length in gaps:
        usage.add(now + gap, now + gap + length)
        busy.update(range(now + gap, now + gap + length))
        now += gap + length
    now += wait

    def expected(at: int) -> int:
        return sum(at - window <= instant < at for instant in busy)

    assert usage.used_ns(now) == expected(now)
    below = usage.below_at_ns(now, allowed)
    assert expected(below) < allowed
    assert below == now or expected(below - 1) >= allowed


@given(
    clients=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 700)), min_size=1, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_the_window_keeps_requests_and_limits(clients: list[tuple[int, int]]) -> None:
    """The rule runs for two windows with all clients backlogged: requests are met and limits are kept, within one
    quantum.
    """
    window, quantum = 1000, 10
    promises = {
        number: promise(request, min(1000, request + more + 1)) for number, (request, more) in enumerate(clients)
    }
    usages = {number: Usage(window_ns=window) for number in promises}
    now = 0
    while now < 2 * window:
        choice = choose({number: (promises[number], usages[number]) for number in promises}, now)
        if choice.client is None:
            assert choice.ask_again_ns is not None
            assert choice.ask_again_ns > now
            now = choice.ask_again_ns
            continue
        usages[int(str(choice.client))].add(now, now + quantum)
        now += quantum
    for number, usage in usages.items():
        got = usage.used_ns(now)
        assert got <= promises[number].limit_permille + quantum
        assert got >= promises[number].request_permille - 2 * quantum


@given(rows=st.lists(st.tuples(st.integers(0, 250), st.integers(1, 1000)), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_weights_alone_meet_every_request(rows: list[tuple[int, int]]) -> None:
    """Entitlement under the terms, with all clients backlogged, is at least the request and at most the limit."""
    promises = {number: promise(request, max(request, limit, 1)) for number, (request, limit) in enumerate(rows)}
    given_terms = terms(promises, period_ns=1_000_000)
    shares = entitled(
        {
            number: Backlogged(weight=one.weight, cap=Fraction(one.cap_ns, one.cap_period_ns) if one.cap_ns else None)
            for number, one in given_terms.items()
        },
        1000,
    )
    opportunists = sum(one.request_permille == 0 for one in promises.values())
    for number, one in promises.items():
        assert shares[number] >= one.request_permille * Fraction(1000, 1000 + opportunists)
        assert shares[number] <= one.limit_permille
