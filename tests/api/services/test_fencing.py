# SPDX-License-Identifier: Apache-2.0
"""A host that died for good: its claims end without its report, and nothing is granted twice if it comes back."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select, update
from vgpumgr_api.actors import authenticate
from vgpumgr_api.auth import tokens
from vgpumgr_api.claims import profiles
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.statements import change
from vgpumgr_api.fleet import agents, fencing, hosts
from vgpumgr_api.installation import installation
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.tenancy import scaling, tenants

from tests.api.concurrency.audit import Audit
from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import ADDRESS, Agent, World, absent, gpu
from vgpumgr.wire.fleet import Bind
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Host, HostCreate, HostFence, HostPatch, HostState, Profile, Slice, SliceState

DEAD_S = 91
"""The time for which a host must have been silent."""


@pytest.fixture
def half(world: World) -> Profile:
    """A profile of which two fill a GPU."""
    world.tenant("acme")
    world.tenant("web", account="acme", share_permille=1000)
    return world.profile(share=500)


def fence(world: World, name: str, *, confirm: str | None = None, force: bool = False, **options: Any) -> Host:
    """Fences the host at its present generation unless another is given."""
    options.setdefault("if_match", world.run(hosts.get_host, name).generation)
    fenced: Host = world.run(fencing.fence_host, name, HostFence(confirm=confirm or name, force=force), **options)
    return fenced


def back(world: World, old: Agent) -> Agent:
    """Enrols the same machine again."""
    return world.enrolled(old.name, world.run(hosts.reenroll, old.name).enroll_token)


def kinds(world: World) -> list[tuple[str, str]]:
    return [(one.kind, one.object) for one in world.events(size=1000).items]


def whole(url: str) -> bool:
    assert Audit(url).violations() == []
    return True


def used(world: World, tenant: str = "web") -> tuple[int, int, int]:
    quota = world.quota(tenant)
    return quota.used_share_permille, quota.used_mem_bytes, quota.used_slices


def test_a_dead_host_gives_its_claims_up_and_their_owner_claims_elsewhere(
    world: World, clock: Clock, half: Profile, url: str
) -> None:
    world.host("one")
    vm = uuid4()
    claims = [world.claim("web", half, vm_uuid=vm), world.claim("web", half)]
    world.delete(claims[1].id)
    clock.advance(DEAD_S)
    spare = world.host("two")
    with refused(Code.QUOTA_EXCEEDED):
        world.claim("web", half, vm_uuid=vm)

    fenced = fence(world, "one")

    assert (fenced.fenced_at, fenced.enrolled, fenced.online) == (clock.now, False, False)
    assert [world.slice(one.id).state for one in claims] == [SliceState.LOST] * 2
    assert used(world) == used(world, "acme") == (0, 0, 0)
    again = world.claim("web", half, vm_uuid=vm)
    assert again.host == spare.name
    said = kinds(world)
    assert [("slice.lost", str(one.id)) in said for one in claims] == [True, True]
    assert said.count(("host.fenced", "one")) == 1
    assert whole(url)


def test_its_owner_is_told_what_was_lost(world: World, clock: Clock, half: Profile) -> None:
    world.host("one")
    lost = world.claim("web", half)
    clock.advance(DEAD_S)
    fence(world, "one")
    for tenant in ("web", "acme"):
        seen = world.events(actor=world.tenant_actor(tenant)).items
        assert ("slice.lost", str(lost.id)) in [(one.kind, one.object) for one in seen]
        assert not any(one.kind.startswith("host.") for one in seen)


def test_nothing_of_a_fenced_host_is_heard(world: World, clock: Clock, half: Profile) -> None:
    old = world.host("one")
    lost = world.claim("web", half)
    document, actor = old.desired(), old.actor
    waiting = world.run(hosts.create_host, HostCreate(name="two")).enroll_token
    clock.advance(DEAD_S)
    fence(world, "one")
    fence(world, "two")

    for told in (old.secret, waiting):
        with refused(Code.HOST_FENCED):
            world.database.run(partial(authenticate, secret=told))
    with refused(Code.HOST_FENCED):
        world.enrolled("two", waiting)
    # A request that was authenticated just before the fence is refused after it.
    with refused(Code.HOST_FENCED):
        world.run(agents.desired, "one", actor=actor)
    with refused(Code.HOST_FENCED):
        world.run(agents.desired_generation, "one", actor=actor)
    with refused(Code.HOST_FENCED):
        world.run(agents.bind, "one", lost.id, Bind(vm_uuid=uuid4()), actor=actor)
    with refused(Code.HOST_FENCED):
        old.report(desired=document, slices=[absent(lost.id)])
    assert world.run(tokens.list_tokens, PageRequest()).items == []
    assert world.slice(lost.id).state is SliceState.LOST


def test_a_credential_that_was_revoked_otherwise_is_not_called_fenced(world: World) -> None:
    old = world.host("one")
    actor = old.actor
    new = back(world, old)
    with refused(Code.AUTH_INVALID):
        old.report()
    with refused(Code.AUTH_INVALID):
        world.run(agents.desired, "one", actor=actor)
    assert new.report()


def waits_for_a_token(world: World, host: Agent) -> list[str]:
    return [host.secret, world.run(hosts.reenroll, host.name).enroll_token]


def had_two_tokens_made(world: World, host: Agent) -> list[str]:
    return [host.secret, *(world.run(hosts.reenroll, host.name).enroll_token for _ in range(2))]


def lost_its_token(world: World, host: Agent) -> list[str]:
    page = world.run(tokens.list_tokens, PageRequest())
    (token,) = [one.id for one in page.items if one.subject == host.name]
    world.run(tokens.delete_token, token)
    return [host.secret]


def enrolled_twice(world: World, host: Agent) -> list[str]:
    one_time = world.run(hosts.reenroll, host.name).enroll_token
    return [host.secret, one_time, world.enrolled(host.name, one_time).secret]


@pytest.mark.parametrize("before", [waits_for_a_token, had_two_tokens_made, lost_its_token, enrolled_twice])
def test_whatever_credential_a_machine_comes_back_with_it_is_told_of_the_fence(
    world: World, clock: Clock, before: Callable[[World, Agent], list[str]]
) -> None:
    known = before(world, world.host("one"))
    clock.advance(DEAD_S)
    fenced = fence(world, "one")
    for deleted in (False, True):
        if deleted:
            world.run(hosts.delete_host, "one", if_match=fenced.generation)
        for secret in known:
            with refused(Code.HOST_FENCED):
                world.database.run(partial(authenticate, secret=secret))
            with refused(Code.HOST_FENCED):
                world.enrolled("one", secret)
    assert world.host("one").report()


def test_a_fence_says_nothing_to_credentials_of_other_hosts_nor_to_later_ones(world: World, clock: Clock) -> None:
    old, other = world.host("one"), world.host("two")
    revoked = other.secret
    other = back(world, other)
    clock.advance(DEAD_S)
    fence(world, "one")
    new = back(world, old)
    last = back(world, new)
    assert last.report()
    assert other.report()
    for secret in (new.secret, revoked):
        with refused(Code.AUTH_INVALID):
            world.database.run(partial(authenticate, secret=secret))
    with refused(Code.HOST_FENCED):
        old.report()


def test_of_a_host_that_was_deleted_unfenced_nothing_is_known(world: World, database: Database) -> None:
    old = world.host("one")
    back(world, old)
    generation = world.run(hosts.get_host, "one").generation
    world.run(hosts.delete_host, "one", if_match=generation)
    with refused(Code.AUTH_INVALID):
        old.report()
    assert database.run(lambda session: session.scalars(select(records.FormerSecret)).all()) == []


@pytest.mark.parametrize("seen", ["reported", "enrolled"])
def test_a_host_that_lives_is_fenced_only_by_force(
    world: World, clock: Clock, half: Profile, url: str, seen: str
) -> None:
    agent = world.host("one")
    claimed = world.claim("web", half)
    if seen == "enrolled":
        clock.advance(DEAD_S)
        agent = back(world, agent)
    clock.advance(DEAD_S - 1)
    with refused(Code.HOST_ONLINE):
        fence(world, "one")
    assert world.slice(claimed.id).state is SliceState.CLAIMED
    assert agent.report()

    fenced = fence(world, "one", force=True)

    assert fenced.fenced_at is not None
    with refused(Code.HOST_FENCED):
        agent.report()
    assert whole(url)


def test_a_host_that_died_a_moment_later_is_fenced(world: World, clock: Clock) -> None:
    world.host("one")
    clock.advance(DEAD_S - 1)
    with refused(Code.HOST_ONLINE):
        fence(world, "one")
    clock.advance(1)
    assert fence(world, "one").fenced_at is not None


def test_a_slip_of_the_pen_fences_nothing(world: World, clock: Clock, half: Profile) -> None:
    agent = world.host("one")
    claimed = world.claim("web", half)
    clock.advance(DEAD_S)
    with refused(Code.FIELD_INVALID) as caught:
        fence(world, "one", confirm="two", force=True)
    assert caught.refusal is not None
    assert [reason.field for reason in caught.refusal.reasons] == ["$.confirm"]
    with refused(Code.GENERATION_REQUIRED):
        fence(world, "one", if_match=None)
    with refused(Code.GENERATION_STALE):
        fence(world, "one", if_match=7)
    with refused(Code.OBJECT_UNKNOWN):
        fence(world, "two", if_match=1)
    with refused(Code.PERMISSION_DENIED):
        fence(world, "one", actor=world.tenant_actor("acme"))
    assert world.slice(claimed.id).state is SliceState.CLAIMED
    assert agent.report()


def test_by_its_uuid_too_the_name_is_to_be_said(world: World, clock: Clock) -> None:
    agent = world.host("one")
    clock.advance(DEAD_S)
    assert fence(world, str(agent.host_id), confirm="one").name == "one"


def test_fencing_twice_is_the_same_as_once(world: World, clock: Clock, half: Profile) -> None:
    world.host("one")
    lost = world.claim("web", half)
    clock.advance(DEAD_S)
    once = fence(world, "one")
    before = kinds(world), world.slice(lost.id)
    clock.advance(1)
    assert fence(world, "one") == once
    assert (kinds(world), world.slice(lost.id)) == before


def test_a_token_made_since_is_void_after_another_fence(world: World, clock: Clock) -> None:
    world.host("one")
    clock.advance(DEAD_S)
    fence(world, "one")
    token = world.run(hosts.reenroll, "one").enroll_token
    assert world.run(hosts.get_host, "one").fenced_at is not None
    fence(world, "one")
    with refused(Code.HOST_FENCED):
        world.enrolled("one", token)


def test_a_fenced_host_takes_no_claims(world: World, clock: Clock, half: Profile, url: str) -> None:
    world.host("one")
    fence(world, "one", force=True)
    for host in (None, "one"):
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("web", half, host=host)
        assert caught.reasons == {"host.fenced": 1}
    # The host takes no claims while a new token waits either.
    world.run(hosts.reenroll, "one")
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("web", half)
    assert caught.reasons == {"host.fenced": 1}
    assert whole(url)


def test_a_host_that_comes_back_grants_lost_places_once_the_devices_are_gone(
    world: World, clock: Clock, half: Profile, url: str
) -> None:
    old = world.host("one")
    lost: list[Slice] = [world.claim("web", half) for _ in range(2)]
    world.delete(lost[1].id)
    stale = old.desired()
    clock.advance(DEAD_S)
    fence(world, "one")
    new = back(world, old)
    assert world.run(hosts.get_host, "one").fenced_at is None
    desired = new.desired()
    assert {one.id for one in desired.tombstones} == {one.id for one in lost}
    assert (desired.slices, desired.groups) == ([], [])

    # It reports what it found: both devices, as they were.
    assert new.report(desired=desired, slices=[absent(one.id, present=True) for one in lost])
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("web", half)
    assert caught.reasons == {"share.full": 1}
    # A document from before the fence does not order a removal.
    assert new.report(desired=stale, slices=[absent(lost[0].id)])
    assert world.slice(lost[0].id).state is SliceState.LOST
    assert new.report(desired=desired, slices=[absent(lost[0].id), absent(lost[1].id, present=True)])

    with refused(Code.OBJECT_UNKNOWN):
        world.slice(lost[0].id)
    claimed = world.claim("web", half)
    assert used(world) == (500, claimed.mem_bytes, 1)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", half)
    assert whole(url)

    new.confirm_gone(lost[1].id)
    world.claim("acme", half)
    assert [one.used_share_permille for one in world.gpus()] == [1000]
    assert whole(url)


def test_what_a_fenced_host_has_beside_its_claims_keeps_it_closed(world: World, clock: Clock, half: Profile) -> None:
    old = world.host("one")
    clock.advance(DEAD_S)
    fence(world, "one")
    new = back(world, old)
    assert new.report(slices=[absent(uuid4(), present=True)])
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("web", half)
    assert caught.reasons == {"gpu.unknown_slices": 1}


def test_it_comes_back_as_cordoned_as_it_was(world: World, clock: Clock, half: Profile) -> None:
    old = world.host("one")
    clock.advance(DEAD_S)
    fenced = fence(world, "one")
    patch = HostPatch(state=HostState.CORDONED)
    world.run(hosts.patch_host, "one", patch, if_match=fenced.generation)
    assert back(world, old).report()
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("web", half)
    assert caught.reasons == {"host.cordoned": 1}


def test_lost_twice_and_confirmed_once(world: World, clock: Clock, half: Profile, url: str) -> None:
    """The host dies again before it has removed the slice that it lost first."""
    old = world.host("one")
    first = world.claim("web", half)
    clock.advance(DEAD_S)
    fence(world, "one")
    new = back(world, old)
    assert new.report(desired=new.desired(), slices=[absent(first.id, present=True)])
    second = world.claim("web", half)
    clock.advance(DEAD_S)
    fence(world, "one")
    assert used(world) == (0, 0, 0)
    assert whole(url)
    last = back(world, new)
    last.confirm_gone(first.id, second.id)
    assert [one.used_share_permille for one in world.gpus()] == [0]
    assert whole(url)


def test_a_deletion_changes_nothing_about_a_lost_slice(world: World, clock: Clock, half: Profile) -> None:
    old = world.host("one")
    lost = world.claim("web", half)
    clock.advance(DEAD_S)
    fence(world, "one")
    before = world.slice(lost.id)
    assert world.delete(lost.id) == before
    new = back(world, old)
    with refused(Code.SLICE_RELEASING):
        world.run(agents.bind, "one", lost.id, Bind(vm_uuid=uuid4()), actor=new.actor)


def test_a_fenced_host_is_deleted_with_what_it_lost(world: World, clock: Clock, half: Profile, url: str) -> None:
    world.host("one")
    lost = world.claim("web", half)
    clock.advance(DEAD_S)
    host = world.run(hosts.get_host, "one")
    with refused(Code.OBJECT_IN_USE):
        world.run(hosts.delete_host, "one", if_match=host.generation)
    fenced = fence(world, "one")
    world.run(hosts.delete_host, "one", if_match=fenced.generation)
    with refused(Code.OBJECT_UNKNOWN):
        world.slice(lost.id)
    assert ("slice.released", str(lost.id)) in kinds(world)
    assert world.gpus() == []
    assert whole(url)


def test_a_host_that_came_back_is_not_deleted_with_what_it_lost(world: World, clock: Clock, half: Profile) -> None:
    old = world.host("one")
    lost = world.claim("web", half)
    clock.advance(DEAD_S)
    fence(world, "one")
    back(world, old)
    generation = world.run(hosts.get_host, "one").generation
    with refused(Code.OBJECT_IN_USE):
        world.run(hosts.delete_host, "one", if_match=generation)
    assert world.slice(lost.id).state is SliceState.LOST


def test_what_a_lost_slice_was_of_stays_and_says_what_to_do(world: World, clock: Clock, half: Profile) -> None:
    world.host("one")
    world.claim("web", half)
    clock.advance(DEAD_S)
    fenced = fence(world, "one")
    deletions = [
        partial(world.run, profiles.delete_profile, half.name, if_match=1),
        partial(world.run, tenants.delete_tenant, "web", if_match=None),
    ]
    for delete in deletions:
        with refused(Code.OBJECT_IN_USE) as caught:
            delete()
        assert caught.refusal is not None
        assert "lost ones until their host is re-enrolled or deleted" in caught.refusal.detail
    world.run(hosts.delete_host, "one", if_match=fenced.generation)
    for delete in deletions:
        delete()


def test_after_a_restore_lost_places_wait_for_the_epoch_too(world: World, clock: Clock, half: Profile) -> None:
    old = world.host("one")
    lost = world.claim("web", half)
    clock.advance(DEAD_S)
    fence(world, "one")
    world.run(installation.new_epoch)
    new = back(world, old)
    new.confirm_gone(lost.id)
    assert world.slice(lost.id).state is SliceState.LOST
    world.run(hosts.confirm_epoch, "one")
    new.confirm_gone(lost.id)
    assert [one.used_share_permille for one in world.gpus()] == [0]


def test_shares_elsewhere_follow_the_quota_that_is_back(world: World, clock: Clock, half: Profile) -> None:
    world.host("one")
    world.claim("web", half)
    clock.advance(DEAD_S)
    spare = world.host("two", inventory=[gpu(), gpu("0000:00:11.0")])
    kept = world.claim("web", half, host="two")
    world.quota("web", share_permille=500)
    scaled = spare.desired()
    assert {one.id: one.weight for one in scaled.slices} == {kept.id: 250}
    fence(world, "one")
    assert world.database.run(scaling.follow)
    desired = spare.desired()
    assert {one.id: one.weight for one in desired.slices} == {kept.id: 500}
    assert desired.generation > scaled.generation


def test_a_fenced_hosts_gpus_are_not_there(world: World, clock: Clock) -> None:
    old = world.host("one")
    clock.advance(DEAD_S)
    fence(world, "one")
    assert [one.present for one in world.gpus()] == [False]
    assert ("gpu.absent", f"one/{ADDRESS}") in kinds(world)
    assert back(world, old).report()
    assert [one.present for one in world.gpus()] == [True]


@pytest.mark.parametrize("state", [SliceState.CLAIMED, SliceState.RELEASING])
def test_what_a_fenced_host_should_not_have_another_fence_gives_up(
    world: World, clock: Clock, half: Profile, state: SliceState, url: str
) -> None:
    """Our code cannot reach this state; a database from an older release may be in it."""
    world.host("one")
    left = world.claim("web", half)
    if state is SliceState.RELEASING:
        world.delete(left.id)
    clock.advance(DEAD_S)
    world.database.run(lambda session: change(session, update(models.Host).values(fenced_at=clock.now)))
    assert "fenced host one has a slice that is not lost" in Audit(url).violations()
    generation = world.run(hosts.get_host, "one").generation
    with refused(Code.OBJECT_IN_USE) as caught:
        world.run(hosts.delete_host, "one", if_match=generation)
    assert "fence it" in str(caught.refusal)

    fenced = fence(world, "one")

    assert world.slice(left.id).state is SliceState.LOST
    assert used(world) == used(world, "acme") == (0, 0, 0)
    assert whole(url)
    world.run(hosts.delete_host, "one", if_match=fenced.generation)
    assert whole(url)
