# SPDX-License-Identifier: Apache-2.0
"""R9 and other properties of a single run: its length, its end, and the time left to others."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sched.host import Host
from tests.sched.story import MS, US, SliceOf, Story, Tenant, Work
from vgpumgr.sched.core import (
    Band,
    GroupParams,
    RunReason,
    SchedParams,
    Scheduler,
    Slice,
    SliceParams,
    histogram_bucket,
    histogram_bucket_start_ns,
)

ENGINE = SchedParams(max_chunk_ns=400 * US, min_chunk_ns=20 * US)
SPLITTING = SchedParams(max_chunk_ns=400 * US, min_chunk_ns=20 * US, splits=True)


def engine_with(*groups: GroupParams, params: SchedParams = ENGINE) -> tuple[Scheduler, list[Slice]]:
    """One slice per group, all of them awake at time 0."""
    core = Scheduler(params)
    slices = []
    for i, group_params in enumerate(groups):
        group = core.add_group(group_params, 0, name=f"g{i}")
        slices.append(core.add_slice(group, SliceParams(), 0, name=f"s{i}"))
        core.wake(slices[-1], 0)
    return core, slices


PLAIN = GroupParams(weight=1, timeslice_ns=MS)


def test_the_engine_is_idle_without_work() -> None:
    core = Scheduler(ENGINE)
    decision = core.pick(5)
    assert decision.slice is None
    assert decision.limit_ns == 0
    assert decision.wake_at_ns is None
    assert core.stats.idle_ns == core.stats.wall_ns == 5


def test_limits_end_at_the_timeslice() -> None:
    core, (only,) = engine_with(PLAIN)
    assert core.pick(0).limit_ns == 400 * US
    assert core.pick(700 * US).limit_ns == 300 * US
    assert core.pick(995 * US).limit_ns == 20 * US, "never less than the least piece"
    decision = core.pick(1015 * US)
    assert decision.ended is not None
    assert decision.ended.reason is RunReason.TIMESLICE
    assert decision.ended.length_ns == 1015 * US
    assert decision.slice is only, "alone, it begins a new run"
    assert not decision.switched


def test_a_host_that_looks_late_costs_the_engine_and_no_tenant() -> None:
    core, (first, second) = engine_with(PLAIN, PLAIN)
    core.pick(0)
    core.busy_until(400 * US)
    assert core.group_lag_ns(second.group, 900 * US) == core.group_lag_ns(second.group, 2 * MS), "nobody is charged"
    assert (first.group.stats.run_ns, core.stats.idle_ns) == (400 * US, 1600 * US)
    assert core.pick(3 * MS).slice is first, "its timeslice is not over"
    core.busy_until(3 * MS + 700 * US)
    decision = core.pick(4 * MS)
    assert decision.slice is second
    assert decision.ended is not None
    assert (decision.ended.start_ns, decision.ended.length_ns) == (0, 1100 * US)
    assert core.stats.wall_ns == core.stats.idle_ns + first.group.stats.run_ns == 4 * MS


def test_an_engine_that_stops_early_is_charged_until_then() -> None:
    core, (first,) = engine_with(PLAIN)
    core.pick(0)
    core.busy_until(400 * US)
    core.pick(300 * US)
    core.pick(600 * US)
    assert first.group.stats.run_ns == 600 * US, "the bound held for one piece of work"


def test_what_is_left_of_a_run_bounds_what_a_late_decision_costs() -> None:
    core, (first,) = engine_with(PLAIN)
    assert core.left_ns == 0, "nobody executes"
    core.pick(0)
    assert core.left_ns == MS
    core.advance(MS - 5 * US)
    assert core.left_ns == 5 * US
    core.sleep(first, MS - 3 * US)
    core.busy_until(core.now_ns + core.left_ns)
    decision = core.pick(MS + 14 * US)
    assert decision.ended is not None
    assert decision.ended.length_ns == first.group.stats.run_ns == MS, "whoever has gone to sleep meanwhile"
    assert core.left_ns == 0


CAPPED = {"cap_ns": 300 * US, "cap_period_ns": MS, "burst_ns": 300 * US}


@pytest.mark.parametrize(
    ("group", "of_slice"),
    [
        (replace(PLAIN, **CAPPED), SliceParams()),
        (PLAIN, SliceParams(**CAPPED)),
        (replace(PLAIN, band=Band.LATENCY, reserve_ns=429 * US, reserve_period_ns=4 * MS), SliceParams()),
    ],
    ids=["cap of the group", "cap of the slice", "reservation"],
)
def test_caps_and_reservations_bound_what_is_left(group: GroupParams, of_slice: SliceParams) -> None:
    """429 us: 300 us, and 30 % of the time until then."""
    core = Scheduler(replace(ENGINE, reserve_limit_permille=750))
    owner = core.add_slice(core.add_group(group, 0, name="group"), of_slice, 0, name="slice")
    core.wake(owner, 0)
    core.pick(0)
    core.advance(427 * US)
    assert core.left_ns == pytest.approx(2 * US, abs=US)
    core.advance(429 * US)
    assert core.left_ns == 0
    core.advance(430 * US)
    assert core.left_ns == 0, "nothing, when overdrawn"
    assert core.pick(430 * US).ended is not None


def test_a_wakeup_never_cuts_a_run() -> None:
    core, (first, second) = engine_with(PLAIN, PLAIN)
    core.sleep(second, 0)
    assert core.pick(0).slice is first
    core.wake(second, 100 * US)
    assert core.pick(900 * US).slice is first
    decision = core.pick(1100 * US)
    assert decision.slice is second
    assert decision.switched
    assert decision.ended is not None
    assert decision.ended.length_ns == 1100 * US


def test_another_slice_of_the_group_goes_on_with_the_run() -> None:
    core, (first, rival) = engine_with(PLAIN, PLAIN)
    second = core.add_slice(first.group, SliceParams(), 0, name="second")
    core.wake(second, 0)
    owner = core.pick(0).slice
    if owner is rival:
        owner = core.pick(MS).slice
    now = core.now_ns
    assert owner is not None
    core.sleep(owner, now + 300 * US)
    decision = core.pick(now + 300 * US)
    assert decision.slice in {first, second} - {owner}
    assert decision.ended is None
    assert decision.limit_ns == 400 * US
    assert core.pick(now + 700 * US).limit_ns == 300 * US


def test_a_dry_moment_before_the_pick_does_not_end_a_run() -> None:
    core, (first, _) = engine_with(PLAIN, PLAIN)
    assert core.pick(0).slice is first
    core.sleep(first, 300 * US)
    core.wake(first, 300 * US)
    assert core.pick(300 * US).slice is first
    core.sleep(first, 500 * US)
    decision = core.pick(500 * US)
    assert decision.ended is not None
    assert decision.ended.reason is RunReason.DRY
    assert decision.slice is not first


def test_a_removed_owner_pays_until_then_and_nobody_afterwards() -> None:
    core, (first, second) = engine_with(PLAIN, PLAIN)
    group = first.group
    assert core.pick(0).slice is first
    core.remove_slice(first, 300 * US)
    assert first.run_ns == group.run_ns == 300 * US
    decision = core.pick(310 * US)
    assert decision.slice is second
    assert decision.ended is not None
    assert decision.ended.reason is RunReason.REMOVED
    assert decision.ended.group is group
    assert core.stats.idle_ns == 10 * US


def test_the_end_of_a_run_is_not_reported_for_a_group_that_is_gone() -> None:
    core, (first, _) = engine_with(PLAIN, PLAIN)
    assert core.pick(0).slice is first
    core.remove_slice(first, 300 * US)
    core.remove_group(first.group, 300 * US)
    assert core.pick(300 * US).ended is None


def test_a_new_timeslice_counts_from_the_next_run() -> None:
    core, (only,) = engine_with(PLAIN)
    core.pick(0)
    core.update_group(only.group, GroupParams(weight=1, timeslice_ns=200 * US), 100 * US)
    assert core.pick(300 * US).ended is None
    decision = core.pick(MS)
    assert decision.ended is not None
    assert decision.ended.timeslice_ns == MS
    assert only.group.stats.longest_run_ns == 0, "counted since the new timeslice is in force"
    assert decision.limit_ns == 200 * US
    assert core.pick(1300 * US).ended is not None
    assert only.group.stats.longest_run_ns == 300 * US


def test_an_idle_engine_is_told_when_a_throttle_ends() -> None:
    capped = GroupParams(weight=1, timeslice_ns=MS, cap_ns=2 * MS, cap_period_ns=10 * MS, burst_ns=MS)
    core, (only,) = engine_with(capped)
    decision = core.pick(0)
    while decision.slice is not None:
        decision = core.pick(core.now_ns + decision.limit_ns)
    assert decision.ended is not None
    wake_at = decision.wake_at_ns
    assert wake_at is not None
    assert only.group.stats.throttles == 1
    assert core.pick(wake_at - 1).wake_at_ns == wake_at
    assert core.pick(wake_at).slice is only
    assert only.group.stats.throttled_ns == 5 * MS
    core.sleep(only, wake_at + 10 * MS)
    assert core.pick(wake_at + 10 * MS).wake_at_ns is None, "nobody waits for the credit"


def test_among_equals_no_stay_is_longer_than_timeslice_and_chunk() -> None:
    """R9 in the strict sense: consecutive runs count as one stay."""
    work = SliceOf(work=Work(items=(130 * US, 390 * US, 20 * US)))
    story = Story(engine=ENGINE, tenants=(Tenant(slices=(work,)),) * 5, duration_ns=500 * MS)
    host = Host(story).run()
    assert len(host.runs) > 300
    for _, stay in groupby(host.runs, key=lambda named: named[0]):
        assert sum(run.length_ns for _, run in stay) <= MS + 400 * US


def test_a_heavy_group_keeps_the_engine_after_the_offer() -> None:
    """R10 takes precedence over the strict sense of R9 where they conflict: 10 against 1 and 1."""
    story = Story(
        engine=SPLITTING,
        tenants=tuple(Tenant(weight=w, slices=(SliceOf(work=Work(splittable=True)),)) for w in (10, 1, 1)),
        duration_ns=120 * MS,
    )
    host = Host(story).run()
    assert all(run.length_ns == MS for _, run in host.runs)
    assert [tenant.core.stats.runs for tenant in host.tenants] == [100, 10, 10]


@given(length=st.integers(0, 2**40))
@settings(max_examples=200)
def test_histogram_buckets_begin_where_they_say(length: int) -> None:
    bucket = histogram_bucket(length)
    assert histogram_bucket_start_ns(bucket) <= length
    if bucket < 97:
        assert length < histogram_bucket_start_ns(bucket + 1)
    else:
        assert length >= 2**34


@pytest.mark.parametrize(("length", "bucket"), [(0, 0), (1023, 0), (1024, 1), (1280, 2), (2048, 5), (2**34, 97)])
def test_some_histogram_buckets(length: int, bucket: int) -> None:
    assert histogram_bucket(length) == bucket


def test_work_whose_slice_was_put_to_sleep_still_ends_when_it_was_said_to_end() -> None:
    core, (first,) = engine_with(PLAIN)
    core.pick(0)
    core.sleep(first, 100 * US)
    core.busy_until(400 * US)
    core.pick(900 * US)
    assert first.group.stats.run_ns == 400 * US
