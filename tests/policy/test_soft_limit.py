# SPDX-License-Identifier: Apache-2.0
"""Hard and elastic limits, expressed in the core's terms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpumgr.policy.soft_limit import RECLAIM_NS, Engine, SoftLimit, reclaim_ns, terms
from vgpumgr.policy.terms import Terms

MS = 1_000_000
ENGINE = Engine(timeslice_ns=MS, max_chunk_ns=MS // 4)


def hard(share: int) -> SoftLimit:
    return SoftLimit(share_permille=share)


def elastic(share: int, top: int = 900) -> SoftLimit:
    return SoftLimit(share_permille=share, elastic=True, top_permille=top)


def test_a_hard_limit_is_a_cap_at_the_share_and_an_elastic_one_a_cap_at_the_top() -> None:
    assert terms({"hard": hard(300), "elastic": elastic(500)}, ENGINE) == {
        "hard": Terms(weight=300, cap_ns=3 * MS, cap_period_ns=10 * MS, burst_ns=10 * MS),
        "elastic": Terms(weight=500, cap_ns=9 * MS, cap_period_ns=10 * MS, burst_ns=10 * MS),
    }


def test_one_that_may_have_everything_has_no_cap() -> None:
    assert terms({"a": elastic(500, 1000)}, ENGINE) == {"a": Terms(weight=500)}


def test_a_part_that_weights_return_too_late_is_reserved() -> None:
    assert reclaim_ns(125, ENGINE) == 10 * MS
    assert reclaim_ns(124, ENGINE) > 10 * MS
    given_terms = terms({"large": elastic(125), "small": elastic(124)}, ENGINE)
    assert given_terms["large"].reserve_ns == 0
    assert given_terms["small"].reserve_ns == 1_240_000
    assert given_terms["small"].reserve_period_ns == RECLAIM_NS


def test_alone_nobody_needs_a_reservation() -> None:
    assert terms({"small": elastic(10)}, ENGINE)["small"].reserve_ns == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: hard(0), "share_permille 0"),
        (lambda: elastic(500, 400), "top 400 is below the share 500"),
        (lambda: terms({"a": hard(600), "b": hard(500)}, ENGINE), "add up to 1100"),
        (lambda: Engine(timeslice_ns=0, max_chunk_ns=1), "must be above 0"),
        (lambda: terms({"a": hard(1)}, Engine(timeslice_ns=MS, max_chunk_ns=3 * MS)), "at most 2500000 ns"),
        (
            lambda: terms(
                {"a": hard(100), "b": hard(100)},
                Engine(timeslice_ns=MS, max_chunk_ns=MS // 4, reserve_limit_permille=150),
            ),
            "200 permille must be reserved .* shorten the timeslice",
        ),
    ],
)
def test_bad_input_is_refused(wrong: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


@given(
    shares=st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=2, max_size=10),
    timeslice=st.integers(100_000, 30 * MS),
)
def test_every_owner_has_its_part_back_in_time(shares: list[tuple[int, bool]], timeslice: int) -> None:
    engine = Engine(timeslice_ns=timeslice, max_chunk_ns=250_000)
    limits = {number: elastic(share) if soft else hard(share) for number, (share, soft) in enumerate(shares)}
    for number, one in terms(limits, engine).items():
        share = limits[number].share_permille
        assert one.weight == share
        reserved = one.reserve_ns * 1000 == share * one.reserve_period_ns and one.reserve_period_ns == RECLAIM_NS
        assert reserved or (timeslice + 250_000) * 1000 <= RECLAIM_NS * share
        assert one.cap_ns * 1000 == limits[number].cap_permille * one.cap_period_ns
