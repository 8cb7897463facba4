# SPDX-License-Identifier: Apache-2.0
"""Claims that move to another GPU while another transaction waits for their slice or for a GPU."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.orm import Session
from vgpumgr_api.db.database import Database
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import agents, drain, gpus, hosts, rehoming

from tests.api.concurrency.audit import Audit
from tests.api.concurrency.uncommitted import behind
from tests.api.services.test_cards import THERE, card, of, plugged
from tests.api.world import ADDRESS, Agent, World
from vgpumgr.wire.fleet import Bind
from vgpumgr.wire.operations import GpuRehome, HostDrain
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import GpuPatch, Slice

pytestmark = pytest.mark.parametrize("engine_name", ["postgresql"])


@pytest.fixture
def agent(world: World) -> Agent:
    """A host with one card."""
    return world.host("one", inventory=[card("GPU-a", ADDRESS)])


@pytest.fixture
def claimed(world: World, agent: Agent) -> Slice:
    """A claim on that card, which is then replaced by another card."""
    world.tenant("acme")
    made = world.claim("acme", world.profile(share=300, gib=4, name="part"))
    plugged(agent, card("GPU-b", THERE))
    return made


def rehoming_of(world: World) -> Callable[[Session], Any]:
    old, new = of(world, "GPU-a"), of(world, "GPU-b")

    def work(session: Session) -> Any:
        return rehoming.rehome_gpu(session, world.operator, old.id, GpuRehome(to=new.id), if_match=old.generation)

    return work


def as_agent(agent: Agent, service: Any, *arguments: Any) -> Any:
    actor = agent.actor
    return agent.database.run(lambda session: service(session, actor, agent.name, *arguments))


def test_who_waits_to_delete_a_slice_finds_it_where_it_is(
    world: World, database: Database, url: str, agent: Agent, claimed: Slice
) -> None:
    before = agent.desired().generation
    moved, deleted, waited = behind(database, url, rehoming_of(world), lambda: world.delete(claimed.id))
    assert waited
    assert moved.result["moved"] == 1
    assert (deleted.state, deleted.gpu) == ("releasing", THERE)
    assert agent.desired().generation == before + 2
    assert agent.confirm_gone(claimed.id)
    assert {one.used_share_permille for one in world.gpus()} == {0}
    assert Audit(url).violations(quotas_may_be_cut=True) == []


def test_who_waits_to_bind_a_slice_finds_it_where_it_is(
    world: World, database: Database, url: str, agent: Agent, claimed: Slice
) -> None:
    vm = uuid4()
    binding = lambda: as_agent(agent, agents.bind, claimed.id, Bind(vm_uuid=vm))  # noqa: E731
    _, bound, waited = behind(database, url, rehoming_of(world), binding)
    assert waited
    assert (bound.vm_uuid, bound.gpu) == (vm, THERE)


def test_who_waits_to_patch_a_gpu_is_told_that_it_is_another_now(
    world: World, database: Database, url: str, agent: Agent, claimed: Slice
) -> None:
    old = of(world, "GPU-a")
    patching = lambda: world.run(gpus.patch_gpu, old.id, GpuPatch(labels={"x": "y"}), if_match=old.generation)  # noqa: E731
    _, patched, waited = behind(database, url, rehoming_of(world), patching)
    assert waited
    assert isinstance(patched, Refusal)
    assert patched.code is Code.GENERATION_STALE


def test_a_claim_that_waits_for_the_new_gpu_sees_what_came(
    world: World, database: Database, url: str, agent: Agent, claimed: Slice
) -> None:
    large = world.profile(share=800, gib=1)
    _, refused, waited = behind(database, url, rehoming_of(world), lambda: world.claim("acme", large))
    assert waited
    assert isinstance(refused, Refusal)
    assert refused.code is Code.CAPACITY_NONE
    assert of(world, "GPU-b").used_share_permille == 300


def test_a_release_comes_before_or_after(
    world: World, database: Database, url: str, agent: Agent, claimed: Slice
) -> None:
    world.delete(claimed.id)
    document = agent.desired()
    said = lambda: agent.confirm_gone(claimed.id) if document else False  # noqa: E731
    moved, accepted, waited = behind(database, url, rehoming_of(world), said)
    assert waited
    assert (moved.result["moved"], accepted) == (0, True)
    assert {one.used_share_permille for one in world.gpus()} == {0}
    assert Audit(url).violations(quotas_may_be_cut=True) == []


def test_of_two_that_move_the_same_claims_one_is_refused(
    world: World, database: Database, url: str, claimed: Slice
) -> None:
    work = rehoming_of(world)
    moved, late, waited = behind(database, url, work, lambda: database.run(work))
    assert waited
    assert moved.result["moved"] == 1
    assert isinstance(late, Refusal)
    assert late.code is Code.GENERATION_STALE
    assert of(world, "GPU-b").used_share_permille == 300


def test_a_drain_that_began_first_is_seen(world: World, database: Database, url: str, claimed: Slice) -> None:
    generation = world.run(hosts.get_host, "one").generation

    def draining(session: Session) -> Any:
        return drain.drain_host(session, world.operator, "one", HostDrain(), if_match=generation)

    work = rehoming_of(world)
    _, late, waited = behind(database, url, draining, lambda: database.run(work))
    assert waited
    assert isinstance(late, Refusal)
    assert late.code is Code.HOST_DRAINING
    assert world.slice(claimed.id).gpu == ADDRESS


def test_a_drain_that_came_later_waits_for_what_moved(
    world: World, database: Database, url: str, claimed: Slice
) -> None:
    generation = world.run(hosts.get_host, "one").generation

    def draining() -> Any:
        return world.run(drain.drain_host, "one", HostDrain(), if_match=generation)

    _, drained, waited = behind(database, url, rehoming_of(world), draining)
    assert waited
    assert (drained.state, drained.progress.left) == ("running", 1)
