# SPDX-License-Identifier: Apache-2.0
"""Invariants 16 and 17: turns that no other tenant gets, and the allowed combinations of settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sched.host import Host
from tests.sched.story import MS, US, SliceOf, Story, Tenant, Work
from vgpumgr.entitlement import Backlogged, entitled
from vgpumgr.sched._core import lib
from vgpumgr.sched.core import (
    Band,
    Field,
    GroupParams,
    Idle,
    Mode,
    ParameterError,
    Policy,
    RunReason,
    SchedParams,
    Scheduler,
    Slice,
    SliceParams,
    combination_fault,
)

EQUAL = SchedParams(max_chunk_ns=400 * US, min_chunk_ns=20 * US, policy=Policy.EQUAL_SHARE)
FIXED = replace(EQUAL, policy=Policy.FIXED_SHARE, places=4)
FAIR = GroupParams(weight=1, timeslice_ns=MS)
STRICT = replace(FAIR, mode=Mode.STRICT)
LEGAL = {
    (Policy.BEST_EFFORT, Mode.FAIR, Band.FAIR),
    (Policy.BEST_EFFORT, Mode.FAIR, Band.LATENCY),
    (Policy.BEST_EFFORT, Mode.STRICT, Band.FAIR),
    (Policy.BEST_EFFORT, Mode.STRICT, Band.LATENCY),
    (Policy.EQUAL_SHARE, Mode.FAIR, Band.FAIR),
    (Policy.FIXED_SHARE, Mode.STRICT, Band.FAIR),
}


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("band", Band)
def test_the_table_of_legal_combinations(policy: Policy, mode: Mode, band: Band) -> None:
    fault = combination_fault(policy, mode, band)
    assert (not fault) == ((policy, mode, band) in LEGAL)
    if fault:
        # The refusal names a field whose change alone can help.
        other = 1 - mode if fault is Field.MODE else mode
        assert fault in (Field.MODE, Field.BAND)
        assert not combination_fault(policy, Mode(other), Band.FAIR)


def test_what_is_unknown_is_not_legal() -> None:
    assert Field(lib.vgpu_combination_check(3, 0, 0)) is Field.POLICY
    assert Field(lib.vgpu_combination_check(0, 2, 0)) is Field.MODE
    assert Field(lib.vgpu_combination_check(0, 0, 2)) is Field.BAND


@pytest.mark.parametrize(
    ("field", "change"),
    [
        (Field.POLICY, {"policy": 3}),
        (Field.PLACES, {"places": 0}),
        (Field.PLACES, {"places": 10_001}),
        (Field.PLACES, {"policy": Policy.EQUAL_SHARE}),
        (Field.PLACES, {"places": 2**32}),
        (Field.RESERVE_LIMIT, {"reserve_limit_permille": 1}),
        (Field.RESERVE_LIMIT, {"policy": Policy.BEST_EFFORT, "places": 0, "reserve_limit_permille": 751}),
    ],
)
def test_bad_policies_are_named(field: Field, change: dict[str, int]) -> None:
    with pytest.raises(ParameterError) as caught:
        Scheduler(replace(FIXED, **change))  # type: ignore[arg-type]
    assert caught.value.field is field


def test_neither_caps_nor_another_policy_while_there_are_groups() -> None:
    core = Scheduler(FIXED)
    with pytest.raises(ParameterError) as caught:
        core.add_group(replace(STRICT, cap_ns=MS, cap_period_ns=10 * MS), 0)
    assert caught.value.field is Field.CAP
    group = core.add_group(STRICT, 0)
    with pytest.raises(ParameterError) as caught:
        core.set_params(EQUAL, 0)
    assert caught.value.field is Field.POLICY
    core.remove_group(group, 0)
    core.set_params(EQUAL, 0)


def test_places_end_with_their_policy() -> None:
    core = Scheduler(FIXED)
    core.set_params(replace(EQUAL, policy=Policy.BEST_EFFORT), 0)
    assert core.pick(0).idle is Idle.EMPTY, "nobody keeps a turn any more"


def test_no_more_slices_than_places_and_no_fewer_places_than_slices() -> None:
    core = Scheduler(FIXED)
    group = core.add_group(STRICT, 0)
    for _ in range(4):
        core.add_slice(group, SliceParams(), 0)
    with pytest.raises(ParameterError) as caught:
        core.add_slice(group, SliceParams(), 0)
    assert caught.value.field is Field.PLACES
    assert len(group.slices) == 4
    with pytest.raises(ParameterError) as caught:
        core.set_params(replace(FIXED, places=3), 0)
    assert caught.value.field is Field.PLACES


def slices(core: Scheduler, *counts: int, params: GroupParams = FAIR) -> list[Slice]:
    made = []
    for count in counts:
        group = core.add_group(params, 0)
        made += [core.add_slice(group, SliceParams(), 0) for _ in range(count)]
    return made


def test_a_ghosts_turn_idles_at_its_cost_until_it_has_an_item() -> None:
    core = Scheduler(EQUAL)
    first, second = slices(core, 1, 1)
    core.wake(second, 0)
    decision = core.pick(0)
    assert (decision.slice, decision.idle, decision.payer) == (None, Idle.GHOST, first)
    assert decision.wake_at_ns == MS
    core.wake(first, 300 * US)
    decision = core.pick(300 * US)
    assert decision.slice is first
    assert decision.switched
    assert first.stats.ghost_ns == first.group.stats.ghost_ns == 300 * US
    core.sleep(first, 500 * US)
    assert core.pick(500 * US).payer is first, "its turn is still its own"
    decision = core.pick(MS)
    assert decision.slice is second
    assert decision.ended is not None
    assert (decision.ended.reason, decision.ended.length_ns) == (RunReason.TIMESLICE, MS)


def test_places_that_are_not_sold_idle_at_nobodys_cost() -> None:
    core = Scheduler(FIXED)
    (only,) = slices(core, 1, params=STRICT)
    core.wake(only, 0)
    now = 0
    while now < 400 * MS:
        decision = core.pick(now)
        assert decision.slice is only or (decision.idle is Idle.GHOST and decision.payer is None)
        now += decision.limit_ns if decision.slice else (decision.wake_at_ns or 0) - now
    core.advance(400 * MS)
    assert abs(only.run_ns - 100 * MS) <= MS + 400 * US
    assert core.stats.idle_ns == core.stats.wall_ns - only.run_ns


def test_where_only_ghosts_are_ready_the_engine_parks_without_a_timer() -> None:
    core = Scheduler(FIXED)
    first, second, third = slices(core, 1, 2, params=STRICT)
    core.wake(second, 0)
    assert core.pick(0).slice is second
    core.sleep(second, 100 * US)
    decision = core.pick(100 * US)
    assert (decision.slice, decision.wake_at_ns, decision.idle) == (None, None, Idle.EMPTY)
    lags = [core.group_lag_ns(one.group, 100 * US) for one in (first, second)]
    later = 100 * US + 4_000_000_003
    assert [core.group_lag_ns(one.group, later) for one in (first, second)] == lags
    assert [one.run_ns - 1_000_000_000 for one in (first, second, third)] == [0, 100 * US, 0]
    assert second.group.stats.ghost_ns == 2_000_000_000
    charged = first.group.run_ns + second.group.run_ns
    assert core.stats.idle_ns + charged == core.stats.wall_ns == later


@st.composite
def idle_neighbours(draw: st.DrawFn) -> Story:
    fixed = draw(st.booleans())
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    places = sum(counts) + draw(st.integers(0, 4)) if fixed else 0
    tenants = []
    for count in counts:
        # Some are idle except for a moment every 10 ms.
        nap = draw(st.booleans())
        work = Work(items=(draw(st.integers(20 * US, 400 * US)),), nap_every=int(nap), nap_ns=10 * MS if nap else 0)
        weight = draw(st.sampled_from([1, 100]))
        timeslice = draw(st.sampled_from([500 * US, MS]))
        mode = Mode.STRICT if fixed else Mode.FAIR
        one = SliceOf(work=work, weight=weight)
        tenants.append(Tenant(weight=weight, timeslice_ns=timeslice, mode=mode, slices=(one,) * count))
    engine = replace(FIXED, places=places) if fixed else EQUAL
    return Story(engine=engine, tenants=tuple(tenants), duration_ns=300 * MS)


def check_equal(host: Host) -> None:
    """R10: ghosts count as backlogged, so every slice is due the same, whichever are idle."""
    engine = host.story.engine
    slices = [device.core for tenant in host.tenants for device in tenant.devices]
    groups = {one.name: Backlogged(weight=1) for one in slices}
    unsold = engine.places - len(slices) if engine.places else 0
    if unsold:
        groups["unsold"] = Backlogged(weight=unsold)
    due = entitled(groups, host.now)
    for tenant in host.tenants:
        total = sum(due[device.core.name] for device in tenant.devices)
        # Parking does not change lags, but rounds a nanosecond per slice to idle time each time.
        bound = MS + engine.max_chunk_ns + len(host.transcript)
        assert abs(tenant.core.run_ns - total) <= bound
        for device in tenant.devices:
            assert abs(device.core.run_ns - due[device.core.name]) <= 2 * bound


@given(story=idle_neighbours())
@settings(max_examples=15)
def test_every_slice_has_the_same_part_whoever_idles(story: Story) -> None:
    Host(story, with_model=False, at_pick=check_equal).run()


def test_a_place_that_is_not_sold_takes_turns_as_long_as_the_engine_now_wants() -> None:
    engine = SchedParams(max_chunk_ns=MS, policy=Policy.FIXED_SHARE, places=2)
    core = Scheduler(engine)
    core.set_params(replace(engine, switch_cost_ns=100 * US), 0)
    group = core.add_group(GroupParams(weight=1, timeslice_ns=4 * MS, mode=Mode.STRICT), 0)
    core.wake(core.add_slice(group, SliceParams(), 0), 0)
    now, turns = 0, set()
    while now < 100 * MS:
        decision = core.pick(now)
        if decision.slice is None:
            assert decision.wake_at_ns is not None
            turns.add(decision.wake_at_ns - now)
        now += decision.limit_ns or min(turns)
    assert turns == {core.timeslice_floor_ns} == {2 * MS}
