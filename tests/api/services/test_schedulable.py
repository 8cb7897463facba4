# SPDX-License-Identifier: Apache-2.0
"""Claims look first at GPUs that recently could take one, and still find every place."""

from collections.abc import Callable

import pytest
from sqlalchemy import select, update
from vgpumgr_api.claims import explain
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.db.statements import change
from vgpumgr_api.placement import schedulable
from vgpumgr_api.placement.obstacles import ONLINE

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import GIB, Agent, World, absent, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostState, Placement, SliceCreate

Agents = dict[str, Agent]


def hinted(world: World) -> dict[str, bool]:
    """Updates the hints, then returns the hint for each host's GPU."""
    while world.database.run(schedulable.follow):
        pass
    statement = select(Host.name, Gpu.schedulable).join(Gpu, Gpu.host_id == Host.id)
    return dict(world.database.run(lambda session: [tuple(row) for row in session.execute(statement)]))


def fleet(world: World) -> Agents:
    return {name: world.host(name, inventory=[gpu(mem_bytes=4 * GIB, types=(1, 4))]) for name in ("one", "other")}


def cordon(world: World, agents: Agents, _clock: Clock) -> None:
    world.set_host(agents["one"].name, state=HostState.CORDONED)


def fall_silent(_world: World, agents: Agents, clock: Clock) -> None:
    clock.advance(ONLINE.total_seconds() + 1)
    assert agents["other"].report()


def lose_it(_world: World, agents: Agents, _clock: Clock) -> None:
    assert agents["one"].report(gpus=[])


def fill_memory(world: World, agents: Agents, _clock: Clock) -> None:
    world.tenant("full")
    world.claim("full", world.profile(share=10, gib=4), host=agents["one"].name)


@pytest.mark.parametrize("spoil", [cordon, fall_silent, lose_it, fill_memory])
def test_gpus_that_no_claim_can_have_are_told_from_the_others(
    world: World, clock: Clock, spoil: Callable[[World, Agents, Clock], None]
) -> None:
    agents = fleet(world)
    assert hinted(world) == {"one": True, "other": True}
    spoil(world, agents, clock)
    assert hinted(world) == {"one": False, "other": True}


def test_a_gpu_is_full_when_its_own_smallest_type_has_no_room(world: World) -> None:
    """The types of other GPUs do not matter."""
    for name, gib in (("small", 1), ("large", 4)):
        world.host(name, inventory=[gpu(mem_bytes=6 * GIB, types=(gib,))])
    world.tenant("acme")
    world.claim("acme", world.profile(share=10, gib=4), host="large")
    assert hinted(world) == {"small": True, "large": False}


def test_what_was_of_no_use_is_of_use_again(world: World, clock: Clock) -> None:
    cordon(world, fleet(world), clock)
    assert hinted(world) == {"one": False, "other": True}
    world.set_host("one", state=HostState.READY)
    assert hinted(world) == {"one": True, "other": True}


def test_where_memory_comes_free_claims_look_at_once(world: World) -> None:
    agent = fleet(world)["one"]
    world.tenant("full")
    claim = world.claim("full", world.profile(share=10, gib=4), host="one")
    assert agent.report(desired=agent.desired(), slices=[absent(claim.id)])
    assert hinted(world) == {"one": False, "other": True}
    world.delete(claim.id)
    assert agent.confirm_gone(claim.id)
    statement = select(Gpu.schedulable).join(Host, Host.id == Gpu.host_id).where(Host.name == "one")
    assert world.database.run(lambda session: session.scalars(statement).all()) == [True]


@pytest.mark.parametrize("placement", [Placement.PACK, Placement.SPREAD])
def test_a_wrong_hint_costs_nobody_a_place_and_gives_nobody_one(world: World, placement: Placement) -> None:
    """Claims and explanations are the same whatever the hint says; whether the host takes claims is checked again."""
    fleet(world)
    world.tenant("acme")
    profile = world.profile(share=600, gib=1)

    def hint(*, value: bool) -> None:
        world.database.run(lambda session: change(session, update(Gpu).values(schedulable=value)))

    hint(value=False)
    wanted = SliceCreate(tenant="acme", profile=profile.name, placement=placement)
    assert world.run(explain.explain, wanted).fits
    assert len({world.claim("acme", profile, placement=placement).gpu_id for _ in range(2)}) == 2
    hint(value=True)
    world.set_host("one", state=HostState.CORDONED)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", world.profile(share=100), placement=placement, host="one")
