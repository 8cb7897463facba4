# SPDX-License-Identifier: Apache-2.0
"""Invariants 13 to 15: the engine between two items of a request, and who may use it then."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sched.host import Host
from tests.sched.story import MS, US, Latency, SliceOf, Story, Tenant, Work
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
FAIR = GroupParams(weight=1, timeslice_ns=MS)
HOLDER = replace(
    FAIR,
    weight=3,
    band=Band.LATENCY,
    reserve_ns=2 * MS,
    reserve_period_ns=4 * MS,
    hold_max_ns=500 * US,
    inversion_permille=50,
)
MORE = ItemInfo(kernel_id=1, more=True)
LAST = ItemInfo(kernel_id=1)
FILL = ItemInfo(kernel_id=7)


class Bench:
    """A holder and a filler on one engine, driven by hand."""

    def __init__(self, holder: GroupParams = HOLDER, engine: SchedParams = ENGINE) -> None:
        self.core = Scheduler(engine)
        self.now = 0
        self.holder = self.slice_of(holder, "holder")
        self.filler = self.slice_of(FAIR, "filler")

    def slice_of(self, params: GroupParams, name: str) -> Slice:
        now = self.core.now_ns
        group = self.core.add_group(params, now, name=name)
        return self.core.add_slice(group, SliceParams(), now, name=name)

    def execute(self, target: Slice, item: ItemInfo, ns: int) -> None:
        """From announcement to completion; then the slice sleeps."""
        self.core.announce(target, item, self.now)
        decision = self.core.pick(self.now)
        assert decision.slice is target
        self.now += ns
        self.core.item_done(target, self.now)

    def teach(self, *, gap_ns: int, fill_ns: int, times: int = 8) -> None:
        """Teach the gap after the holder's kernel 1, and the length of the filler's kernel 7."""
        for _ in range(times):
            self.execute(self.filler, FILL, fill_ns)
            self.core.pick(self.now)
            self.now += 4 * MS
        for _ in range(times + 1):
            self.execute(self.holder, MORE, 50 * US)
            self.core.pick(self.now)
            self.now += gap_ns
        self.core.end_request(self.holder, self.now)
        self.core.pick(self.now)
        self.now += 20 * MS


def test_a_hold_begins_after_more_follows_only() -> None:
    bench = Bench()
    bench.execute(bench.holder, LAST, 50 * US)
    bench.core.wake(bench.filler, bench.now)
    assert bench.core.pick(bench.now).slice is bench.filler
    bench = Bench()
    bench.execute(bench.holder, MORE, 50 * US)
    bench.core.wake(bench.filler, bench.now)
    decision = bench.core.pick(bench.now)
    assert (decision.slice, decision.idle, decision.payer) == (None, Idle.HOLD, bench.holder)
    assert decision.wake_at_ns == bench.now + 500 * US


def held() -> Bench:
    bench = Bench()
    bench.core.wake(bench.filler, 0)
    bench.execute(bench.holder, MORE, 50 * US)
    assert bench.core.pick(bench.now).idle is Idle.HOLD
    return bench


def test_the_holder_pays_for_the_idle_engine_with_budget_and_share() -> None:
    bench = held()
    before = bench.holder.group.stats.run_ns
    bench.core.announce(bench.holder, MORE, bench.now + 100 * US)
    assert bench.core.pick(bench.now + 100 * US).slice is bench.holder
    stats = bench.holder.group.stats
    assert (stats.run_ns - before, stats.hold_ns, stats.holds) == (100 * US, 100 * US, 1)
    assert stats.latency_ns == stats.run_ns
    assert bench.core.stats.idle_ns == 0
    assert bench.core.group_lag_ns(bench.filler.group, bench.core.now_ns) > 0


def test_a_hold_ends_at_its_longest() -> None:
    bench = held()
    assert bench.core.pick(bench.now + 500 * US - 1).idle is Idle.HOLD
    assert bench.core.pick(bench.now + 500 * US).slice is bench.filler
    assert bench.holder.group.stats.hold_ns == 500 * US


def test_a_host_that_looks_late_costs_the_holder_nothing() -> None:
    bench = held()
    bench.core.pick(bench.now + 700 * US)
    assert bench.holder.group.stats.hold_ns == 500 * US
    assert bench.core.stats.idle_ns == 200 * US


def test_a_hold_ends_with_the_budget() -> None:
    bench = Bench(replace(HOLDER, reserve_ns=100 * US))
    bench.core.wake(bench.filler, 0)
    bench.execute(bench.holder, MORE, 50 * US)
    decision = bench.core.pick(bench.now)
    assert decision.wake_at_ns == bench.now + 50 * US
    assert bench.core.pick(bench.now + 50 * US).slice is bench.filler
    assert bench.holder.group.stats.demotions == 1


def test_a_hold_ends_with_the_request_the_slice_and_its_terms() -> None:
    bench = held()
    bench.core.end_request(bench.holder, bench.now + US)
    assert bench.core.pick(bench.now + US).slice is bench.filler
    bench = held()
    bench.core.remove_slice(bench.holder, bench.now + US)
    assert bench.core.pick(bench.now + US).slice is bench.filler
    bench = held()
    bench.core.update_group(bench.holder.group, replace(HOLDER, hold_max_ns=0), bench.now + US)
    assert bench.core.pick(bench.now + US).slice is bench.filler


def test_others_of_band_l_do_not_wait_for_a_hold() -> None:
    bench = held()
    other = bench.slice_of(replace(HOLDER, weight=1, reserve_ns=100 * US), "other")
    bench.core.wake(other, bench.now + US)
    assert bench.core.pick(bench.now + US).slice is other


@pytest.mark.parametrize(
    ("change", "held_ns"),
    [
        ({"reserve_ns": 450 * US}, 460 * US),
        ({"reserve_ns": 50 * US}, 60 * US),
        ({"hold_max_ns": 300 * US}, 300 * US),
        ({"hold_max_ns": 10 * US}, 10 * US),
    ],
)
def test_new_terms_are_those_of_the_present_hold(change: dict[str, int], held_ns: int) -> None:
    """The host may look at any later time. All of a shrunk reservation's new budget may be left."""
    bench = held()
    bench.core.update_group(bench.holder.group, replace(HOLDER, **change), bench.now + 10 * US)  # type: ignore[arg-type]
    bench.core.advance(bench.now + 2 * MS)
    assert bench.holder.group.stats.hold_ns == held_ns


def test_a_request_that_ends_and_a_new_cap_bound_the_present_hold() -> None:
    bench = held()
    bench.core.end_request(bench.holder, bench.now + 10 * US)
    bench.core.advance(bench.now + 2 * MS)
    assert bench.holder.group.stats.hold_ns == 10 * US
    bench = held()
    capped = SliceParams(cap_ns=100 * US, cap_period_ns=10 * MS, burst_ns=20 * US)
    bench.core.update_slice(bench.holder, capped, bench.now + 10 * US)
    bench.core.advance(bench.now + 2 * MS)
    assert bench.holder.group.stats.hold_ns < 40 * US


def test_a_withdrawn_item_begins_no_hold_and_teaches_no_gap() -> None:
    bench = Bench()
    bench.core.wake(bench.filler, 0)
    bench.execute(bench.holder, MORE, 50 * US)
    bench.core.announce(bench.holder, MORE, bench.now)
    assert bench.core.pick(bench.now).slice is bench.holder
    bench.core.sleep(bench.holder, bench.now + 10 * US)
    assert bench.core.pick(bench.now + 10 * US).slice is bench.filler


def test_a_hold_looks_again_when_the_inversion_budget_is_back() -> None:
    bench = Bench(
        replace(
            HOLDER,
            reserve_ns=400 * MS,
            reserve_period_ns=1000 * MS,
            hold_max_ns=900 * MS,
            inversion_permille=20,
            inversion_burst_ns=200 * US,
        )
    )
    for _ in range(9):
        bench.execute(bench.holder, MORE, 100 * US)
        bench.core.pick(bench.now)
        bench.now += 30 * MS
    assert in_gap(bench, FILL) is bench.filler
    bench.core.announce(bench.holder, MORE, bench.now)
    bench.now += 400 * US
    assert bench.core.pick(bench.now).slice is bench.holder
    bench.now += 10 * US
    bench.core.item_done(bench.holder, bench.now)
    done_ns, decision = bench.now, bench.core.pick(bench.now)
    assert decision.idle is Idle.HOLD, "the budget is overdrawn"
    while decision.slice is None:
        assert decision.wake_at_ns is not None
        before = decision.wake_at_ns - ENGINE.min_chunk_ns
        if before > bench.now:
            assert bench.core.pick(before).slice is None, "it could have passed earlier"
        bench.now = decision.wake_at_ns
        decision = bench.core.pick(bench.now)
    assert decision.slice is bench.filler
    assert bench.now - done_ns < 12 * MS, "200 us are back after 10 ms; the gap is longer"


def test_a_new_chunk_is_the_default_of_the_inversion_budget() -> None:
    bench = Bench(replace(HOLDER, reserve_period_ns=20 * MS))
    bench.core.set_params(replace(ENGINE, max_chunk_ns=2 * MS), 0)
    bench.now = 1000 * MS
    bench.teach(gap_ns=300 * US, fill_ns=1900 * US)
    bench.now += 100 * MS
    assert in_gap(bench, FILL) is bench.filler, "1.6 ms of inversion are less than the longest piece"


def test_a_hold_is_not_taken_by_who_runs_dry_meanwhile() -> None:
    bench = held()
    thief = bench.slice_of(replace(HOLDER, weight=1, reserve_ns=100 * US, hold_max_ns=1), "thief")
    bench.now += 50 * US
    bench.execute(thief, MORE, US)
    bench.core.end_request(thief, bench.now)
    decision = bench.core.pick(bench.now)
    assert (decision.slice, decision.idle, decision.payer) == (None, Idle.HOLD, bench.holder)
    assert thief.group.stats.holds == 0


def test_inversion_is_measured_for_the_holder_whoever_ran_dry_meanwhile() -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=300 * US))
    thief = bench.slice_of(replace(HOLDER, weight=1, reserve_ns=100 * US), "thief")
    bench.teach(gap_ns=100 * US, fill_ns=250 * US)
    bench.core.announce(bench.holder, MORE, bench.now)
    bench.core.pick(bench.now)
    bench.now += 50 * US
    bench.core.item_done(bench.holder, bench.now)
    assert bench.core.pick(bench.now).idle is Idle.HOLD
    bench.execute(thief, MORE, US)
    bench.core.announce(bench.filler, FILL, bench.now)
    assert bench.core.pick(bench.now).slice is bench.filler
    bench.core.wake(bench.holder, bench.now)
    bench.core.advance(bench.now + 250 * US)
    assert bench.holder.group.stats.inversion_ns == 250 * US


# ---- the gate


def in_gap(bench: Bench, filler: ItemInfo | None) -> Slice | None:
    """The slice that executes in the gap that now begins."""
    if filler is None:
        bench.core.wake(bench.filler, bench.now)
    else:
        bench.core.announce(bench.filler, filler, bench.now)
    bench.core.announce(bench.holder, MORE, bench.now)
    assert bench.core.pick(bench.now).slice is bench.holder
    bench.now += 50 * US
    bench.core.item_done(bench.holder, bench.now)
    return bench.core.pick(bench.now).slice


def test_an_item_that_fits_the_gap_fills_it() -> None:
    bench = Bench()
    bench.teach(gap_ns=300 * US, fill_ns=100 * US)
    assert in_gap(bench, FILL) is bench.filler
    assert bench.holder.group.stats.fills > 0


def test_an_item_that_does_not_fit_waits() -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=20 * US))
    bench.teach(gap_ns=100 * US, fill_ns=250 * US)
    assert in_gap(bench, FILL) is None


@pytest.mark.parametrize(("after_ns", "fits"), [(10 * US, True), (200 * US, False)])
def test_what_fits_at_first_does_not_fit_the_rest_of_the_gap(after_ns: int, fits: bool) -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=20 * US))
    bench.teach(gap_ns=300 * US, fill_ns=150 * US)
    bench.execute(bench.holder, MORE, 50 * US)
    assert bench.core.pick(bench.now).idle is Idle.HOLD
    bench.core.announce(bench.filler, FILL, bench.now + after_ns)
    assert bench.core.pick(bench.now + after_ns).slice is (bench.filler if fits else None)


def test_the_rest_of_an_item_that_was_begun_may_fit() -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=20 * US))
    bench.teach(gap_ns=200 * US, fill_ns=300 * US)
    bench.core.announce(bench.filler, FILL, bench.now)
    assert bench.core.pick(bench.now).slice is bench.filler
    bench.now += 250 * US
    bench.execute(bench.holder, MORE, 50 * US)
    assert bench.core.pick(bench.now).slice is bench.filler


def test_the_inversion_budget_may_cover_the_risk() -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=300 * US))
    bench.teach(gap_ns=100 * US, fill_ns=250 * US)
    assert in_gap(bench, FILL) is bench.filler


def test_without_inversion_budget_nobody_fills() -> None:
    bench = Bench(replace(HOLDER, inversion_permille=0))
    bench.teach(gap_ns=400 * US, fill_ns=20 * US)
    assert in_gap(bench, FILL) is None


def test_first_requests_are_not_filled() -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=8000 * MS))
    bench.teach(gap_ns=300 * US, fill_ns=100 * US, times=6)
    assert in_gap(bench, FILL) is None


def test_an_unknown_item_counts_as_a_whole_chunk() -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=20 * US))
    bench.teach(gap_ns=300 * US, fill_ns=100 * US)
    assert in_gap(bench, None) is None


def test_inversion_is_measured_and_taken_from_the_budget() -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=300 * US, inversion_permille=1))
    bench.teach(gap_ns=100 * US, fill_ns=250 * US)
    assert in_gap(bench, FILL) is bench.filler
    bench.core.announce(bench.holder, MORE, bench.now + 90 * US)
    decision = bench.core.pick(bench.now + 400 * US)
    assert decision.slice is bench.holder
    assert decision.ended is not None
    assert decision.ended.reason is RunReason.LATENCY
    assert bench.holder.group.stats.inversion_ns == 310 * US
    bench.now += 400 * US
    bench.core.item_done(bench.holder, bench.now + 50 * US)
    assert bench.core.pick(bench.now + 50 * US).idle is Idle.HOLD, "the budget is overdrawn"


def test_an_engine_that_splits_fills_the_gap_with_a_piece() -> None:
    bench = Bench(replace(HOLDER, inversion_burst_ns=10 * US), replace(ENGINE, splits=True))
    bench.teach(gap_ns=200 * US, fill_ns=350 * US)
    bench.core.announce(bench.filler, FILL, bench.now)
    bench.execute(bench.holder, MORE, 50 * US)
    decision = bench.core.pick(bench.now)
    assert decision.slice is bench.filler
    assert 150 * US < decision.limit_ns <= 200 * US


# ---- prediction


def test_gaps_that_are_over_do_not_count_any_more() -> None:
    bench = Bench()
    for gap_ns in (100 * US, 400 * US):
        bench.teach(gap_ns=gap_ns, fill_ns=100 * US)

    def inversion(elapsed_ns: int, piece_ns: int) -> int | None:
        return bench.core.predicted_inversion_ns(bench.holder.group, 1, elapsed_ns, piece_ns)

    early, late = inversion(0, 300 * US), inversion(150 * US, 150 * US)
    assert early is not None
    assert 90 * US < early < 120 * US, "of half of the gaps two thirds of the piece"
    assert late == 0, "only the long ones can be meant"
    assert inversion(600 * US, US) is None


def test_a_prediction_is_the_longest_recent_and_hints_only_raise_it_before() -> None:
    bench = Bench()
    group = bench.filler.group
    hinted = replace(FILL, hint_ns=350 * US)
    assert bench.core.predicted_ns(group, hinted) == 400 * US, "a hint does not lower it"
    for ns in (30, 31, 32, 33, 34, 90, 30):
        bench.execute(bench.filler, FILL, ns * US)
        assert bench.core.predicted_ns(group, FILL) == 400 * US
    bench.execute(bench.filler, FILL, 30 * US)
    predicted = bench.core.predicted_ns(group, hinted)
    assert predicted is not None
    assert 90 * US <= predicted <= 90 * US * 5 // 4


def test_on_an_engine_that_splits_a_hint_may_be_longer_than_a_chunk() -> None:
    longer = replace(FILL, hint_ns=401 * US)
    bench = Bench(engine=replace(ENGINE, splits=True))
    assert bench.core.predicted_ns(bench.filler.group, longer) == 401 * US
    bench = Bench()
    with pytest.raises(ParameterError) as caught:
        bench.core.announce(bench.filler, longer, 0)
    assert caught.value.field is Field.ITEM_HINT


@given(
    mine=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 400 * US)), max_size=60),
    theirs=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 400 * US)), max_size=60),
)
@settings(max_examples=30)
def test_nobody_changes_what_is_predicted_for_another(
    mine: list[tuple[int, int]], theirs: list[tuple[int, int]]
) -> None:
    def predictions(foreign: list[tuple[int, int]]) -> list[int | None]:
        bench = Bench()
        for kernel_id, ns in foreign:
            bench.execute(bench.filler, ItemInfo(kernel_id=kernel_id, hint_ns=1), ns)
        for kernel_id, ns in mine:
            bench.execute(bench.holder, ItemInfo(kernel_id=kernel_id), ns)
        return [bench.core.predicted_ns(bench.holder.group, ItemInfo(kernel_id=kernel_id)) for kernel_id, _ in mine]

    assert predictions(theirs) == predictions([])


@given(ids=st.lists(st.integers(0, 2**32 - 1), min_size=200, max_size=400))
@settings(max_examples=10)
def test_a_flood_of_kernels_costs_no_more_than_their_own_predictions(ids: list[int]) -> None:
    bench = Bench()
    for kernel_id in ids:
        bench.execute(bench.filler, ItemInfo(kernel_id=kernel_id), 30 * US)
    for _ in range(8):
        bench.execute(bench.filler, FILL, 30 * US)
    predicted = bench.core.predicted_ns(bench.filler.group, FILL)
    assert predicted is not None
    assert predicted < 40 * US, "the table makes room for who is there now"


def test_each_of_a_row_of_items_took_its_own_time() -> None:
    bench = Bench()
    bench.core.announce(bench.filler, FILL, 0)
    for _ in range(9):
        assert bench.core.pick(bench.now).slice is bench.filler
        bench.now += 30 * US
        bench.core.item_done(bench.filler, bench.now, next_item=FILL)
    predicted = bench.core.predicted_ns(bench.filler.group, FILL)
    assert predicted is not None
    assert predicted < 40 * US


def test_a_kernel_in_use_stays_known_in_a_flood_of_others() -> None:
    bench = Bench()
    for kernel_id in range(8, 400):
        bench.execute(bench.filler, FILL, 30 * US)
        bench.execute(bench.filler, ItemInfo(kernel_id=kernel_id), 300 * US)
        predicted = bench.core.predicted_ns(bench.filler.group, FILL)
        assert predicted is not None
        assert kernel_id < 16 or predicted < 40 * US


# ---- the bound


@st.composite
def gap_stories(draw: st.DrawFn) -> Story:
    """A holder with random gaps, and fillers with random announcements."""
    permille = draw(st.sampled_from([1, 10, 50, 300]))
    holder = Tenant(
        weight=10,
        latency=Latency(
            reserve_ns=2 * MS,
            period_ns=4 * MS,
            hold_max_ns=2 * MS,
            inversion_permille=permille,
            inversion_burst_ns=draw(st.sampled_from([20 * US, 400 * US])),
        ),
        slices=(
            SliceOf(
                work=Work(
                    items=tuple(draw(st.lists(st.integers(20 * US, 200 * US), min_size=1, max_size=3))),
                    nap_every=draw(st.sampled_from([1, 2])),
                    nap_ns=draw(st.integers(10 * US, 800 * US)),
                    request=draw(st.sampled_from([10, 30])),
                )
            ),
        ),
    )
    fillers = []
    for _ in range(draw(st.integers(1, 4))):
        items = tuple(draw(st.lists(st.integers(20 * US, 400 * US), min_size=1, max_size=9)))
        liar = Work(items=items, request=draw(st.sampled_from([0, 1, 5])), hint_ns=draw(st.sampled_from([0, 1])))
        fillers.append(Tenant(slices=(SliceOf(work=liar),)))
    return Story(engine=ENGINE, tenants=(holder, *fillers), duration_ns=150 * MS)


def check_inversion(host: Host) -> None:
    params = host.tenants[0].params
    budget = Fraction(params.inversion_permille, 1000) * host.now + params.inversion_burst_ns
    assert host.tenants[0].core.stats.inversion_ns <= budget + host.story.engine.max_chunk_ns


@given(story=gap_stories())
@settings(max_examples=15)
def test_inversion_stays_within_its_budget_whatever_fillers_do(story: Story) -> None:
    Host(story, with_model=False, at_pick=check_inversion).run()


@given(story=gap_stories(), hint=st.integers(0, 400 * US))
@settings(max_examples=8)
def test_false_hints_gain_nothing(story: Story, hint: int) -> None:
    """Without hints the fillers that lie get no less."""
    liar = story.tenants[1]
    honest = replace(liar, slices=tuple(replace(s, work=replace(s.work, hint_ns=0)) for s in liar.slices))
    lying = replace(liar, slices=tuple(replace(s, work=replace(s.work, hint_ns=hint)) for s in liar.slices))

    def transcript(first: Tenant) -> list[object]:
        tenants = (story.tenants[0], first, *story.tenants[2:])
        return Host(replace(story, tenants=tenants), with_model=False).run().transcript

    assert transcript(lying) == transcript(honest), "no hint is longer than what is assumed anyway"
