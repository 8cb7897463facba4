# SPDX-License-Identifier: Apache-2.0
"""The computation of weights and caps from shares and quotas, compared with exact fractions."""

from fractions import Fraction
from math import floor

from hypothesis import given
from hypothesis import strategies as st
from vgpumgr_api.tenancy.enforcement import (
    Cap,
    Part,
    Timeslice,
    Use,
    effective_timeslice_us,
    enforced_permille,
    plan_group,
    reserved_permille,
)

from vgpumgr.wire.common import Band, Mode, Policy

uses = st.builds(Use, limit=st.integers(0, 10**9), used=st.integers(0, 10**9))
shares = st.integers(1, 1000)
periods = st.just(0) | st.integers(1000, 1_000_000)
parts = st.dictionaries(
    st.integers(),
    st.builds(Part, permille=shares, strict=st.booleans(), reserve_period_us=periods),
    min_size=1,
    max_size=20,
)
timeslices = st.integers(100, 1_000_000)


@given(shares, st.lists(uses, max_size=2))
def test_enforced_share_is_the_floor_of_share_times_the_smallest_factor_and_at_least_one(
    share: int, owners: list[Use]
) -> None:
    factor = min((min(Fraction(1), Fraction(use.limit, use.used)) for use in owners if use.used), default=Fraction(1))
    assert enforced_permille(share, owners) == max(1, floor(share * factor))


@given(st.lists(shares, min_size=1, max_size=50), st.integers(0, 50_000))
def test_what_is_enforced_in_all_fits_the_limit_but_for_the_permille_that_each_keeps(
    claimed: list[int], limit: int
) -> None:
    use = Use(limit=limit, used=sum(claimed))
    enforced = [enforced_permille(share, [use]) for share in claimed]
    assert sum(enforced) <= max(limit, 0) + len(claimed)
    assert all(1 <= got <= share for got, share in zip(enforced, claimed, strict=True))


@given(shares, uses, st.integers(0, 10**9))
def test_raising_a_limit_never_takes_share_away(share: int, use: Use, more: int) -> None:
    raised = Use(limit=use.limit + more, used=use.used)
    assert enforced_permille(share, [raised]) >= enforced_permille(share, [use])


def test_a_limit_of_two_thirds_gives_two_thirds() -> None:
    assert enforced_permille(300, [Use(limit=400, used=600)]) == 200
    assert enforced_permille(300, [Use(limit=400, used=600), Use(limit=100, used=600)]) == 50
    assert enforced_permille(300, [Use(limit=600, used=600)]) == 300
    assert enforced_permille(1, [Use(limit=0, used=600)]) == 1


@given(parts, timeslices)
def test_caps_are_such_as_the_kernel_takes(members: dict[int, Part], timeslice_us: int) -> None:
    plan = plan_group(members, timeslice_us)
    for cap in (plan.cap, *plan.slice_caps.values()):
        if cap != Cap():
            assert 100 <= cap.period_us <= 1_000_000
            assert cap.us < cap.period_us <= cap.us * 10_000


@given(parts, timeslices)
def test_only_strict_slices_are_held_back(members: dict[int, Part], timeslice_us: int) -> None:
    plan = plan_group(members, timeslice_us)
    total = sum(part.permille for part in members.values())
    assert plan.weight == total
    assert (plan.cap != Cap()) == (all(part.strict for part in members.values()) and total < 1000)
    for key, part in members.items():
        mixed = any(not other.strict for other in members.values())
        assert (plan.slice_caps[key] != Cap()) == (part.strict and mixed and part.permille < 1000)


@given(parts, timeslices)
def test_a_reservation_is_a_floor_inside_share_and_cap(members: dict[int, Part], timeslice_us: int) -> None:
    plan = plan_group(members, timeslice_us)
    latency = [part for part in members.values() if part.reserve_period_us]
    assert (plan.band is Band.LATENCY) == bool(latency)
    if not latency:
        assert plan.reserve == Cap()
        return
    reserved = Fraction(plan.reserve.us, plan.reserve.period_us)
    promised = Fraction(sum(part.permille for part in latency), 1000)
    assert plan.reserve.period_us == min(part.reserve_period_us for part in latency)
    assert 0 < reserved <= promised
    assert promised - reserved < Fraction(2, 1000) + Fraction(1, plan.reserve.period_us)
    if plan.cap.us:
        assert reserved <= Fraction(plan.cap.us, plan.cap.period_us)


@given(parts, timeslices, st.sampled_from([Policy.EQUAL_SHARE, Policy.FIXED_SHARE]))
def test_where_the_kernel_divides_by_slices_nothing_is_capped_or_reserved(
    members: dict[int, Part], timeslice_us: int, policy: Policy
) -> None:
    plan = plan_group(members, timeslice_us, policy)
    assert {plan.cap, plan.reserve, *plan.slice_caps.values()} == {Cap()}
    assert (plan.band, plan.mode) == (Band.FAIR, Mode.STRICT if policy is Policy.FIXED_SHARE else Mode.FAIR)


@given(st.integers(1, 1000), st.integers(0, 10_000), st.integers(1000, 1_000_000))
def test_a_latency_slice_counts_its_share_and_one_piece_of_work_per_period(
    counted: int, max_chunk_us: int, period_us: int
) -> None:
    exact = counted + Fraction(1000 * max_chunk_us, period_us)
    assert exact <= reserved_permille(counted, max_chunk_us, period_us) < exact + 1


def test_a_strict_group_is_capped_at_its_sum_over_ten_timeslices_or_ten_milliseconds() -> None:
    strict = {1: Part(permille=250, strict=True), 2: Part(permille=100, strict=True)}
    assert plan_group(strict, 500).cap == Cap(us=3500, period_us=10_000)
    assert plan_group(strict, 5000).cap == Cap(us=17_500, period_us=50_000)
    assert plan_group(strict, 1_000_000).cap == Cap(us=350_000, period_us=1_000_000)


def test_a_strict_slice_among_fair_ones_is_capped_alone() -> None:
    plan = plan_group({1: Part(permille=250, strict=True), 2: Part(permille=100, strict=False)}, 1000)
    assert plan.cap == Cap()
    assert plan.slice_caps == {1: Cap(us=2500, period_us=10_000), 2: Cap()}


def test_a_timeslice_is_one_that_the_gpu_takes() -> None:
    assert effective_timeslice_us(Timeslice(us=3000, max_us=10**6), 100, 0) == 3000
    assert effective_timeslice_us(Timeslice(us=200, max_us=10**6), 1000, 0) == 1000
    assert effective_timeslice_us(Timeslice(us=200, max_us=10**6), 10**9, 0) == 1_000_000


def test_a_timeslice_that_nobody_chose_is_fifty_switches_of_the_gpu_and_10_ms_at_most() -> None:
    assert effective_timeslice_us(Timeslice(us=2000, max_us=10**6), 100, 0) == 2000
    assert effective_timeslice_us(Timeslice(us=2000, max_us=10**6), 100, 10) == 2000
    assert effective_timeslice_us(Timeslice(us=2000, max_us=10**6), 2600, 130) == 6500
    assert effective_timeslice_us(Timeslice(us=2000, max_us=10**6), 4300, 215) == 10_000
    # A chosen timeslice stays, and so does a tenant's maximum; the minimum of the GPU takes precedence.
    assert effective_timeslice_us(Timeslice(us=3000, max_us=10**6), 2600, 130) == 3000
    assert effective_timeslice_us(Timeslice(us=2000, max_us=4000), 2600, 130) == 4000
    assert effective_timeslice_us(Timeslice(us=2000, max_us=2500), 2600, 130) == 2600
