# SPDX-License-Identifier: Apache-2.0
"""Invariants 11 and 12: who runs first, what is admitted, and the cost for others."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sched.host import Host
from tests.sched.story import MS, SECOND, US, Latency, SliceOf, Story, Tenant, Work, banded_stories
from vgpumgr.entitlement import Backlogged, entitled
from vgpumgr.sched.core import (
    Band,
    Field,
    GroupParams,
    Idle,
    ItemInfo,
    ParameterError,
    RunReason,
    SchedParams,
    Scheduler,
    Slice,
    SliceParams,
)

ENGINE = SchedParams(max_chunk_ns=400 * US, min_chunk_ns=20 * US, reserve_limit_permille=750)
SPLITTING = replace(ENGINE, splits=True)
FAIR = GroupParams(weight=1, timeslice_ns=MS)
LATENCY = replace(FAIR, band=Band.LATENCY, reserve_ns=500 * US, reserve_period_ns=4 * MS)


def slice_of(core: Scheduler, params: GroupParams, name: str) -> Slice:
    group = core.add_group(params, core.now_ns, name=name)
    return core.add_slice(group, SliceParams(), core.now_ns, name=name)


def test_band_l_cuts_a_fair_run_at_the_next_pick_and_not_before() -> None:
    core = Scheduler(ENGINE)
    fair, quick = slice_of(core, FAIR, "fair"), slice_of(core, LATENCY, "quick")
    core.wake(fair, 0)
    assert core.pick(0).slice is fair
    assert not core.is_urgent
    core.wake(quick, 100 * US)
    assert core.is_urgent
    decision = core.pick(300 * US)
    assert (decision.slice, decision.band) == (quick, Band.LATENCY)
    assert decision.ended is not None
    assert decision.ended.reason is RunReason.LATENCY
    assert not core.is_urgent


def test_a_run_that_was_cut_goes_on_with_the_rest_of_its_timeslice() -> None:
    core = Scheduler(ENGINE)
    fair, quick = slice_of(core, FAIR, "fair"), slice_of(core, LATENCY, "quick")
    core.wake(fair, 0)
    core.pick(0)
    core.wake(quick, 100 * US)
    core.pick(300 * US)
    core.sleep(quick, 400 * US)
    assert core.pick(400 * US).slice is fair
    assert core.pick(1050 * US).limit_ns == 50 * US
    decision = core.pick(1100 * US)
    assert decision.ended is not None
    assert (decision.ended.reason, decision.ended.timeslice_ns) == (RunReason.TIMESLICE, 700 * US)


def test_without_budget_it_competes_by_weight_until_its_deadline() -> None:
    core = Scheduler(SPLITTING)
    fair, quick = slice_of(core, FAIR, "fair"), slice_of(core, LATENCY, "quick")
    core.wake(quick, 0)
    core.wake(fair, 0)
    assert core.pick(0).limit_ns == 400 * US
    assert core.pick(400 * US).limit_ns == 100 * US, "what is left of the budget"
    decision = core.pick(500 * US)
    assert decision.ended is not None
    assert decision.ended.reason is RunReason.BUDGET
    assert decision.band is Band.FAIR
    assert quick.group.stats.demotions == 1
    assert core.pick(3999 * US).band is Band.FAIR
    decision = core.pick(4 * MS)
    assert (decision.slice, decision.band) == (quick, Band.LATENCY)


def test_who_is_overdrawn_by_many_budgets_waits_once() -> None:
    """Deadlines after which it still has no budget cause no decision."""
    core = Scheduler(ENGINE)
    holder = slice_of(
        core, replace(LATENCY, reserve_ns=8 * MS, reserve_period_ns=20 * MS, hold_max_ns=MS * 100), "holder"
    )
    late = slice_of(core, replace(LATENCY, reserve_ns=40 * US, reserve_period_ns=2 * MS), "late")
    core.announce(holder, ItemInfo(more=True), 0)
    assert core.pick(0).slice is holder
    core.item_done(holder, 10 * US)
    core.wake(late, 10 * US)
    assert core.pick(10 * US).slice is late
    decision = core.pick(410 * US)
    assert (decision.idle, late.group.stats.demotions) == (Idle.HOLD, 1)
    # It is overdrawn by 360 us: nine deadlines pay that back, and only the tenth leaves some budget.
    assert decision.wake_at_ns == 8400 * US, "at the end of the hold, not at the first deadline"
    core.end_request(holder, 8400 * US)
    assert core.pick(20_009 * US).band is Band.FAIR
    assert core.pick(20_010 * US).band is Band.LATENCY


def test_the_earliest_deadline_goes_first() -> None:
    core = Scheduler(ENGINE)
    late = slice_of(core, replace(LATENCY, reserve_period_ns=8 * MS), "late")
    early = slice_of(core, LATENCY, "early")
    core.wake(late, 0)
    assert core.pick(0).slice is late
    core.wake(early, 100 * US)
    decision = core.pick(400 * US)
    assert decision.slice is early
    assert decision.ended is not None
    assert decision.ended.reason is RunReason.LATENCY


BAD = [
    (Field.RESERVE, {"reserve_ns": 0}),
    (Field.RESERVE, {"reserve_ns": 4 * MS + 1}),
    (Field.RESERVE_PERIOD, {"reserve_period_ns": 1600 * US - 1}),
    (Field.RESERVE_PERIOD, {"reserve_period_ns": 4000 * MS + 1}),
    (Field.RESERVE, {"reserve_ns": 3 * MS + 1}),
    (Field.RESERVE, {"cap_ns": 499 * US, "cap_period_ns": 4 * MS}),
    (Field.RESERVE, {"band": Band.FAIR}),
    (Field.HOLD, {"hold_max_ns": 1000 * MS + 1}),
    (Field.INVERSION, {"inversion_permille": 1001}),
    (Field.INVERSION, {"inversion_permille": 2**32}),
    (Field.INVERSION_BURST, {"inversion_burst_ns": 8000 * MS + 1}),
    (Field.BAND, {"band": 2}),
    (Field.MODE, {"mode": 2}),
    (Field.CAP, {"mode": 1}),
]


@pytest.mark.parametrize(("field", "change"), BAD)
def test_what_cannot_be_kept_is_refused_and_named(field: Field, change: dict[str, int]) -> None:
    core = Scheduler(ENGINE)
    params = replace(LATENCY, **change)  # type: ignore[arg-type]
    with pytest.raises(ParameterError) as caught:
        core.add_group(params, 5)
    assert caught.value.field is field
    group = core.add_group(LATENCY, 5)
    with pytest.raises(ParameterError) as caught:
        core.update_group(group, params, 7)
    assert caught.value.field is field
    assert core.now_ns == 5
    assert group.c.params.reserve_ns == LATENCY.reserve_ns


def test_reservations_stay_within_limit_and_share_whatever_happens_later() -> None:
    core = Scheduler(SPLITTING)
    first = core.add_group(replace(LATENCY, weight=2, reserve_ns=2 * MS), 0)

    def field_of(params: GroupParams) -> Field:
        with pytest.raises(ParameterError) as caught:
            core.add_group(params, 0)
        return caught.value.field

    assert field_of(replace(FAIR, weight=3)) is Field.WEIGHT, "it would leave 2/5 to a reservation of 1/2"
    core.add_group(FAIR, 0)
    assert field_of(replace(LATENCY, reserve_ns=1100 * US)) is Field.RESERVE, "more than its quarter"
    last = core.add_group(replace(LATENCY, reserve_ns=MS), 0)
    assert field_of(FAIR) is Field.WEIGHT
    with pytest.raises(ParameterError) as caught:
        core.update_group(first, replace(LATENCY, weight=1, reserve_ns=2 * MS), 0)
    assert caught.value.field is Field.RESERVE, "its own weight is too small for it"
    with pytest.raises(ParameterError) as caught:
        core.set_params(replace(SPLITTING, reserve_limit_permille=749), 0)
    assert caught.value.field is Field.RESERVE_LIMIT
    with pytest.raises(ParameterError) as caught:
        core.set_params(replace(SPLITTING, max_chunk_ns=MS + 1), 0)
    assert caught.value.field is Field.MAX_CHUNK
    core.remove_group(last, 0)
    core.set_params(replace(SPLITTING, reserve_limit_permille=500, max_chunk_ns=MS), 0)


def test_on_an_engine_that_does_not_split_each_reservation_counts_a_chunk_more() -> None:
    """The condition of invariant 12: the sum of (Q + chunk) / P is at most the limit."""
    core = Scheduler(ENGINE)
    first = replace(LATENCY, weight=100, reserve_ns=1400 * US)
    core.add_group(first, 0)
    tiny = replace(LATENCY, reserve_ns=1, reserve_period_ns=16 * MS)
    for _ in range(11):
        core.add_group(tiny, 0)
    with pytest.raises(ParameterError) as caught:
        core.add_group(tiny, 0)
    assert caught.value.field is Field.RESERVE
    core.set_params(replace(ENGINE, splits=True, max_chunk_ns=MS), 0)
    core.add_group(tiny, 0)
    with pytest.raises(ParameterError) as caught:
        core.set_params(ENGINE, 0)
    assert caught.value.field is Field.MAX_CHUNK
    with pytest.raises(ParameterError) as caught:
        core.set_params(replace(SPLITTING, reserve_limit_permille=350), 0)
    assert caught.value.field is Field.RESERVE_LIMIT


@pytest.mark.parametrize("splits", [False, True])
def test_many_reservations_as_small_as_can_be_delay_nobody_beyond_its_deadline(splits: bool) -> None:
    """Each may overdraw its budget by a chunk. Only so many are admitted that the admitted ones get their time."""
    chunk, period = MS, 10 * MS
    core = Scheduler(SchedParams(max_chunk_ns=chunk, min_chunk_ns=US, reserve_limit_permille=750, splits=splits))
    quick = slice_of(core, replace(LATENCY, weight=1000, reserve_ns=500 * US, reserve_period_ns=period), "quick")
    tiny = replace(LATENCY, weight=10, reserve_ns=US, reserve_period_ns=9 * chunk)
    fair = slice_of(core, FAIR, "fair")
    core.wake(fair, 0)
    assert core.pick(0).slice is fair
    with suppress(ParameterError):
        for number in range(50):
            core.wake(slice_of(core, tiny, f"tiny{number}"), 0)
    assert len(core.groups) > 5
    core.wake(quick, 0)
    now, served = 0, 0
    while served < 500 * US:
        decision = core.pick(now)
        piece = decision.limit_ns if splits or decision.slice is quick else chunk
        served += piece if decision.slice is quick else 0
        now += piece
    assert now <= period


# ---- what is promised


@st.composite
def reserved_stories(draw: st.DrawFn) -> Story:
    """Every tenant is backlogged; some reserve up to their maximum."""
    weights = draw(st.lists(st.integers(1, 20), min_size=2, max_size=6))
    engine = draw(st.sampled_from([ENGINE, SPLITTING]))
    tenants = []
    reserved = 0
    for weight in weights:
        permille = min(draw(st.integers(0, 1000)) * weight // sum(weights), 740 - reserved)
        period = draw(st.sampled_from([1600 * US, 4 * MS, 20 * MS]))
        quota = period * permille // 1000
        latency = None
        if quota >= engine.min_chunk_ns:
            reserved += permille + 1
            latency = Latency(reserve_ns=quota, period_ns=period)
        items = tuple(draw(st.lists(st.integers(20 * US, 400 * US), min_size=1, max_size=3)))
        work = SliceOf(work=Work(items=items, splittable=engine.splits))
        tenants.append(Tenant(weight=weight, latency=latency, slices=(work,)))
    return Story(engine=engine, tenants=tuple(tenants), duration_ns=200 * MS)


def check_shares(host: Host) -> None:
    """A reservation shifts the service of its group by at most its budget and a chunk, and changes no amount."""
    groups = {t.name: Backlogged(weight=t.params.weight) for t in host.tenants}
    due = entitled(groups, host.now)
    chunk = host.story.engine.max_chunk_ns
    ahead = {t.name: t.params.reserve_ns + chunk if t.params.reserve_ns else 0 for t in host.tenants}
    bound = max(t.params.timeslice_ns for t in host.tenants) + chunk + sum(ahead.values())
    for tenant in host.tenants:
        assert abs(tenant.core.run_ns - due[tenant.name]) <= bound


@given(story=reserved_stories())
@settings(max_examples=15)
def test_a_reservation_is_a_floor_inside_the_share(story: Story) -> None:
    Host(story, with_model=False, at_pick=check_shares).run()


@given(story=reserved_stories())
@settings(max_examples=15)
def test_what_was_reserved_is_served_in_time(story: Story) -> None:
    """Each period since the start gives Q, late by at most the chunks of the groups that go first."""
    host = Host(story, with_model=False)
    late = story.engine.max_chunk_ns * (2 + sum(t.latency is not None for t in story.tenants))

    def check(host: Host) -> None:
        for tenant in host.tenants:
            params = tenant.params
            if params.reserve_ns:
                periods = max(0, host.now - late) // params.reserve_period_ns
                assert tenant.core.stats.run_ns >= periods * params.reserve_ns - late

    host.at_pick = check
    host.run()


def test_a_reservation_is_used_up_by_its_deadline_and_a_chunk() -> None:
    """A wakes with the rest of its budget just before its deadline, when a piece of B has begun."""
    core = Scheduler(replace(ENGINE, max_chunk_ns=2 * MS))
    a = slice_of(core, replace(LATENCY, timeslice_ns=4 * MS, reserve_ns=4 * MS, reserve_period_ns=16 * MS), "a")
    b = slice_of(core, replace(FAIR, timeslice_ns=2 * MS), "b")
    core.wake(a, 0)
    core.wake(b, 0)
    assert core.pick(0).slice is a
    core.pick(1950 * US)
    core.item_done(a, 3900 * US)
    now = 3900 * US
    while now < 15_400 * US:
        assert core.pick(now).slice is b
        now = min(now + 2 * MS, 15_400 * US)
    assert core.pick(now).slice is b
    core.wake(a, 15_550 * US)
    decision = core.pick(now + 2 * MS)
    assert (decision.slice, decision.band, decision.limit_ns) == (a, Band.LATENCY, 100 * US)
    assert core.now_ns + decision.limit_ns <= 16 * MS + 2 * MS


@given(story=banded_stories())
@settings(max_examples=15)
def test_no_reservation_is_late_by_more_than_a_chunk(story: Story) -> None:
    """Any events, checked by the exact model."""
    engine = story.engine

    def check(host: Host) -> None:
        reserved = [t.model for t in host.tenants if t.model is not None and t.model.reserve.exists]
        late = engine.max_chunk_ns + (engine.min_chunk_ns * len(reserved) if engine.splits else 0)
        for group in reserved:
            if group.in_latency_band:
                assert host.now <= group.reserve.deadline + late

    Host(story, at_pick=check).run()


def test_an_item_of_band_l_waits_for_one_chunk_at_most() -> None:
    """Demand within the reservation is served, whatever other groups there are."""
    quick = Tenant(
        weight=5,
        latency=Latency(reserve_ns=500 * US, period_ns=4 * MS),
        slices=(SliceOf(work=Work(items=(50 * US,), nap_every=1, nap_ns=500 * US)),),
    )
    crowd = Tenant(slices=(SliceOf(work=Work(items=(390 * US, 210 * US))),))
    story = Story(engine=ENGINE, tenants=(quick, *[crowd] * 20), duration_ns=400 * MS)
    woken: list[int] = []
    waits: list[int] = []

    def watch(host: Host) -> None:
        device = host.tenants[0].devices[0]
        if woken and host.transcript[-1][1] == device.core.name:  # type: ignore[index]
            waits.append(host.now - woken.pop())

    host = Host(story, with_model=False)
    wake = host.wake

    def note(device: object) -> None:
        if device is host.tenants[0].devices[0]:
            woken[:] = [host.now]
        wake(device)  # type: ignore[arg-type]

    host.wake = note  # type: ignore[method-assign]
    host.at_pick = watch
    host.run()
    assert len(waits) > 300
    assert max(waits) <= ENGINE.max_chunk_ns


def test_band_l_uses_up_the_timeslice_of_the_fair_band() -> None:
    core = Scheduler(SPLITTING)
    fair, quick = slice_of(core, FAIR, "fair"), slice_of(core, LATENCY, "quick")
    core.wake(quick, 0)
    core.wake(fair, 0)
    assert core.pick(0).band is Band.LATENCY
    core.pick(500 * US)
    now = 500 * US
    while (decision := core.pick(now)).slice is fair:
        now += decision.limit_ns
    assert decision.band is Band.FAIR
    lengths = []
    while decision.slice is quick:
        now += decision.limit_ns
        decision = core.pick(now)
        if decision.ended is not None:
            lengths.append(decision.ended.timeslice_ns)
    assert lengths[0] == 500 * US, "half of it was band L's"


def test_after_a_sleep_nothing_is_left_of_a_timeslice_that_was_cut() -> None:
    core = Scheduler(ENGINE)
    fair, quick = slice_of(core, FAIR, "fair"), slice_of(core, LATENCY, "quick")
    core.wake(fair, 0)
    core.pick(0)
    core.wake(quick, 100 * US)
    assert core.pick(990 * US).slice is quick
    core.sleep(fair, 1000 * US)
    core.sleep(quick, 1000 * US)
    core.pick(1000 * US)
    core.wake(fair, 90 * MS)
    assert core.pick(90 * MS).limit_ns == 400 * US
    decision = core.pick(91 * MS)
    assert decision.ended is not None
    assert decision.ended.timeslice_ns == MS


@pytest.mark.parametrize("weights", [(10, 100, 10), (10, 100), (10, 10, 10, 10, 100)])
@pytest.mark.parametrize("permille", [300, 500, 990])
def test_a_reservation_moves_lags_by_its_budget_and_a_chunk_only(weights: tuple[int, ...], permille: int) -> None:
    """Each run in band L is followed by one that is shorter by the same time, so none exceeds its request."""
    core = Scheduler(ENGINE)
    period, timeslice = 40 * ENGINE.max_chunk_ns, 20 * MS
    groups = [core.add_group(replace(FAIR, weight=weight, timeslice_ns=timeslice), 0) for weight in weights]
    quota = period * weights[0] * permille // sum(weights) // 1000
    core.update_group(
        groups[0],
        replace(LATENCY, weight=weights[0], timeslice_ns=timeslice, reserve_ns=quota, reserve_period_ns=period),
        0,
    )
    for group in groups:
        core.wake(core.add_slice(group, SliceParams(), 0), 0)
    bound = timeslice + 2 * ENGINE.max_chunk_ns + quota
    now = 0
    while now < 1500 * MS:
        core.pick(now)
        now += 300 * US
        assert max(abs(core.group_lag_ns(group, now)) for group in groups) <= bound


@pytest.mark.parametrize("share", [20, 40])
def test_cuts_cost_neighbours_no_more_than_the_reservation(share: int) -> None:
    """Items of 1 us cut a neighbour at each piece, which then pays 50 us to get in again."""
    cost, period = 50 * US, 10 * MS
    core = Scheduler(
        SchedParams(
            max_chunk_ns=100 * US, min_chunk_ns=US, switch_cost_ns=cost, splits=True, reserve_limit_permille=750
        )
    )
    quota = period * share // 100
    cutter = slice_of(core, replace(LATENCY, timeslice_ns=4 * MS, reserve_ns=quota, reserve_period_ns=period), "cutter")
    fair = slice_of(core, replace(FAIR, timeslice_ns=4 * MS), "fair")
    core.wake(fair, 0)
    now, cuts = 0, 0
    while now < SECOND:
        core.wake(cutter, now)
        decision = core.pick(now)
        cuts += decision.ended is not None and decision.ended.reason is RunReason.LATENCY
        now += (cost if decision.switched else 0) + US
        if decision.slice is cutter:
            core.sleep(cutter, now)
            decision = core.pick(now)
        now += max(decision.limit_ns, cost)
    assert cuts > 1000
    assert cutter.group.stats.latency_ns + cuts * cost <= quota * (now // period) + 2 * quota + cost
