# SPDX-License-Identifier: Apache-2.0
"""Host states: those that operators set, those that the API finds, and what each state permits."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from vgpumgr_api.claims import claims
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import cordoning, drain, hosts
from vgpumgr_api.resources.paging import PageRequest

from tests.api.conftest import Clock
from tests.api.services.refusals import refused as refusing
from tests.api.services.test_slice_states import device, host_kinds, pass_time, sweep
from tests.api.world import Agent, World, absent
from vgpumgr.wire.operations import HostDrain, Operation
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Host, HostPatch, HostState, SliceCreate


def refused(code: Code, call: Callable[[], Any]) -> Refusal:
    with refusing(code) as caught:
        call()
    assert caught.refusal is not None
    return caught.refusal


def host_of(world: World, name: str = "one") -> Host:
    found: Host = world.run(hosts.get_host, name)
    return found


def act(world: World, service: Any, name: str = "one", **options: Any) -> Any:
    """Acts at the host's present generation unless another is given."""
    options.setdefault("if_match", host_of(world, name).generation)
    return world.run(service, name, **options)


def drained(world: World, name: str = "one", **request: Any) -> Operation:
    begun: Operation = world.run(drain.drain_host, name, HostDrain(**request), if_match=host_of(world, name).generation)
    return begun


@pytest.fixture
def agent(world: World) -> Agent:
    world.tenant("acme")
    world.profile(name="small", share=100)
    return world.host("one")


def claim(world: World, **members: Any) -> UUID:
    found: UUID = world.run(claims.create_slice, SliceCreate(tenant="acme", profile="small", **members)).id
    return found


def obstacle(world: World) -> list[str]:
    refusal = refused(Code.CAPACITY_NONE, lambda: claim(world))
    return [reason.code for reason in refusal.reasons]


def test_only_a_ready_host_takes_claims_and_its_agent_is_told(world: World, agent: Agent) -> None:
    claim(world)
    for service, state, why in (
        (cordoning.cordon_host, "cordoned", "host.cordoned"),
        (cordoning.maintain_host, "maintenance", "host.maintenance"),
        (cordoning.uncordon_host, "ready", None),
    ):
        before = agent.desired()
        changed = act(world, service)
        after = agent.desired()
        assert (changed.state, changed.operator_state, after.host_state) == (state, state, state)
        assert after.generation > before.generation
        assert len(after.slices) == 1
        if why is not None:
            assert obstacle(world) == [why]
    claim(world)
    drained(world)
    assert obstacle(world) == ["host.draining"]
    assert agent.desired().host_state == "draining"
    assert [kind for kind in host_kinds(world, "one") if kind.startswith("host.")][2:] == [
        "host.cordoned",
        "host.maintenance",
        "host.ready",
        "host.draining",
    ]


def test_repeating_a_state_changes_nothing(world: World, agent: Agent) -> None:
    cordoned = act(world, cordoning.cordon_host)
    generation = agent.desired().generation
    assert act(world, cordoning.cordon_host) == cordoned
    assert agent.desired().generation == generation


def test_a_change_needs_the_latest_generation(world: World, agent: Agent) -> None:
    for service in (cordoning.cordon_host, cordoning.uncordon_host, cordoning.maintain_host):
        refused(Code.GENERATION_STALE, lambda service=service: act(world, service, if_match=99))
        refused(Code.GENERATION_REQUIRED, lambda service=service: act(world, service, if_match=None))
    refused(Code.GENERATION_STALE, lambda: world.run(drain.drain_host, "one", HostDrain(), if_match=99))
    refused(Code.OBJECT_UNKNOWN, lambda: world.run(cordoning.cordon_host, "two", if_match=1))


def test_a_host_with_devices_is_not_put_in_maintenance(world: World, agent: Agent) -> None:
    one = claim(world)
    agent.report(slices=[device(one, opened=True)])
    refusal = refused(Code.OBJECT_IN_USE, lambda: act(world, cordoning.maintain_host))
    assert "has devices of slice " in refusal.detail
    agent.report(slices=[absent(one)])
    assert act(world, cordoning.maintain_host).state is HostState.MAINTENANCE


def test_silence_is_expected_of_a_host_in_maintenance_only(world: World, agent: Agent, clock: Clock) -> None:
    world.host("two")
    act(world, cordoning.maintain_host)
    act(world, cordoning.cordon_host, "two")
    pass_time(world, clock, 300)
    sweep(world)
    assert host_of(world).state is HostState.MAINTENANCE
    lost = host_of(world, "two")
    assert (lost.state, lost.operator_state, lost.lost_at) == (HostState.LOST, HostState.CORDONED, clock.now)
    # An operator's change meanwhile takes effect when the host is back.
    assert act(world, cordoning.uncordon_host, "two").state is HostState.LOST
    listed = {one.name: one.state for one in world.run(hosts.list_hosts, PageRequest()).items}
    assert listed == {"one": HostState.MAINTENANCE, "two": HostState.LOST}


def test_a_host_that_reports_is_lost_no_longer(world: World, agent: Agent, clock: Clock) -> None:
    pass_time(world, clock, 300)
    sweep(world)
    assert host_of(world).state is HostState.LOST
    agent.report()
    back = host_of(world)
    assert (back.state, back.lost_at) == (HostState.READY, None)
    assert host_kinds(world, "one")[-2:] == ["host.lost", "host.returned"]
    sweep(world)
    assert host_kinds(world, "one")[-1] == "host.returned"


def test_a_sign_of_life_that_is_no_report_is_noticed(world: World, agent: Agent, clock: Clock) -> None:
    """This holds for every writer of `reported_at`."""
    from vgpumgr_api.db.observations import HostReport

    pass_time(world, clock, 300)
    sweep(world)
    world.run(lambda session, _: setattr(session.get(HostReport, agent.host_id), "reported_at", clock.now))
    sweep(world)
    assert host_of(world).state is HostState.READY
    assert host_kinds(world, "one")[-1] == "host.returned"


def test_a_patch_cannot_say_what_only_operations_and_the_clock_can(world: World, agent: Agent) -> None:
    for state in ("draining", "maintenance", "lost"):
        with pytest.raises(ValueError, match="state"):
            HostPatch(state=state)
    claim(world)
    drained(world)
    patch = HostPatch(state=HostState.READY)
    refused(Code.HOST_DRAINING, lambda: act(world, lambda *a, **o: hosts.patch_host(*a, patch, **o)))
