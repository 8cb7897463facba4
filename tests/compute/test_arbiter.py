# SPDX-License-Identifier: Apache-2.0
"""The arbiter in virtual time: each tenant's share of the accelerator, compared with the fluid reference.

The bound is the scheduler's: no tenant is further from its entitlement than the longest timeslice and one chunk. The
chunk is how long a lease can overrun until the gate is closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import pytest

from tests.compute.arbiter_native import lib
from tests.compute.arbiter_rig import LENT, MS, NEVER, SECOND, US, Child, Delays, Rig, Tenant, backlog, eager
from vgpumgr.entitlement import Backlogged, entitled

LATENCY = {"band": 1, "reserve_ns": 2 * MS, "reserve_period_ns": 20 * MS}


def check_shares(rig: Rig, tenants: Mapping[Tenant, Backlogged]) -> None:
    """Check the shares of tenants that always had work, with timeslices of 5 ms."""
    charged = {tenant: tenant.charged_ns for tenant in tenants}
    due = entitled(tenants, rig.now)
    bound = 5 * MS + rig.max_chunk_ns
    for tenant, ns in charged.items():
        assert abs(ns - due[tenant]) <= bound, (tenant.name, ns, float(due[tenant]))


@pytest.mark.parametrize("weights", [(3, 1), (60, 30, 10), (1, 1, 1, 1, 1, 1, 1, 100)])
@pytest.mark.parametrize("kernel_ns", [100 * US, 1 * MS, 3 * MS])
def test_shares_are_by_weight(weights: tuple[int, ...], kernel_ns: int) -> None:
    rig = Rig()
    tenants = {rig.tenant(f"t{n}", weight=weight): Backlogged(weight=weight) for n, weight in enumerate(weights)}
    for tenant in tenants:
        rig.child(tenant, backlog(kernel_ns))
    for end in range(1, 11):
        rig.run_until(end * 100 * MS)
        check_shares(rig, tenants)
    assert rig.overlaps == []


def test_kernels_longer_than_a_lease_are_cut_by_the_gate_and_shares_hold() -> None:
    rig = Rig()
    tenants = {rig.tenant(f"t{n}", weight=weight): Backlogged(weight=weight) for n, weight in enumerate((3, 1))}
    long, short = tenants
    rig.child(long, backlog(300 * MS))
    rig.child(short, backlog(1 * MS))
    rig.run_until(2 * SECOND)
    check_shares(rig, tenants)
    assert long.stats.gates >= 100
    assert short.stats.gates == 0
    # The kernel continues where it was stopped, so nothing is computed twice.
    assert long.done_ns >= long.charged_ns * 98 // 100
    assert rig.overlaps == []


def test_a_lone_tenant_keeps_its_lease_without_a_timer() -> None:
    rig = Rig()
    alone = rig.tenant("alone")
    child = rig.child(alone, eager(1 * MS, 1 * MS))
    rig.run_until(1 * SECOND)
    assert (alone.stats.leases, alone.requests, rig.timers) == (1, 1, 0)
    assert (alone.page.lease & 3, alone.page.expires_ns) == (LENT, NEVER)
    # The tenant does not pay for time that it does not use.
    assert alone.charged_ns == pytest.approx(child.done_ns, abs=1)
    assert alone.stats.lent_ns > 990 * MS


def test_a_rival_gets_the_accelerator_at_once_from_a_tenant_that_is_dry() -> None:
    rig = Rig()
    holder, rival = rig.tenant("holder"), rig.tenant("rival")
    rig.child(holder, eager(1 * MS, 1 * SECOND))
    rig.run_until(100 * MS)
    rig.child(rival, eager(1 * MS, 1 * SECOND))
    rig.run_until(200 * MS)
    delays = rig.delays
    assert rival.stats.longest_wait_ns == 0
    assert rival.children[0].latencies == [1 * MS + delays.message_ns + delays.wake_ns]
    assert holder.charged_ns == holder.done_ns == 1 * MS


def test_a_rival_waits_for_the_rest_of_a_timeslice() -> None:
    rig = Rig()
    holder, rival = rig.tenant("holder"), rig.tenant("rival")
    rig.child(holder, backlog(100 * US))
    rig.run_until(2 * MS)
    rig.child(rival, eager(1 * MS, 1 * SECOND))
    rig.run_until(100 * MS)
    assert 3 * MS <= rival.stats.longest_wait_ns <= 3 * MS + 200 * US


def test_a_program_that_waits_for_its_host_yields_to_a_rival_and_both_run_at_speed() -> None:
    """Kernels of 100 us with gaps of 300 us use a quarter of the accelerator alone, and half of it together."""
    rig = Rig(delays=Delays(wake_ns=5 * US, message_ns=3 * US))
    alone = rig.child(rig.tenant("alone"), eager(100 * US, 300 * US))
    rig.run_until(1 * SECOND)
    rig = Rig(delays=Delays(wake_ns=5 * US, message_ns=3 * US))
    both = [rig.child(rig.tenant(name), eager(100 * US, 300 * US)) for name in ("a", "b")]
    rig.run_until(1 * SECOND)
    assert sum(child.kernels for child in both) >= 1.7 * alone.kernels
    assert abs(both[0].kernels - both[1].kernels) <= both[0].kernels // 50
    assert rig.overlaps == []


def test_a_child_that_takes_long_to_wake_up_does_not_lose_its_lease_to_a_rival_that_asks() -> None:
    rig = Rig(delays=Delays(wake_ns=2 * MS))
    children = [rig.child(rig.tenant(name), eager(100 * US, 50 * US)) for name in ("a", "b", "c")]
    rig.run_until(1 * SECOND)
    assert min(child.kernels for child in children) >= 100
    assert rig.overlaps == []


def test_a_heavy_tenant_is_prolonged_and_stops_for_a_light_one_only() -> None:
    rig = Rig()
    tenants = {rig.tenant(f"t{n}", weight=weight): Backlogged(weight=weight) for n, weight in enumerate((10, 1))}
    for tenant in tenants:
        rig.child(tenant, backlog(500 * US))
    rig.run_until(2 * SECOND)
    check_shares(rig, tenants)
    heavy, light = tenants
    assert abs(heavy.stats.leases - light.stats.leases) <= 1
    assert rig.overlaps == []


# ---- caps


def test_a_cap_holds_beside_an_idle_neighbour() -> None:
    rig = Rig()
    capped = rig.tenant("capped", cap_ns=30 * MS, cap_period_ns=100 * MS, burst_ns=10 * MS)
    idle = rig.tenant("idle")
    rig.child(capped, backlog(500 * US))
    rig.child(idle, ())
    rig.run_until(2 * SECOND)
    assert abs(capped.charged_ns - rig.now * 3 // 10) <= 10 * MS + rig.max_chunk_ns
    assert capped.done_ns <= capped.charged_ns


def test_a_capped_tenant_does_not_pay_for_spans_in_which_it_was_dry() -> None:
    """A tenth of the accelerator under a cap of three tenths is never throttled. Each kernel has its own lease."""
    rig = Rig()
    capped = rig.tenant("capped", cap_ns=30 * MS, cap_period_ns=100 * MS, burst_ns=10 * MS)
    child = rig.child(capped, eager(1 * MS, 9 * MS))
    rig.run_until(2 * SECOND)
    assert child.kernels == pytest.approx(198, abs=2)
    to_start_and_yield_ns = rig.delays.wake_ns + rig.delays.message_ns
    assert capped.charged_ns == pytest.approx(child.done_ns + child.kernels * to_start_and_yield_ns, abs=100 * US)


def test_what_a_cap_leaves_goes_to_the_others_by_weight() -> None:
    rig = Rig()
    capped = rig.tenant("capped", weight=4, cap_ns=10 * MS, cap_period_ns=100 * MS, burst_ns=50 * MS)
    tenants = {
        capped: Backlogged(weight=4, cap=Fraction(1, 10)),
        rig.tenant("small"): Backlogged(weight=1),
        rig.tenant("large", weight=3): Backlogged(weight=3),
    }
    for tenant in tenants:
        rig.child(tenant, backlog(700 * US))
    rig.run_until(3 * SECOND)
    due = entitled(tenants, rig.now)
    for tenant in tenants:
        # The tenant may use a burst of its cap at the start.
        assert abs(tenant.charged_ns - due[tenant]) <= 50 * MS + 10 * MS


# ---- several processes


def test_more_processes_buy_no_more_share() -> None:
    rig = Rig()
    tenants = {rig.tenant(name): Backlogged(weight=1) for name in ("one", "two")}
    one, two = tenants
    rig.child(one, backlog(500 * US))
    for _ in range(2):
        rig.child(two, backlog(500 * US))
    rig.run_until(1 * SECOND)
    check_shares(rig, tenants)
    # Both children compute in the leases of their tenant.
    assert min(child.done_ns for child in two.children) >= 480 * MS
    assert rig.overlaps == []


def test_a_lease_ends_when_all_processes_are_dry_and_not_before() -> None:
    rig = Rig()
    pair, rival = rig.tenant("pair"), rig.tenant("rival")
    short, long = rig.child(pair, eager(100 * US, 20 * MS)), rig.child(pair, eager(3 * MS, 20 * MS))
    rig.child(rival, backlog(500 * US))
    rig.run_until(1 * SECOND)
    assert short.kernels > 30
    assert long.kernels > 30
    assert rig.overlaps == []


# ---- latency


def test_a_latency_tenant_goes_first_and_gets_what_was_reserved() -> None:
    rig = Rig(max_chunk_ns=2 * MS)
    quick = rig.tenant("quick", weight=2, **LATENCY)
    batch = rig.tenant("batch", weight=2)
    child = rig.child(quick, eager(1 * MS, 19 * MS))
    rig.child(batch, backlog(300 * US))
    rig.run_until(2 * SECOND)
    longest = 1 * MS + 300 * US + 2 * (rig.delays.message_ns + rig.delays.wake_ns)
    assert max(child.latencies) <= longest
    assert len(child.latencies) >= 95
    assert batch.done_ns >= 1_800 * MS
    assert rig.overlaps == []


def test_without_budget_a_latency_tenant_has_its_share_and_no_more() -> None:
    rig = Rig(max_chunk_ns=2 * MS)
    quick = rig.tenant("quick", weight=1, **LATENCY)
    batch = rig.tenant("batch", weight=3)
    for tenant in (quick, batch):
        rig.child(tenant, backlog(300 * US))
    rig.run_until(2 * SECOND)
    bound = 5 * MS + rig.max_chunk_ns + 2 * MS + rig.max_chunk_ns
    assert abs(quick.charged_ns - rig.now // 4) <= bound


# ---- children that do not yield


def test_a_child_that_never_yields_is_charged_until_the_gate_is_closed() -> None:
    rig = Rig(delays=Delays(gate_ns=300 * US))
    tenants = {rig.tenant(name): Backlogged(weight=1) for name in ("endless", "honest")}
    endless, honest = tenants
    rig.child(endless, backlog(NEVER // 4))
    rig.child(honest, backlog(200 * US))
    rig.run_until(1 * SECOND)
    check_shares(rig, tenants)
    assert endless.stats.longest_gate_ns == 300 * US + rig.delays.message_ns
    # The other tenant's timeslice, the grace and the closing of the gate.
    assert honest.stats.longest_wait_ns <= 5 * MS + rig.grace_ns + 300 * US + 100 * US
    assert rig.overlaps == []


def test_a_gate_that_does_not_answer_is_lost_and_the_others_go_on() -> None:
    rig = Rig()
    endless, honest = rig.tenant("endless"), rig.tenant("honest")
    rig.child(endless, backlog(NEVER // 4))
    child = rig.child(honest, backlog(200 * US))
    rig.run_until(100 * MS)
    endless.gate_works = False
    rig.run_until(3 * SECOND)
    assert endless.lost
    assert endless.children == []
    assert child.done_ns > 1_900 * MS


STRICT = {
    "processors": 2,
    "allowance_permille": 100,
    "burst_ns": 20 * MS,
    "every_ns": 50 * MS,
    "penalty_ns": 500 * MS,
}


def test_a_child_that_computes_without_a_lease_is_confined_and_pays() -> None:
    rig = Rig(watch=STRICT)
    hostile, honest = rig.tenant("hostile"), rig.tenant("honest")
    rig.child(hostile, backlog(2 * MS), deaf=True)
    child = rig.child(honest, backlog(200 * US))
    rig.run_until(10 * SECOND)
    assert hostile.stats.offences >= 1
    assert lib.vgpu_arbiter_is_confined(rig.c, hostile.c)
    # The most it can use: the allowance, and what it uses before the watch looks, once per penalty.
    until_seen_ns = 2 * (50 * MS + rig.delays.gate_ns) * hostile.stats.offences
    allowed_ns = 20 * MS + rig.now // 10
    used_ns = hostile.children[0].processor_ns - 2 * hostile.charged_ns
    assert used_ns <= allowed_ns + until_seen_ns
    assert child.done_ns >= rig.now * 45 // 100


def test_a_cap_holds_for_a_child_that_never_asks_beside_an_idle_neighbour() -> None:
    rig = Rig(watch=STRICT)
    capped = rig.tenant("capped", cap_ns=30 * MS, cap_period_ns=100 * MS, burst_ns=10 * MS)
    idle = rig.tenant("idle")
    child = rig.child(capped, ())
    rig.child(idle, ())
    use_outside(rig, child, 2000)
    rig.run_until(10 * SECOND)
    assert capped.stats.offences >= 1
    assert lib.vgpu_arbiter_is_confined(rig.c, capped.c)
    assert idle.stats.fined_ns == 0


def test_a_confined_tenant_that_obeys_still_computes() -> None:
    """After an offence, its children are frozen outside leases. The arbiter finds those with work without a request."""
    watch = {"processors": 2, "allowance_permille": 0, "burst_ns": 0, "every_ns": 50 * MS, "penalty_ns": 5 * SECOND}
    rig = Rig(watch=watch)
    once, other = rig.tenant("once"), rig.tenant("other")
    child = rig.child(once, eager(1 * MS, 5 * MS))
    rig.child(other, backlog(200 * US))
    rig.run_until(100 * MS)
    child.processor_ns += 200 * MS
    rig.run_until(200 * MS)
    before = child.kernels
    assert once.stats.offences == 1
    assert once.stats.fined_ns == pytest.approx(100 * MS, abs=60 * MS)
    rig.run_until(3 * SECOND)
    assert child.kernels >= before + 50


FREE_NS = 20 * MS  # per second, of one processor
ALLOWANCE = {
    "processors": 2,
    "free_permille": 20,
    "allowance_permille": 500,
    "burst_ns": SECOND,
    "every_ns": 250 * MS,
    "penalty_ns": SECOND,
}


def use_outside(rig: Rig, child: Child, permille: int) -> None:
    """Simulate a thread of the child that uses this much of a processor, regardless of leases."""
    child.processor_ns += 10 * MS * permille // 1000
    rig.at(rig.now + 10 * MS, lambda: use_outside(rig, child, permille))


def test_a_tenant_pays_for_what_it_uses_outside_leases_below_its_allowance() -> None:
    rig = Rig(watch=ALLOWANCE)
    busy, honest = rig.tenant("busy"), rig.tenant("honest")
    use_outside(rig, rig.child(busy, backlog(500 * US)), 400)
    rig.child(honest, backlog(500 * US))
    rig.run_until(20 * SECOND)
    assert busy.stats.offences == 0
    owed_ns = 20 * (400 * MS - FREE_NS) // 2
    assert busy.stats.fined_ns == pytest.approx(owed_ns, rel=0.05)
    # The other tenant's leases equal this tenant's leases and debt together.
    assert busy.charged_ns + owed_ns == pytest.approx(honest.charged_ns, rel=0.05)


def test_what_a_child_uses_to_take_requests_is_free() -> None:
    rig = Rig(watch=ALLOWANCE)
    a, b = rig.tenant("a"), rig.tenant("b")
    for tenant in (a, b):
        use_outside(rig, rig.child(tenant, backlog(500 * US)), 15)
    rig.run_until(5 * SECOND)
    assert (a.stats.fined_ns, b.stats.fined_ns) == (0, 0)


def test_a_tenant_owes_little_for_the_time_when_nobody_else_had_work() -> None:
    rig = Rig(watch=ALLOWANCE)
    first, second = rig.tenant("first"), rig.tenant("second")
    use_outside(rig, rig.child(first, eager(1 * MS, 50 * MS)), 300)
    rig.child(second, iter((("compute", 1 * MS), ("pause", 60 * SECOND), ("compute", SECOND))))
    rig.run_until(59 * SECOND)
    before = first.stats.fined_ns
    rig.run_until(61 * SECOND)
    # At this time, the second tenant has had work for a second.
    assert first.stats.fined_ns - before <= (SECOND + 2 * 250 * MS) * 300 // 1000 // 2
    assert first.stats.offences == 0


def test_a_watched_tenant_that_behaves_commits_no_offence() -> None:
    watch = {"processors": 2, "allowance_permille": 0, "burst_ns": 0, "every_ns": 10 * MS, "penalty_ns": SECOND}
    rig = Rig(watch=watch)
    tenants = [rig.tenant(name, weight=weight) for name, weight in (("a", 3), ("b", 1))]
    rig.child(tenants[0], backlog(700 * US))
    rig.child(tenants[1], eager(200 * US, 1 * MS))
    rig.run_until(2 * SECOND)
    assert [tenant.stats.offences for tenant in tenants] == [0, 0]


# ---- changes at run time


def test_weights_change_live() -> None:
    rig = Rig()
    a, b = rig.tenant("a"), rig.tenant("b")
    for tenant in (a, b):
        rig.child(tenant, backlog(500 * US))
    rig.run_until(1 * SECOND)
    before = a.charged_ns
    assert rig.update(a, weight=3) == lib.VGPU_FIELD_NONE
    rig.run_until(2 * SECOND)
    assert abs(a.charged_ns - before - 750 * MS) <= 10 * MS + rig.max_chunk_ns


def test_a_cap_is_given_to_and_taken_from_a_tenant_that_is_alone() -> None:
    rig = Rig()
    alone = rig.tenant("alone")
    child = rig.child(alone, backlog(500 * US))
    rig.run_until(1 * SECOND)
    assert rig.update(alone, cap_ns=10 * MS, cap_period_ns=100 * MS, burst_ns=10 * MS) == lib.VGPU_FIELD_NONE
    rig.run_until(2 * SECOND)
    capped = child.done_ns
    assert abs(capped - 1_100 * MS) <= 10 * MS + rig.max_chunk_ns
    assert rig.update(alone) == lib.VGPU_FIELD_NONE
    rig.run_until(3 * SECOND)
    assert child.done_ns - capped >= 990 * MS


def test_what_cannot_be_kept_is_refused_and_changes_nothing() -> None:
    rig = Rig()
    a = rig.tenant("a")
    assert rig.update(a, weight=0) == lib.VGPU_FIELD_WEIGHT
    assert rig.update(a, timeslice_ns=1) == lib.VGPU_FIELD_TIMESLICE
    assert rig.update(a, cap_ns=2 * MS, cap_period_ns=1 * MS) == lib.VGPU_FIELD_CAP
    assert rig.update(a, band=1, reserve_ns=1, reserve_period_ns=1) == lib.VGPU_FIELD_RESERVE_PERIOD
    rig.child(a, backlog(1 * MS))
    rig.run_until(10 * MS)
    assert a.charged_ns >= 9 * MS


def test_a_tenant_that_is_removed_leaves_the_accelerator_to_the_others() -> None:
    rig = Rig()
    a, b = rig.tenant("a"), rig.tenant("b")
    for tenant in (a, b):
        rig.child(tenant, backlog(3 * MS))
    rig.run_until(50 * MS)
    assert rig.holder is not None
    rig.remove_tenant(rig.holder)
    left = next(iter(rig.tenants.values()))
    before = left.done_ns
    rig.run_until(150 * MS)
    assert left.done_ns - before >= 97 * MS
    assert left.page.expires_ns == NEVER


@pytest.mark.parametrize("victim", [0, 1])
def test_a_child_that_is_killed_at_any_moment_leaves_the_accelerator_to_the_others(victim: int) -> None:
    for moment in range(0, 20 * MS, 137 * US):
        rig = Rig()
        children = [rig.child(rig.tenant(name), backlog(8 * MS if name == "a" else 900 * US)) for name in ("a", "b")]
        rig.run_until(moment)
        rig.remove(children[victim])
        rig.run_until(moment + 40 * MS)
        other: Child = children[1 - victim]
        assert other.done_ns >= 30 * MS, moment
        assert rig.overlaps == []


def test_a_child_that_wakes_up_after_its_lease_keeps_its_place() -> None:
    """The lease ends before the child starts. It still has work, so it is not treated like one that went to sleep."""
    rig = Rig()
    late, other = rig.tenant("late", weight=3), rig.tenant("other")
    child = rig.child(late, backlog(100 * US))
    rig.child(other, backlog(100 * US))
    rig.run_until(100 * MS)
    rig.delays.wake_ns = 7 * MS
    rig.run_until(400 * MS)
    rig.delays.wake_ns = 20 * US
    rig.run_until(1 * SECOND)
    check_shares(rig, {late: Backlogged(weight=3), other: Backlogged(weight=1)})
    assert (late.stats.dries, other.stats.dries) == (0, 0)
    assert child.kernels > 1000
