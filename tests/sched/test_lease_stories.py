# SPDX-License-Identifier: Apache-2.0
"""For any events, leases are as the exact model of their rules allows (invariant 18, and 1 to 16 under it)."""

from __future__ import annotations

from hypothesis import given, settings

from tests.sched.arbiter import Arbiter
from tests.sched.story import Story, banded_stories, ghostly_stories, stories
from tests.sched.test_stories import check_caps


def check_counters(arbiter: Arbiter) -> None:
    """Invariants 1 and 6 from the view of operators: runs whose end was not observed are counted too."""
    assert arbiter.model is not None
    for tenant in arbiter.tenants:
        stats = tenant.core.stats
        assert stats.runs == arbiter.model.run_counts[tenant.name] == sum(stats.histogram)
        assert stats.short_uncut_runs == 0
        assert tenant.model is not None
        assert stats.throttles == tenant.model.bucket.throttles
        assert stats.throttled_ns == tenant.model.bucket.throttled_ns


@given(story=stories())
@settings(max_examples=60)
def test_every_rule_holds_in_every_story(story: Story) -> None:
    arbiter = Arbiter(story).run()
    check_counters(arbiter)
    check_caps(arbiter)


@given(story=banded_stories())
@settings(max_examples=40)
def test_every_rule_holds_with_reservations_and_holds(story: Story) -> None:
    arbiter = Arbiter(story).run()
    check_counters(arbiter)
    check_caps(arbiter)


@given(story=ghostly_stories())
@settings(max_examples=20)
def test_every_rule_holds_with_ghosts(story: Story) -> None:
    check_counters(Arbiter(story).run())
