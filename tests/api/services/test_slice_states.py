# SPDX-License-Identifier: Apache-2.0
"""The progress of slices, from host reports and by the clock; progress alone releases nothing."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select
from vgpumgr_api.claims import claims, deadlines, progress
from vgpumgr_api.claims.deadline_settings import Deadlines
from vgpumgr_api.claims.progress import Place, heard
from vgpumgr_api.db import models
from vgpumgr_api.db.progress import Liveness, SliceProgress
from vgpumgr_api.fleet import cordoning, fencing, heartbeats, hosts
from vgpumgr_api.installation import liveness
from vgpumgr_api.resources.paging import PageRequest

from tests.api.conftest import Clock
from tests.api.world import Agent, World, absent
from vgpumgr.wire.fleet import Heartbeat, ReportedSlice
from vgpumgr.wire.resources import HostFence, HostState, Slice, SliceState

LIMITS = Deadlines(claimed_s=3600, prepared_s=600, releasing_s=900, host_lost_s=300, lease_s=24 * 3600)
DAY_S = 24 * 3600


def device(slice_id: UUID, *, opened: bool = False, error: str = "") -> ReportedSlice:
    return absent(slice_id, present=True, open=opened, error=error)


def kinds(world: World, slice_id: UUID) -> list[str]:
    page = world.events(size=1000)
    return [event.kind for event in page.items if event.object == str(slice_id)]


def pass_time(world: World, clock: Clock, seconds: float) -> None:
    """Passes time in which the API is alive."""
    world.run(lambda session, _: liveness.beat(session))
    clock.advance(seconds)

    def keep_alive(session: Any, _: object) -> None:
        session.get(Liveness, 1).at = clock.now

    world.run(keep_alive)


def sweep(world: World, limits: Deadlines = LIMITS) -> None:
    for job in (
        deadlines.unnamed_slices,
        deadlines.overdue_slices,
        deadlines.silent_hosts,
        deadlines.ended_leases,
    ):
        assert not world.run(lambda session, _, job=job: job(session, limits))


def place_of(found: Slice) -> tuple[str, str]:
    return found.state.value, found.state_reason


@pytest.fixture
def agent(world: World) -> Agent:
    return world.host("one")


@pytest.fixture
def claimed(world: World, agent: Agent) -> Slice:
    world.tenant("acme")
    return world.claim("acme", world.profile(), host=agent.name)


def test_a_vm_that_starts_and_stops_leaves_its_slice_claimed(
    world: World, agent: Agent, claimed: Slice, clock: Clock
) -> None:
    assert (claimed.state, claimed.state_since) == (SliceState.CLAIMED, claimed.created_at)
    seen = []
    for said in (
        absent(claimed.id),
        device(claimed.id),
        device(claimed.id, opened=True),
        device(claimed.id, opened=True),
        absent(claimed.id),
    ):
        clock.advance(10)
        agent.report(slices=[said], desired=agent.desired())
        found = world.slice(claimed.id)
        seen.append((found.state.value, found.state_since - claimed.created_at))
    assert seen == [
        ("claimed", timedelta(seconds=0)),
        ("prepared", timedelta(seconds=20)),
        ("attached", timedelta(seconds=30)),
        ("attached", timedelta(seconds=30)),
        ("claimed", timedelta(seconds=50)),
    ]
    assert kinds(world, claimed.id) == ["slice.claimed", "slice.prepared", "slice.attached", "slice.detached"]
    assert world.quota("acme").used_slices == 1
    assert world.slice(claimed.id).generation == claimed.generation


def test_absence_from_a_report_says_nothing(world: World, agent: Agent, claimed: Slice) -> None:
    agent.report(slices=[device(claimed.id, opened=True)])
    agent.report(slices=[])
    assert world.slice(claimed.id).state is SliceState.ATTACHED


def test_what_a_host_cannot_do_fails_the_slice_until_it_can(world: World, agent: Agent, claimed: Slice) -> None:
    agent.report(slices=[absent(claimed.id, error="no memory\nleft")])
    failed = world.slice(claimed.id)
    assert place_of(failed) == ("failed", "host.error")
    assert "no memory" in failed.state_detail
    assert failed.state_detail.isprintable()
    assert world.quota("acme").used_slices == 1
    agent.report(slices=[device(claimed.id, opened=True, error="its cap was refused")])
    attached = world.slice(claimed.id)
    assert (*place_of(attached), attached.state_detail) == ("attached", "", "its cap was refused")
    agent.report(slices=[absent(claimed.id)])
    assert place_of(world.slice(claimed.id)) == ("claimed", "")


@pytest.mark.parametrize("code", ["permit.expired", "permit.refused"])
def test_each_permit_that_was_in_vain_is_told_once(world: World, agent: Agent, claimed: Slice, code: str) -> None:
    for minute in (1, 1, 2, 2):
        agent.report(slices=[absent(claimed.id, error=f"at 12:0{minute}: {code}: why", error_code=code)])
        failed = world.slice(claimed.id)
        assert place_of(failed) == ("failed", code)
        assert failed.state_detail.startswith(f"at 12:0{minute}")
    failures = [one for one in world.events().items if one.kind == "slice.failed"]
    assert [one.detail for one in failures] == [
        {"reason": code, "detail": f"at 12:0{minute}: {code}: why"} for minute in (1, 2)
    ]


def test_a_code_that_the_api_does_not_know_is_an_error_of_the_host(world: World, agent: Agent, claimed: Slice) -> None:
    agent.report(slices=[absent(claimed.id, error="x", error_code="permit.\nother")])
    assert place_of(world.slice(claimed.id)) == ("failed", "host.error")


def test_states_are_found_by_what_clients_see(world: World, agent: Agent, claimed: Slice) -> None:
    other = world.claim("acme", world.profile(), host=agent.name)
    agent.report(slices=[device(claimed.id)])

    def found(state: SliceState) -> list[UUID]:
        return [one.id for one in world.run(claims.list_slices, PageRequest(), state=state).items]

    assert found(SliceState.PREPARED) == [claimed.id]
    assert found(SliceState.CLAIMED) == [other.id]
    world.delete(other.id)
    assert found(SliceState.RELEASING) == [other.id]
    assert found(SliceState.CLAIMED) == []


def test_another_hosts_word_moves_nothing(world: World, agent: Agent, claimed: Slice) -> None:
    world.host("two").report(slices=[device(claimed.id, opened=True)])
    assert world.slice(claimed.id).state is SliceState.CLAIMED


# ---- deadlines


@pytest.mark.parametrize("named", [False, True])
def test_a_claim_that_no_vm_uses_fails_after_its_time_and_counts_on(
    world: World, agent: Agent, claimed: Slice, clock: Clock, named: bool
) -> None:
    if named:
        agent.report(slices=[absent(claimed.id)])
    pass_time(world, clock, LIMITS.claimed_s - 1)
    agent.report(slices=[absent(claimed.id)] if named else [])
    sweep(world)
    assert world.slice(claimed.id).state is SliceState.CLAIMED
    pass_time(world, clock, 1)
    for _ in range(2):
        sweep(world)
    assert place_of(world.slice(claimed.id)) == ("failed", "deadline.claimed")
    assert kinds(world, claimed.id) == ["slice.claimed", "slice.failed"]
    assert world.quota("acme").used_slices == 1
    assert world.gpus()[0].used_share_permille == claimed.share_permille
    assert [one.id for one in agent.desired().slices] == [claimed.id]
    # A device that stays absent is no news; a VM that starts is.
    agent.report(slices=[absent(claimed.id)])
    assert world.slice(claimed.id).state is SliceState.FAILED
    agent.report(slices=[device(claimed.id, opened=True)])
    assert place_of(world.slice(claimed.id)) == ("attached", "")


def test_a_stopped_vm_has_all_the_time_there_is(world: World, agent: Agent, claimed: Slice, clock: Clock) -> None:
    agent.report(slices=[device(claimed.id, opened=True)])
    agent.report(slices=[absent(claimed.id)])
    pass_time(world, clock, 30 * DAY_S)
    agent.report(slices=[absent(claimed.id)])
    sweep(world)
    assert world.slice(claimed.id).state is SliceState.CLAIMED


def test_a_device_that_no_vm_opens_fails_its_slice(world: World, agent: Agent, claimed: Slice, clock: Clock) -> None:
    agent.report(slices=[device(claimed.id)])
    pass_time(world, clock, LIMITS.prepared_s)
    agent.report(slices=[device(claimed.id)])
    sweep(world)
    assert place_of(world.slice(claimed.id)) == ("failed", "deadline.prepared")
    agent.report(slices=[device(claimed.id)])
    assert place_of(world.slice(claimed.id)) == ("failed", "deadline.prepared")
    agent.report(slices=[absent(claimed.id)])
    assert place_of(world.slice(claimed.id)) == ("claimed", "")


@pytest.mark.parametrize(
    ("said", "why"), [(None, "not confirmed"), ("present", "has the device"), ("open", "a VM has it open")]
)
def test_a_deletion_that_is_not_confirmed_in_time_is_orphaned_and_gives_nothing_back(
    world: World, agent: Agent, claimed: Slice, clock: Clock, said: str | None, why: str
) -> None:
    if said:
        agent.report(slices=[device(claimed.id, opened=said == "open")])
    world.delete(claimed.id)
    pass_time(world, clock, LIMITS.releasing_s)
    agent.report()
    sweep(world)
    orphaned = world.slice(claimed.id)
    assert place_of(orphaned) == ("orphaned", "deadline.releasing")
    assert why in orphaned.state_detail
    assert world.quota("acme").used_slices == 1
    assert world.delete(claimed.id).state is SliceState.ORPHANED
    assert [one.id for one in agent.desired().tombstones] == [claimed.id]
    agent.confirm_gone(claimed.id)
    assert world.quota("acme").used_slices == 0
    assert kinds(world, claimed.id)[-2:] == ["slice.orphaned", "slice.released"]


def test_a_host_has_its_whole_time_after_an_api_that_was_dead(world: World, agent: Agent, clock: Clock) -> None:
    pass_time(world, clock, 60)
    clock.advance(DAY_S)
    world.run(lambda session, _: liveness.beat(session))
    pass_time(world, clock, LIMITS.host_lost_s - 1)
    sweep(world)
    assert "host.lost" not in host_kinds(world, "one")
    pass_time(world, clock, 1)
    sweep(world)
    assert "host.lost" in host_kinds(world, "one")


def test_an_api_that_was_dead_for_a_day_blames_nobody(world: World, agent: Agent, claimed: Slice, clock: Clock) -> None:
    """Everything stood still for a day. Afterwards hosts report at their own pace, and only from then on does time
    count.
    """
    prepared, deleted = (world.claim("acme", world.profile(), host="one") for _ in range(2))
    agent.report(slices=[device(prepared.id)])
    world.delete(deleted.id)
    pass_time(world, clock, 60)
    clock.advance(DAY_S + 1)
    world.run(lambda session, _: liveness.beat(session))
    before = [world.slice(one.id).state for one in (claimed, prepared, deleted)]
    sweep(world)
    assert [world.slice(one.id).state for one in (claimed, prepared, deleted)] == before
    assert "host.lost" not in host_kinds(world, "one")
    agent.report()
    pass_time(world, clock, LIMITS.claimed_s)
    agent.report()
    sweep(world)
    after = [world.slice(one.id) for one in (claimed, prepared, deleted)]
    assert [place_of(one) for one in after] == [
        ("failed", "deadline.claimed"),
        ("failed", "deadline.prepared"),
        ("orphaned", "deadline.releasing"),
    ]
    assert world.quota("acme").used_slices == 3


def host_kinds(world: World, name: str) -> list[str]:
    page = world.events(size=1000)
    return [event.kind for event in page.items if event.object == name]


def test_without_a_beat_no_deadline_passes(world: World, agent: Agent, claimed: Slice, clock: Clock) -> None:
    clock.advance(10 * DAY_S)
    sweep(world)
    assert world.slice(claimed.id).state is SliceState.CLAIMED
    assert world.run(lambda session, _: liveness.alive_for(session)) == timedelta(0)


def test_a_gap_of_the_api_is_seen_and_a_short_one_is_not(world: World, clock: Clock) -> None:
    def beat() -> timedelta:
        world.run(lambda session, _: liveness.beat(session))
        alive: timedelta = world.run(lambda session, _: liveness.alive_for(session))
        return alive

    found = []
    for seconds in (0, 10, 60, 60, 61, 10, -30, 10):
        clock.advance(seconds)
        found.append(beat().total_seconds())
    # A replica whose clock is behind has no effect.
    assert found == [0, 10, 70, 130, 0, 10, -20, -10]


# ---- silent hosts


def test_a_silent_host_is_lost_and_its_slices_are_orphaned_when_their_lease_ends(
    world: World, agent: Agent, claimed: Slice, clock: Clock
) -> None:
    agent.report(slices=[device(claimed.id, opened=True)])
    pass_time(world, clock, LIMITS.host_lost_s)
    sweep(world)
    assert host_kinds(world, "one")[-1] == "host.lost"
    assert world.slice(claimed.id).state is SliceState.ATTACHED
    pass_time(world, clock, LIMITS.lease_s - LIMITS.host_lost_s - 1)
    sweep(world)
    assert world.slice(claimed.id).state is SliceState.ATTACHED
    pass_time(world, clock, 1)
    for _ in range(2):
        sweep(world)
    assert place_of(world.slice(claimed.id)) == ("orphaned", "lease.ended")
    assert kinds(world, claimed.id).count("slice.orphaned") == 1
    assert world.quota("acme").used_slices == 1
    assert world.gpus()[0].used_share_permille == claimed.share_permille
    agent.report(slices=[device(claimed.id, opened=True)])
    assert world.slice(claimed.id).state is SliceState.ATTACHED
    assert host_kinds(world, "one")[-1] == "host.returned"


@pytest.mark.parametrize("how", ["maintained", "fenced", "re-enrolled"])
def test_nobody_is_told_that_a_host_is_lost_of_which_nothing_is_expected(
    world: World, agent: Agent, clock: Clock, how: str
) -> None:
    generation = world.run(hosts.get_host, agent.name).generation
    if how == "maintained":
        world.run(cordoning.maintain_host, agent.name, if_match=generation)
    elif how == "fenced":
        world.run(fencing.fence_host, agent.name, HostFence(confirm=agent.name, force=True), if_match=generation)
    else:
        world.run(hosts.reenroll, agent.name)
    pass_time(world, clock, LIMITS.host_lost_s)
    sweep(world)
    assert "host.lost" not in host_kinds(world, agent.name)
    assert world.run(hosts.get_host, agent.name).lost_at is None


@pytest.mark.parametrize("how", ["maintained", "to enrol", "enrolled"])
def test_the_lease_of_a_host_ends_of_which_nothing_is_expected(
    world: World, agent: Agent, claimed: Slice, clock: Clock, how: str
) -> None:
    agent.report(slices=[absent(claimed.id)], desired=agent.desired())
    if how == "maintained":
        generation = world.run(hosts.get_host, agent.name).generation
        world.run(cordoning.maintain_host, agent.name, if_match=generation)
    else:
        token = world.run(hosts.reenroll, agent.name).enroll_token
    if how == "enrolled":
        agent = world.enrolled(agent.name, token)
    limits = Deadlines(claimed_s=2 * DAY_S, host_lost_s=LIMITS.host_lost_s, lease_s=LIMITS.lease_s)
    clock.advance(LIMITS.lease_s)
    pass_time(world, clock, LIMITS.host_lost_s - 1)
    sweep(world, limits)
    assert world.slice(claimed.id).state is SliceState.CLAIMED
    pass_time(world, clock, 1)
    for _ in range(2):
        sweep(world, limits)
    assert place_of(world.slice(claimed.id)) == ("orphaned", "lease.ended")
    assert kinds(world, claimed.id).count("slice.orphaned") == 1
    assert "host.lost" not in host_kinds(world, agent.name)
    if how == "to enrol":
        agent = world.enrolled(agent.name, token)
    agent.report(slices=[absent(claimed.id)])
    sweep(world, limits)
    assert world.slice(claimed.id).state is SliceState.CLAIMED


@pytest.mark.parametrize("how", ["maintained", "enrolled"])
def test_a_lease_lasts_from_when_its_host_was_last_heard(
    world: World, agent: Agent, claimed: Slice, clock: Clock, how: str
) -> None:
    limits = Deadlines(claimed_s=2 * DAY_S, host_lost_s=LIMITS.host_lost_s, lease_s=LIMITS.lease_s)
    pass_time(world, clock, LIMITS.host_lost_s)
    if how == "maintained":
        generation = world.run(hosts.get_host, agent.name).generation
        world.run(cordoning.maintain_host, agent.name, if_match=generation)
        agent.report()
    else:
        world.enrolled(agent.name, world.run(hosts.reenroll, agent.name).enroll_token)
    pass_time(world, clock, LIMITS.lease_s - 1)
    sweep(world, limits)
    assert world.slice(claimed.id).state is SliceState.CLAIMED


def test_a_heartbeat_of_a_lost_host_asks_for_a_report_that_brings_all_back(
    world: World, agent: Agent, claimed: Slice, clock: Clock
) -> None:
    agent.report(desired=agent.desired(), slices=[device(claimed.id, opened=True)])
    beat = Heartbeat(boot_id=agent.boot_id, agent_epoch=agent.agent_epoch, seq=agent.seq)

    def heard() -> bool:
        source = heartbeats.source_of(agent.actor, agent.host_id)
        return source in world.database.run(lambda session: heartbeats.note(session, {source: beat}))

    assert heard()
    pass_time(world, clock, DAY_S + 300)
    sweep(world)
    assert world.slice(claimed.id).state is SliceState.ORPHANED
    assert not heard()
    assert world.run(hosts.get_host, agent.name).state is HostState.LOST
    agent.report(desired=agent.desired(), slices=[device(claimed.id, opened=True)])
    assert world.slice(claimed.id).state is SliceState.ATTACHED
    assert world.run(hosts.get_host, agent.name).state is HostState.READY


def test_an_orphan_can_be_deleted_and_a_lost_host_be_fenced(
    world: World, agent: Agent, claimed: Slice, clock: Clock
) -> None:
    agent.report(slices=[device(claimed.id, opened=True)])
    pass_time(world, clock, LIMITS.lease_s)
    sweep(world)
    sweep(world)
    assert world.slice(claimed.id).state is SliceState.ORPHANED
    assert world.delete(claimed.id).state is SliceState.RELEASING
    generation = world.run(hosts.get_host, "one").generation
    world.run(fencing.fence_host, "one", HostFence(confirm="one"), if_match=generation)
    assert world.slice(claimed.id).state is SliceState.LOST
    assert world.quota("acme").used_slices == 0
    sweep(world)
    assert world.slice(claimed.id).state is SliceState.LOST


# ---- the parts


@pytest.mark.parametrize(
    ("before", "said", "after"),
    [
        (None, {}, Place(SliceState.CLAIMED, timed=True)),
        (Place(SliceState.CLAIMED), {}, Place(SliceState.CLAIMED)),
        (Place(SliceState.ORPHANED, reason="lease.ended", detail="x"), {}, Place(SliceState.CLAIMED)),
        (Place(SliceState.FAILED, reason="host.error", detail="x"), {}, Place(SliceState.CLAIMED)),
        (None, {"present": True}, Place(SliceState.PREPARED, timed=True)),
        (Place(SliceState.ATTACHED), {"present": True}, Place(SliceState.PREPARED, timed=True)),
        (None, {"present": True, "open": True}, Place(SliceState.ATTACHED)),
        (None, {"present": True, "error": "e"}, Place(SliceState.FAILED, reason="host.error", detail="e")),
        (None, {"open": True}, Place(SliceState.CLAIMED, timed=True)),
    ],
)
def test_what_is_heard_decides(before: Place | None, said: dict[str, Any], after: Place) -> None:
    assert heard(before, absent(UUID(int=1), **said)) == after


def test_a_slice_without_a_row_is_as_its_claim_says(world: World, agent: Agent, claimed: Slice) -> None:
    """After an upgrade, or for a claim that no host has reported yet, there is no row."""
    rows = lambda session, _: session.scalar(select(func.count()).select_from(SliceProgress))  # noqa: E731
    assert world.run(rows) == 0
    world.delete(claimed.id)

    def forget(session: Any, _: object) -> None:
        session.delete(session.get(SliceProgress, claimed.id))

    world.run(forget)
    assert world.slice(claimed.id).state is SliceState.RELEASING
    agent.confirm_gone(claimed.id)
    assert world.run(rows) == 0


def test_the_row_goes_with_the_slice(world: World, agent: Agent, claimed: Slice) -> None:
    agent.report(slices=[device(claimed.id)])
    world.delete(claimed.id)
    agent.confirm_gone(claimed.id)
    assert world.run(lambda session, _: session.scalars(select(SliceProgress)).all()) == []
    assert world.run(lambda session, _: session.scalars(select(models.Slice)).all()) == []


def test_a_host_that_speaks_while_a_slice_is_deleted_does_not_undo_that(
    world: World, agent: Agent, claimed: Slice
) -> None:
    """The report was read before the deletion was committed, and is applied after it."""
    before = world.run(lambda session, _: progress.standings(session, agent.host_id))
    world.delete(claimed.id)
    said = [device(claimed.id, opened=True)]
    world.run(lambda session, actor: progress.follow(session, actor, before, said))
    assert world.slice(claimed.id).state is SliceState.RELEASING
