# SPDX-License-Identifier: Apache-2.0
"""Parties that leave the arbiter with their children and come back, in virtual time."""

from __future__ import annotations

import itertools

import pytest

from tests.compute.arbiter_native import ffi, lib
from tests.compute.arbiter_rig import LENT, MS, NEVER, SECOND, US, Delays, Rig, Tenant, backlog, eager, lose

LEASE_NONE = 0

# This gate is faster than the next tenant's children.
QUICK_GATE = Delays(gate_ns=5 * US)


def run_until_held(rig: Rig, tenant: Tenant) -> None:
    """Run until the tenant computes in a lease that has an end."""
    while rig.holder is not tenant or not any(child.finish_event for child in tenant.children):
        rig.run_until(rig.now + 100 * US)


@pytest.mark.parametrize("kernel_ns", [300 * US, NEVER // 4])
def test_the_lease_of_a_party_that_leaves_is_over_and_its_children_are_stopped(kernel_ns: int) -> None:
    rig = Rig(delays=QUICK_GATE)
    leaver, other = rig.tenant("leaver"), rig.tenant("other")
    rig.child(leaver, backlog(kernel_ns))
    left = rig.child(other, backlog(300 * US))
    rig.run_until(20 * MS)
    run_until_held(rig, leaver)
    rig.leave(leaver)
    assert leaver.page.lease & 3 == LEASE_NONE
    assert rig.holder is other
    assert other.page.expires_ns == NEVER
    before, stopped_at = left.done_ns, leaver.done_ns
    rig.run_until(rig.now + 100 * MS)
    assert leaver.frozen
    assert leaver.done_ns - stopped_at <= QUICK_GATE.gate_ns
    left.account()
    assert left.done_ns - before >= 98 * MS
    assert rig.overlaps == []


@pytest.mark.parametrize("says_so", [True, False])
def test_a_party_that_comes_back_goes_on_where_it_was_stopped(says_so: bool) -> None:
    """The child's page says that it is busy, whatever the caller says."""
    rig = Rig(delays=QUICK_GATE)
    leaver, other = rig.tenant("leaver"), rig.tenant("other")
    rig.child(leaver, backlog(300 * MS))
    rig.child(other, backlog(300 * US))
    run_until_held(rig, leaver)
    rig.leave(leaver)
    number, leases = leaver.c.lease.number, leaver.c.stats.leases
    rig.run_until(rig.now + 100 * MS)
    done_ns = leaver.done_ns
    leaver.children[0].c.want = says_so
    rig.come_back(leaver)
    rig.run_until(rig.now + 1 * SECOND)
    # The party's account starts anew. The numbers of its leases and its counters continue.
    assert leaver.c.lease.number - number == leaver.c.stats.leases - leases >= 70
    assert leaver.charged_ns == pytest.approx(500 * MS, abs=10 * MS)
    assert leaver.done_ns - done_ns >= leaver.charged_ns * 98 // 100
    assert rig.overlaps == []


def test_a_party_that_waits_leaves_and_comes_back_with_its_work() -> None:
    rig = Rig()
    holder, leaver = rig.tenant("holder"), rig.tenant("leaver")
    rig.child(holder, backlog(300 * US))
    rig.run_until(1 * MS)
    child = rig.child(leaver, eager(1 * MS, 1 * SECOND))
    rig.run_until(2 * MS)
    assert holder.page.expires_ns != NEVER
    rig.leave(leaver)
    assert (holder.page.lease & 3, holder.page.expires_ns) == (LENT, NEVER)
    assert child.c.want
    rig.run_until(50 * MS)
    rig.come_back(leaver)
    rig.run_until(100 * MS)
    # The child asked once, before its party left.
    assert child.kernels == 1


def test_the_slice_of_a_party_that_left_has_no_work() -> None:
    rig = Rig()
    holder, leaver = rig.tenant("holder"), rig.tenant("leaver")
    child = rig.child(holder, backlog(300 * US))
    rig.run_until(1 * MS)
    rig.child(leaver, backlog(300 * US))
    rig.run_until(2 * MS)
    assert rig.holder is holder
    lib.vgpu_arbiter_party_remove(rig.c, leaver.c, rig.now)
    assert holder.page.expires_ns == NEVER
    rig.remove(child)
    assert rig.holder is None


def test_work_that_comes_while_a_party_is_away_is_done_when_it_is_back() -> None:
    rig = Rig()
    leaver, other = rig.tenant("leaver"), rig.tenant("other")
    child = rig.child(leaver, iter((("pause", 10 * MS), ("compute", 1 * MS), ("pause", 1 * SECOND))))
    rig.child(other, backlog(300 * US))
    rig.run_until(5 * MS)
    rig.leave(leaver)
    rig.run_until(50 * MS)
    assert (child.kernels, child.c.want) == (0, True)
    rig.come_back(leaver)
    rig.run_until(100 * MS)
    assert child.kernels == 1


def test_what_makes_no_sense_is_refused_from_a_detached_child() -> None:
    rig = Rig()
    leaver = rig.tenant("leaver")
    child = rig.child(leaver, ())
    rig.leave(leaver)
    assert not lib.vgpu_arbiter_request(rig.c, child.c, ffi.new("struct vgpu_stream_request *"), rig.now)


@pytest.mark.parametrize("busy_first", [False, True])
def test_children_that_were_stopped_with_a_busy_one_can_ask_again(busy_first: bool) -> None:
    rig = Rig(delays=QUICK_GATE)
    pair, other = rig.tenant("pair"), rig.tenant("other")
    programs = [backlog(3 * MS), eager(500 * US, 2 * MS)]
    busy, asking = (rig.child(pair, program) for program in (programs if busy_first else reversed(programs)))
    if not busy_first:
        busy, asking = asking, busy
    rig.child(other, backlog(300 * US))
    run_until_held(rig, pair)
    rig.leave(pair)
    rig.run_until(rig.now + 20 * MS)
    assert pair.frozen
    kernels = busy.kernels, asking.kernels
    rig.come_back(pair)
    rig.run_until(rig.now + 200 * MS)
    assert busy.kernels - kernels[0] >= 25
    assert asking.kernels - kernels[1] >= 15
    assert rig.overlaps == []


def test_a_gate_stays_closed_for_a_busy_child_that_is_added_after_an_idle_one() -> None:
    rig = Rig(delays=QUICK_GATE)
    pair, other = rig.tenant("pair"), rig.tenant("other")
    rig.child(pair, ())
    busy = rig.child(pair, backlog(3 * MS))
    rig.child(other, backlog(300 * US))
    run_until_held(rig, pair)
    rig.leave(pair)
    # The party comes back in the middle of a timeslice. The other tenant keeps the rest of it.
    rig.run_until(rig.now + 22 * MS)
    done_ns = pair.done_ns
    rig.come_back(pair)
    rig.run_until(rig.now + 1 * MS)
    assert rig.holder is other
    assert pair.frozen
    assert pair.done_ns - done_ns <= QUICK_GATE.gate_ns
    rig.run_until(rig.now + 100 * MS)
    assert busy.kernels >= 10


def test_a_closed_gate_opens_for_children_that_come_back_without_work() -> None:
    """The busy child is killed while its party is away. The other child must be able to report that it has work."""
    rig = Rig(delays=QUICK_GATE)
    pair, other = rig.tenant("pair"), rig.tenant("other")
    busy = rig.child(pair, backlog(NEVER // 4))
    late = rig.child(pair, iter((("pause", 60 * MS), ("compute", 1 * MS))))
    rig.child(other, backlog(300 * US))
    run_until_held(rig, pair)
    rig.leave(pair)
    rig.run_until(30 * MS)
    rig.remove(busy)
    assert pair.frozen
    rig.come_back(pair)
    rig.run_until(100 * MS)
    assert late.kernels == 1


def test_children_that_end_while_their_party_is_away_are_gone() -> None:
    rig = Rig()
    leaver, other = rig.tenant("leaver"), rig.tenant("other")
    child = rig.child(leaver, backlog(300 * US))
    rig.child(other, backlog(300 * US))
    rig.run_until(20 * MS)
    rig.leave(leaver)
    rig.remove(child)
    rig.come_back(leaver)
    rig.run_until(30 * MS)
    assert rig.holder is other
    assert other.page.expires_ns == NEVER


def test_a_gate_that_fails_after_its_party_left_is_lost() -> None:
    rig = Rig()
    leaver = rig.tenant("leaver")
    rig.child(leaver, backlog(NEVER // 4))
    rig.run_until(1 * MS)
    leaver.gate_works = False
    rig.leave(leaver)
    assert (leaver.asked_to_close, leaver.lost) == (1, False)
    lib.vgpu_arbiter_gate_answer(rig.c, leaver.c, leaver.asked_to_close, False, 0, rig.now)
    assert leaver.lost


WATCH = {"processors": 2, "allowance_permille": 0, "burst_ns": 20 * MS, "every_ns": 50 * MS, "penalty_ns": 20 * SECOND}


def test_a_confined_party_that_comes_back_is_still_confined_and_is_found_to_have_work() -> None:
    rig = Rig(watch=WATCH, delays=QUICK_GATE)
    once, other = rig.tenant("once"), rig.tenant("other")
    child = rig.child(once, eager(1 * MS, 5 * MS))
    rig.child(other, backlog(200 * US))
    rig.run_until(100 * MS)
    child.processor_ns += 200 * MS
    rig.run_until(200 * MS)
    assert once.stats.offences == 1
    rig.leave(once)
    rig.run_until(300 * MS)
    rig.come_back(once)
    before = child.kernels
    rig.run_until(2 * SECOND)
    assert lib.vgpu_arbiter_is_confined(rig.c, once.c)
    assert child.kernels >= before + 50
    # Charges from before the slice left do not count as use outside leases now.
    assert once.stats.offences == 1


def test_leases_of_before_a_party_left_are_not_taken_for_those_after_it_came_back() -> None:
    """The party computes alone for so long that the next look comes after its leased time exceeds the earlier one."""
    rig = Rig(watch=WATCH)
    leaver, other = rig.tenant("leaver"), rig.tenant("other")
    for tenant, pause_ns in ((leaver, 130 * MS), (other, 2 * SECOND)):
        first = itertools.islice(backlog(300 * US), 1500)
        rig.child(tenant, itertools.chain(first, [("pause", pause_ns)], backlog(300 * US)))
    rig.run_until(1_020 * MS)
    assert [tenant.children[0].kernels for tenant in (leaver, other)] == [1500, 1500]
    rig.leave(leaver)
    rig.come_back(leaver)
    rig.run_until(5 * SECOND)
    assert other.children[0].kernels > 2000
    assert (leaver.stats.offences, leaver.stats.fined_ns) == (0, 0)


@pytest.mark.parametrize("whole", [{}, {"cap_ns": 30 * MS, "cap_period_ns": 100 * MS, "burst_ns": 10 * MS}])
def test_a_slice_with_a_cap_of_its_own_is_watched_beside_an_idle_neighbour(whole: dict[str, int]) -> None:
    rig = Rig(watch=WATCH)
    capped, idle = rig.tenant("capped"), rig.tenant("idle")
    child = rig.child(capped, ())
    rig.child(idle, ())
    rig.leave(capped)
    rig.come_back(capped, **whole)
    for moment in range(0, 2000, 10):
        rig.at(moment * MS, lambda: setattr(child, "processor_ns", child.processor_ns + 10 * MS))
    rig.run_until(2 * SECOND)
    assert (capped.stats.offences > 0) == bool(whole)


def test_a_party_of_a_group_with_several_slices_pays_for_its_own_leases_only() -> None:
    """Two slices of one group take turns. The watch compares each slice's use with that slice's own leases."""
    rig = Rig(watch=WATCH)
    first = rig.tenant("first")
    second = Tenant(rig, "second")
    second.group = first.group
    rig.tenants[second.c] = second
    rig.slices[second.slice] = second
    with rig.change():
        params = ffi.new("struct vgpu_slice_params *", {"weight": 1})
        assert not lib.vgpu_slice_add(rig.sched, first.group, second.slice, params, rig.now)
        lib.vgpu_arbiter_party_add(rig.c, second.c, second.slice, rig.now)
    rig.child(first, backlog(300 * US))
    hostile = rig.child(second, backlog(300 * US))
    for moment in range(0, 2000, 10):
        rig.at(moment * MS, lambda: setattr(hostile, "processor_ns", hostile.processor_ns + 8 * MS))
    rig.run_until(2 * SECOND)
    assert (first.stats.offences, first.stats.fined_ns) == (0, 0)
    assert second.stats.offences >= 1


def watched(allowance_permille: int, *, every_ns: int = 50 * MS) -> tuple[object, object]:
    settings = ffi.new(
        "struct vgpu_watch_settings *",
        {"processors": 1, "allowance_permille": allowance_permille, "every_ns": every_ns, "penalty_ns": SECOND},
    )
    watch = ffi.new("struct vgpu_watch *")
    assert lib.vgpu_watch_look(watch, settings, 0, 0, SECOND) == 0
    return watch, settings


def test_a_large_allowance_is_earned_over_a_long_pause() -> None:
    """The product of pause and allowance exceeds 64 bits."""
    watch, settings = watched(1_000_000)
    pause_ns = 18_447 * SECOND
    lib.vgpu_watch_look(watch, settings, 10_000 * SECOND, 0, SECOND + pause_ns)
    assert watch.until_ns == 0  # type: ignore[attr-defined]


def test_after_a_pause_of_years_two_intervals_are_charged_at_the_mean_rate() -> None:
    watch, settings = watched(1_000_000)
    pause_ns = 10 * 366 * 86_400 * SECOND
    fine_ns = lib.vgpu_watch_look(watch, settings, pause_ns // 3, 0, SECOND + pause_ns)
    assert fine_ns == pytest.approx(2 * 50 * MS // 3, abs=2)


def test_nothing_is_asked_of_the_gate_of_an_executor_that_has_died() -> None:
    """The party is confined and has the engine. The next executor would not know the request and would be killed."""
    rig = Rig(watch=WATCH, delays=QUICK_GATE)
    pair, other = rig.tenant("pair"), rig.tenant("other")
    rig.child(pair, backlog(3 * MS))
    rig.child(pair, ())
    rig.child(other, backlog(300 * US))
    rig.run_until(20 * MS)
    for processor_ns in (0, 1 * SECOND):
        lib.vgpu_arbiter_gate_answer(rig.c, pair.c, 0, True, processor_ns, rig.now)
    assert lib.vgpu_arbiter_is_confined(rig.c, pair.c)
    while rig.holder is not pair or pair.frozen:
        rig.run_until(rig.now + 1 * MS)
    assert pair.page.expires_ns != NEVER
    asked: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair, "gate", lambda close, _: asked.append(close))
        lose(pair)
    assert (asked, pair.page.lease & 3) == ([], LEASE_NONE)
    rig.run_until(rig.now + 100 * MS)
    assert rig.holder is other
    assert other.page.expires_ns == NEVER
    rig.child(pair, iter((("compute", 1 * MS),)))
    rig.run_until(rig.now + 2 * SECOND)
    assert (pair.children[0].kernels, pair.lost) == (1, False)
