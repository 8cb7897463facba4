# SPDX-License-Identifier: Apache-2.0
"""For any events, the core does what the exact model of its rules allows."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sched.host import Host, Usage
from tests.sched.story import MS, Story, banded_stories, ghostly_stories, stories
from vgpumgr.sched.core import CallError, Field

ORIGINS = [2**63 - 7 * MS, 2**64 - 1, 2**64 - 11 * MS, 2**32 - MS]


@given(story=stories())
@settings(max_examples=60)
def test_every_rule_holds_in_every_story(story: Story) -> None:
    """`Host` checks invariants 1 to 7 against `Model` at every pick."""
    host = Host(story).run()
    check_counters(host)
    check_caps(host)


@given(story=banded_stories())
@settings(max_examples=25)
def test_every_rule_holds_with_reservations_and_holds(story: Story) -> None:
    """Invariants 11 to 15, by `Model` and by the check of reservations in `check_caps`."""
    host = Host(story).run()
    check_counters(host)
    check_caps(host)


@given(story=ghostly_stories())
@settings(max_examples=15)
def test_every_rule_holds_with_ghosts(story: Story) -> None:
    """Invariant 16."""
    check_counters(Host(story).run())


def check_counters(host: Host) -> None:
    """Invariants 1 and 6 again, from the view of operators."""
    assert host.model is not None
    for tenant in host.tenants:
        stats = tenant.core.stats
        runs = [run for name, run in host.runs if name == tenant.name]
        assert stats.runs == len(runs) == sum(stats.histogram)
        assert stats.short_uncut_runs == 0
        assert stats.uncut_runs == sum(run.reason.name == "TIMESLICE" for run in runs)
        assert stats.longest_run_ns <= max((run.length_ns for run in runs), default=0)
        assert tenant.model is not None
        assert stats.throttles == tenant.model.bucket.throttles
        assert stats.throttled_ns == tenant.model.bucket.throttled_ns
        for device in tenant.devices:
            assert device.model is not None
            assert device.core.stats.throttles == device.model.bucket.throttles
            assert device.core.stats.throttled_ns == device.model.bucket.throttled_ns


def check_caps(host: Host) -> None:
    """R6 and R7 for the remaining groups and slices, for each period of constant settings."""
    engine = host.story.engine
    chunk = max(engine.max_chunk_ns, engine.min_chunk_ns)
    for tenant in host.tenants:
        for usage in tenant.usage + tenant.reserve_usage:
            check_every_window(usage, chunk)
        for device in tenant.devices:
            for usage in device.usage:
                check_every_window(usage, chunk)


def check_every_window(usage: Usage, chunk: int) -> None:
    """Use over any window T <= rate * T + burst + one chunk.

    The worst window that ends with a stay begins where use minus rate * time was smallest.
    """
    if not usage.cap.cap_ns or not usage.stays:
        return
    rate = Fraction(usage.cap.cap_ns, usage.cap.cap_period_ns)
    used = 0
    least: Fraction | None = None
    for start, end in usage.stays:
        before = used - rate * start
        least = before if least is None else min(least, before)
        used += end - start
        assert used - rate * end - least <= usage.burst_ns + chunk


@given(story=stories(), origin=st.sampled_from(ORIGINS), vtime=st.integers(0, 2**64 - 1))
@settings(max_examples=20)
def test_neither_the_clocks_origin_nor_a_wrap_matters(story: Story, origin: int, vtime: int) -> None:
    here = Host(story, with_model=False).run()
    there = Host(story, origin=origin, vtime=vtime, with_model=False).run()
    assert here.transcript == there.transcript


@given(story=stories())
@settings(max_examples=20)
def test_looking_changes_nothing(story: Story) -> None:
    """Calls that change nothing, including those that repeat known facts, leave no trace."""

    def look(host: Host) -> None:
        for tenant in host.tenants:
            host.core.group_lag_ns(tenant.core, host.clock())
            for device in tenant.devices:
                if device.is_awake:
                    host.core.wake(device.core, host.clock())
                else:
                    host.core.sleep(device.core, host.clock())

    undisturbed = Host(story, with_model=False).run()
    disturbed = Host(story, with_model=False, probe=look, at_pick=look).run()
    assert undisturbed.transcript == disturbed.transcript


@given(story=stories())
@settings(max_examples=20)
def test_time_that_steps_back_is_refused_and_changes_nothing(story: Story) -> None:
    def step_back(host: Host) -> None:
        before = (host.core.now_ns - 1) % 2**64
        calls: list[Callable[[], object]] = [lambda: host.core.pick(before), lambda: host.core.advance(before)]
        for tenant in host.tenants:
            calls.append(partial(host.core.update_group, tenant.core, tenant.params, before))
            for device in tenant.devices:
                calls.append(partial(host.core.wake, device.core, before))
                calls.append(partial(host.core.sleep, device.core, before))
                calls.append(partial(host.core.remove_slice, device.core, before))
        for call in calls:
            with pytest.raises(CallError) as caught:
                call()
            assert caught.value.field is Field.TIME

    steady = Host(story, with_model=False).run()
    stepping = Host(story, with_model=False, probe=step_back, at_pick=step_back).run()
    assert steady.transcript == stepping.transcript
