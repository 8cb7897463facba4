# SPDX-License-Identifier: Apache-2.0
"""Moving a slice of a stopped VM: one charge, and never two hosts that may start the VM."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from vgpumgr_api.claims import moves
from vgpumgr_api.fleet import agents, fencing, hosts

from tests.api.concurrency.audit import Audit
from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import Agent, World, absent, gpu
from vgpumgr.wire.fleet import Bind
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostFence, Profile, Slice, SliceMove, SliceState, Tie

DEAD_S = 91
VM = uuid4()


@pytest.fixture
def half(world: World) -> Profile:
    """A profile of which the tenant may have only one slice."""
    world.tenant("acme")
    world.tenant("web", account="acme", share_permille=500, slices=1)
    return world.profile(share=500)


@pytest.fixture
def one(world: World, half: Profile) -> Agent:
    assert half.name
    return world.host("one")


@pytest.fixture
def claimed(world: World, half: Profile, one: Agent) -> Slice:
    return world.claim("web", half, host=one.name, vm_uuid=VM)


@pytest.fixture
def two(world: World, claimed: Slice) -> Agent:
    assert claimed.host == "one"
    return world.host("two")


def move(world: World, slice_id: UUID, host: str = "two", source_off: str | None = None, **options: Any) -> Slice:
    moved: Slice = world.run(moves.move_slice, slice_id, SliceMove(host=host, source_off=source_off), **options)
    return moved


def abort(world: World, slice_id: UUID, **options: Any) -> Slice:
    kept: Slice = world.run(moves.abort_move, slice_id, **options)
    return kept


def named(agent: Agent) -> set[UUID]:
    """Returns the slices with which VMs may start."""
    return {each.id for each in agent.desired().slices}


def dead(agent: Agent) -> set[UUID]:
    return {each.id for each in agent.desired().tombstones}


def kinds(world: World, slice_id: UUID) -> list[str]:
    return [each.kind for each in world.events(size=1000).items if each.object == str(slice_id)]


def whole(url: str) -> bool:
    assert Audit(url).violations() == []
    return True


def used(world: World, tenant: str = "web") -> tuple[int, int]:
    quota = world.quota(tenant)
    return quota.used_share_permille, quota.used_slices


def test_a_stopped_vm_goes_to_another_host_for_one_charge(
    world: World, one: Agent, two: Agent, claimed: Slice, url: str
) -> None:
    new = move(world, claimed.id)
    assert (new.host, new.vm_uuid, new.moved_from, new.profile) == ("two", VM, claimed.id, claimed.profile)
    assert (new.state, new.state_reason) == (SliceState.CLAIMED, "slice.moving")
    assert "one" in new.state_detail
    old = world.slice(claimed.id)
    assert (old.state, old.state_reason) == (SliceState.LOST, "slice.moved")
    assert str(new.id) in old.state_detail
    assert used(world) == used(world, "acme") == (500, 1)
    assert (named(one), dead(one)) == (set(), {claimed.id})
    assert [(each.id, each.slice_id, each.host) for each in one.desired().moved] == [(claimed.id, new.id, "two")]
    assert (named(two), dead(two)) == (set(), set())
    assert [(each.id, each.from_host) for each in two.desired().arriving] == [(new.id, "one")]
    with refused(Code.SLICE_MOVING):
        world.run(agents.bind, "two", new.id, Bind(vm_uuid=VM), actor=two.actor)
    assert whole(url)

    before = two.desired().generation
    assert one.confirm_gone(claimed.id)
    assert two.desired().generation > before
    assert named(two) == {new.id}
    assert two.desired().arriving == []
    assert (world.slice(new.id).state, world.slice(new.id).state_reason) == (SliceState.CLAIMED, "")
    assert [each.id for each in one.desired().moved] == [claimed.id]
    with refused(Code.OBJECT_UNKNOWN):
        world.slice(claimed.id)
    assert used(world) == (500, 1)
    assert kinds(world, claimed.id) == ["slice.claimed", "slice.moved", "slice.released"]
    assert kinds(world, new.id) == ["slice.claimed", "slice.arrived"]
    assert whole(url)


def test_a_quota_that_is_used_up_or_cut_does_not_keep_a_vm_from_moving(
    world: World, two: Agent, claimed: Slice
) -> None:
    world.quota("web", slices=0, share_permille=0)
    assert move(world, claimed.id).host == two.name
    assert used(world) == (500, 1)


def test_the_host_that_is_left_may_have_started_the_vm_meanwhile(
    world: World, one: Agent, two: Agent, claimed: Slice
) -> None:
    new = move(world, claimed.id)
    opened = absent(claimed.id, present=True, open=True, vm_uuid=VM)
    one.report(desired=one.desired(), slices=[opened])
    assert named(two) == set()
    one.report(desired=one.desired(), slices=[absent(claimed.id, startable=True)])
    assert named(two) == set()
    assert one.confirm_gone(claimed.id)
    assert named(two) == {new.id}


def test_a_vm_that_runs_is_not_moved(world: World, one: Agent, two: Agent, claimed: Slice, url: str) -> None:
    assert two.name
    one.report(slices=[absent(claimed.id, present=True, open=True, vm_uuid=VM)])
    with refused(Code.OBJECT_IN_USE):
        move(world, claimed.id)
    assert world.slice(claimed.id).state is SliceState.ATTACHED
    assert whole(url)


def test_an_operator_says_that_a_dead_host_is_off(
    world: World, clock: Clock, one: Agent, two: Agent, claimed: Slice, url: str
) -> None:
    one.report(slices=[absent(claimed.id, present=True, open=True, vm_uuid=VM)])
    with refused(Code.HOST_ONLINE):
        move(world, claimed.id, source_off="one")
    clock.advance(DEAD_S)
    two.report()
    with refused(Code.FIELD_INVALID):
        move(world, claimed.id, source_off="two")
    with refused(Code.PERMISSION_DENIED):
        move(world, claimed.id, source_off="one", actor=world.tenant_actor("web"))
    new = move(world, claimed.id, source_off="one")
    assert named(two) == {new.id}
    assert new.state_reason == ""
    assert whole(url)
    # The host comes back: it learns that its copy of the claim is over, and confirms.
    assert (named(one), dead(one)) == (set(), {claimed.id})
    assert [each.slice_id for each in one.desired().moved] == [new.id]
    assert one.confirm_gone(claimed.id)
    assert named(two) == {new.id}
    assert used(world) == (500, 1)
    assert whole(url)


def test_the_word_may_come_later(world: World, clock: Clock, one: Agent, two: Agent, claimed: Slice, url: str) -> None:
    new = move(world, claimed.id)
    clock.advance(DEAD_S)
    two.report()
    assert move(world, claimed.id) == world.slice(new.id)
    assert named(two) == set()
    with refused(Code.FIELD_INVALID):
        move(world, claimed.id, source_off="two")
    assert move(world, claimed.id, source_off=one.name).id == new.id
    assert named(two) == {new.id}
    assert move(world, claimed.id, source_off=one.name).id == new.id
    assert kinds(world, new.id) == ["slice.claimed", "slice.arrived"]
    assert whole(url)


def test_a_fence_is_such_a_word(world: World, clock: Clock, one: Agent, two: Agent, claimed: Slice, url: str) -> None:
    new = move(world, claimed.id)
    clock.advance(DEAD_S)
    two.report()
    before = two.desired().generation
    generation = world.run(hosts.get_host, one.name).generation
    world.run(fencing.fence_host, one.name, HostFence(confirm=one.name), if_match=generation)
    assert two.desired().generation > before
    assert named(two) == {new.id}
    assert used(world) == (500, 1)
    with refused(Code.SLICE_MOVED):
        abort(world, new.id)
    assert whole(url)


def test_a_move_is_aborted(world: World, one: Agent, two: Agent, claimed: Slice, url: str) -> None:
    new = move(world, claimed.id)
    document = one.desired()
    kept = abort(world, new.id)
    assert (kept.id, kept.state, kept.host) == (claimed.id, SliceState.CLAIMED, "one")
    assert (named(one), dead(one), one.desired().moved) == ({claimed.id}, set(), [])
    assert (named(two), dead(two), two.desired().arriving) == (set(), {new.id}, [])
    assert used(world) == (500, 1)
    assert whole(url)
    # A report about the document before ends nothing.
    one.report(desired=document, slices=[absent(claimed.id)])
    assert world.slice(claimed.id).state is SliceState.CLAIMED
    with refused(Code.SLICE_MOVED):
        abort(world, new.id)
    assert two.confirm_gone(new.id)
    again = move(world, claimed.id)
    assert again.id != new.id
    assert one.confirm_gone(claimed.id)
    assert named(two) == {again.id}
    assert used(world) == (500, 1)
    assert whole(url)


def test_a_move_that_is_over_is_not_aborted(world: World, one: Agent, two: Agent, claimed: Slice) -> None:
    new = move(world, claimed.id)
    assert one.confirm_gone(claimed.id)
    with refused(Code.SLICE_MOVED):
        abort(world, new.id)
    with refused(Code.SLICE_MOVED):
        abort(world, world.claim("acme", world.profile(share=100), host=two.name).id)
    assert named(two) >= {new.id}


def test_moved_twice(world: World, one: Agent, two: Agent, claimed: Slice, url: str) -> None:
    three = world.host("three")
    new = move(world, claimed.id)
    assert move(world, claimed.id).id == new.id
    with refused(Code.SLICE_MOVED):
        move(world, claimed.id, "three")
    with refused(Code.SLICE_MOVING):
        move(world, new.id, "three")
    assert one.confirm_gone(claimed.id)
    assert move(world, claimed.id).id == new.id
    last = move(world, new.id, "three")
    assert (named(two), named(three)) == (set(), set())
    assert two.confirm_gone(new.id)
    assert named(three) == {last.id}
    assert used(world) == (500, 1)
    assert whole(url)


def test_deleted_during_the_move(world: World, one: Agent, two: Agent, claimed: Slice, url: str) -> None:
    new = move(world, claimed.id)
    assert world.delete(claimed.id).state is SliceState.LOST
    assert world.delete(new.id).state is SliceState.RELEASING
    with refused(Code.SLICE_MOVED):
        abort(world, new.id)
    assert one.confirm_gone(claimed.id)
    assert named(two) == set()
    assert two.confirm_gone(new.id)
    assert used(world) == (0, 0)
    assert whole(url)


def test_the_new_host_dies(world: World, clock: Clock, one: Agent, two: Agent, claimed: Slice, url: str) -> None:
    new = move(world, claimed.id)
    clock.advance(DEAD_S)
    one.report()
    assert abort(world, new.id).id == claimed.id
    assert named(one) == {claimed.id}
    generation = world.run(hosts.get_host, two.name).generation
    world.run(fencing.fence_host, two.name, HostFence(confirm=two.name), if_match=generation)
    assert used(world) == (500, 1)
    assert whole(url)


def test_the_new_host_dies_after_it_was_started_there(
    world: World, clock: Clock, one: Agent, two: Agent, claimed: Slice, url: str
) -> None:
    new = move(world, claimed.id)
    assert one.confirm_gone(claimed.id)
    two.report(slices=[absent(new.id, present=True, open=True, vm_uuid=VM)])
    clock.advance(DEAD_S)
    one.report()
    back = move(world, new.id, "one", source_off="two")
    assert named(one) == {back.id}
    assert used(world) == (500, 1)
    assert whole(url)


def test_where_nothing_is_left_nothing_is_moved(world: World, one: Agent, two: Agent, claimed: Slice) -> None:
    world.claim("acme", world.profile(share=600), host=two.name)
    with refused(Code.CAPACITY_NONE):
        move(world, claimed.id)
    with refused(Code.OBJECT_UNKNOWN):
        move(world, claimed.id, "nowhere")
    with refused(Code.FIELD_INVALID):
        move(world, claimed.id, "one")
    with refused(Code.OBJECT_UNKNOWN):
        move(world, uuid4())
    with refused(Code.GENERATION_STALE):
        move(world, claimed.id, if_match=claimed.generation + 1)
    assert named(one) == {claimed.id}
    assert used(world) == (500, 1)


def test_what_was_given_up_is_not_moved(world: World, two: Agent, claimed: Slice) -> None:
    assert two.name
    world.delete(claimed.id)
    with refused(Code.SLICE_RELEASING):
        move(world, claimed.id)


def test_a_tenant_moves_its_own_slices_only(world: World, two: Agent, claimed: Slice) -> None:
    world.tenant("blue")
    with refused(Code.OBJECT_UNKNOWN):
        move(world, claimed.id, actor=world.tenant_actor("blue"))
    new = move(world, claimed.id, actor=world.tenant_actor("web"))
    assert new.host == two.name
    with refused(Code.OBJECT_UNKNOWN):
        abort(world, new.id, actor=world.tenant_actor("blue"))
    with refused(Code.OBJECT_UNKNOWN):
        move(world, claimed.id, actor=world.tenant_actor("blue"))
    assert abort(world, new.id, actor=world.tenant_actor("web")).id == claimed.id


def test_ties_go_along(world: World, url: str) -> None:
    world.tenant("acme")
    profile = world.profile(share=100)
    world.host("one")
    alone = world.claim("acme", profile, affinity=Tie(key="a"), anti_affinity=Tie(key="b"))
    world.host("two", inventory=[gpu()])
    new = move(world, alone.id)
    assert (new.affinity, new.anti_affinity) == (alone.affinity, alone.anti_affinity)
    assert whole(url)


def test_a_life_ends_and_another_begins(world: World, one: Agent, two: Agent, claimed: Slice) -> None:
    """One claim at a time is billed."""
    from sqlalchemy import select
    from vgpumgr_api.db.ledger import Grant

    def billed(session: Any, _: object) -> list[tuple[UUID, str]]:
        rows = session.execute(select(Grant.slice_id, Grant.host).where(Grant.deleted_at.is_(None)))
        return [(row[0], row[1]) for row in rows]

    new = move(world, claimed.id)
    assert world.run(billed) == [(new.id, two.name)]
    abort(world, new.id)
    assert world.run(billed) == [(claimed.id, one.name)]
