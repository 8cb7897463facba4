# SPDX-License-Identifier: Apache-2.0
"""How a host gets its credential, and how a slice gets its VM."""

from uuid import UUID, uuid4

import pytest
from vgpumgr_api.actors import authenticate
from vgpumgr_api.fleet import agents, hosts
from vgpumgr_api.installation import installation

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import Agent, World, absent
from vgpumgr.wire.fleet import Bind
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostCreate, HostPatch, HostState, Slice


def bind(world: World, agent: Agent, slice_id: UUID, vm: UUID) -> Slice:
    bound: Slice = world.run(agents.bind, agent.name, slice_id, Bind(vm_uuid=vm), actor=agent.actor)
    return bound


def test_a_one_time_token_enrols_once(world: World) -> None:
    created = world.run(hosts.create_host, HostCreate(name="one"))
    assert (created.enrolled, created.online, created.epoch_confirmed) == (False, False, False)
    agent = world.enrolled("one", created.enroll_token)
    assert agent.host_id == created.id
    assert agent.desired().host_id == created.id
    assert agent.desired().epoch_confirmed
    with refused(Code.AUTH_INVALID):
        world.enrolled("one", created.enroll_token)
    assert world.run(hosts.get_host, "one").enrolled


def test_a_one_time_token_is_no_credential_and_ends_after_a_week(world: World, clock: Clock) -> None:
    created = world.run(hosts.create_host, HostCreate(name="one"))
    with refused(Code.AUTH_INVALID):
        world.database.run(lambda session: authenticate(session, created.enroll_token))
    clock.advance(7 * 86400)
    with refused(Code.AUTH_INVALID):
        world.enrolled("one", created.enroll_token)


def test_enrolling_anew_voids_the_old_credential_and_keeps_claims(world: World) -> None:
    old = world.host("one")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile())
    token = world.run(hosts.reenroll, "one").enroll_token
    with refused(Code.AUTH_INVALID):
        old.desired()
    waiting = world.run(hosts.get_host, "one")
    assert (waiting.enrolled, waiting.online) == (False, False)
    new = world.enrolled("one", token)
    assert world.run(hosts.get_host, "one").enrolled
    assert [one.id for one in new.desired().slices] == [claimed.id]


def test_a_new_host_takes_claims_once_it_has_said_what_it_has(world: World) -> None:
    """The machine may have been a host before its row was deleted, and may not see its devices at first."""
    world.tenant("acme")
    profile = world.profile()
    agent = world.enrolled("one", world.run(hosts.create_host, HostCreate(name="one")).enroll_token)
    assert agent.report()  # the agent's helper is down
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile)
    assert caught.reasons == {"gpu.unknown_slices": 1}
    assert agent.report(desired=agent.desired())
    world.claim("acme", profile)


@pytest.mark.parametrize("restored", [False, True])
def test_enrolling_anew_a_host_takes_claims_once_it_has_said_what_it_has(world: World, restored: bool) -> None:
    world.tenant("acme")
    profile = world.profile()
    unknown = absent(uuid4(), present=True)
    assert world.host("one").report(slices=[unknown])
    if restored:
        world.run(installation.new_epoch)
    agent = world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token)
    if restored:
        world.run(hosts.confirm_epoch, "one")
    assert agent.report()  # the agent's helper is down
    for _ in range(2):
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile)
        assert caught.reasons == {"gpu.unknown_slices": 1}
        assert agent.report(desired=agent.desired(), slices=[unknown])
    assert agent.report(desired=agent.desired())
    world.claim("acme", profile)


def test_a_host_that_enrolled_after_the_backup_waits_for_an_operators_word(world: World) -> None:
    """The restored database has only announced the host and lacks its later claims."""
    world.run(hosts.create_host, HostCreate(name="one"))
    itself = world.run(hosts.get_host, "one").id
    world.run(installation.new_epoch)
    agent = world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token, claims_of=itself)
    assert not agent.desired().epoch_confirmed
    world.run(hosts.confirm_epoch, "one")
    assert agent.desired().epoch_confirmed


def test_what_was_lost_is_unnamed_though_the_documents_number_is_the_same(world: World) -> None:
    """Commits and the credential were lost: only another number makes the agent read its document again."""
    agent = world.host("one")
    desired = agent.desired()
    lost = absent(uuid4(), startable=True)
    again = world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token, claims_of=agent.host_id)
    assert again.report(desired=desired, slices=[lost])
    assert again.desired().generation > desired.generation
    assert again.report(desired=desired, slices=[lost])
    assert again.desired().generation == desired.generation + 1


@pytest.mark.parametrize("before", [False, True])
def test_a_machine_with_claims_of_another_host_waits_for_an_operators_word(world: World, before: bool) -> None:
    world.tenant("acme")
    profile = world.profile()
    secret = world.run(hosts.create_host, HostCreate(name="one")).enroll_token
    if before:
        world.enrolled("one", secret)
        secret = world.run(hosts.reenroll, "one").enroll_token
    agent = world.enrolled("one", secret, claims_of=uuid4())
    assert agent.report()
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile)
    assert caught.reasons == {"host.unconfirmed": 1}
    world.run(hosts.confirm_epoch, "one")
    assert agent.report()
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile)
    assert caught.reasons == {"gpu.unknown_slices": 1}
    assert agent.report(desired=agent.desired())
    world.claim("acme", profile)
    again = world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token, claims_of=agent.host_id)
    assert again.desired().epoch_confirmed


def test_the_generation_to_wait_for_is_the_one_of_the_document(world: World) -> None:
    agent = world.host("one")
    world.tenant("acme")
    for _ in range(2):
        desired = agent.desired()
        assert world.run(agents.desired_generation, "one", actor=agent.actor) == (desired.epoch, desired.generation)
        assert world.run(agents.desired_generation, str(agent.host_id), actor=agent.actor)[1] == desired.generation
        world.claim("acme", world.profile())


def test_a_slice_is_bound_once(world: World) -> None:
    agent = world.host()
    world.tenant("acme")
    claimed = world.claim("acme", world.profile())
    before, vm = agent.desired(), uuid4()

    bound = bind(world, agent, claimed.id, vm)

    assert bound.vm_uuid == vm
    assert bound.generation > claimed.generation
    after = agent.desired()
    assert after.generation > before.generation
    assert [one.vm_uuid for one in after.slices] == [vm]
    assert bind(world, agent, claimed.id, vm) == bound
    assert agent.desired() == after
    with refused(Code.SLICE_BOUND):
        bind(world, agent, claimed.id, uuid4())
    assert world.slice(claimed.id).vm_uuid == vm


def test_a_claim_for_a_vm_binds_to_no_other(world: World) -> None:
    agent = world.host()
    world.tenant("acme")
    vm = uuid4()
    claimed = world.claim("acme", world.profile(), vm_uuid=vm)
    with refused(Code.SLICE_BOUND):
        bind(world, agent, claimed.id, uuid4())
    assert bind(world, agent, claimed.id, vm).generation == claimed.generation


def test_a_slice_that_is_released_or_elsewhere_is_not_bound(world: World) -> None:
    agent, other = world.host("one"), world.host("two")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile(), host="one")
    with refused(Code.OBJECT_UNKNOWN):
        bind(world, other, claimed.id, uuid4())
    world.delete(claimed.id)
    with refused(Code.SLICE_RELEASING):
        bind(world, agent, claimed.id, uuid4())
    with refused(Code.OBJECT_UNKNOWN):
        bind(world, agent, uuid4(), uuid4())


def test_hosts_change_by_generation_and_go_when_empty(world: World) -> None:
    agent = world.host("one")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile())
    host = world.run(hosts.get_host, "one")
    patch = HostPatch(state=HostState.CORDONED)
    with refused(Code.GENERATION_REQUIRED):
        world.run(hosts.patch_host, "one", patch, if_match=None)
    cordoned = world.run(hosts.patch_host, "one", patch, if_match=host.generation)
    assert cordoned.state is HostState.CORDONED
    with refused(Code.GENERATION_STALE):
        world.run(hosts.patch_host, "one", patch, if_match=host.generation)
    with refused(Code.OBJECT_IN_USE):
        world.run(hosts.delete_host, "one", if_match=cordoned.generation)
    world.delete(claimed.id)
    agent.confirm_gone(claimed.id)
    world.run(hosts.delete_host, "one", if_match=cordoned.generation)
    with refused(Code.AUTH_INVALID):
        agent.report()
    assert world.gpus() == []
