# SPDX-License-Identifier: Apache-2.0
"""What slices depend on is left as it is, and the refusal names slices and VMs."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from vgpumgr_api.services import cordoning, hosts, profiles, tenants

from tests.api.services.refusals import refused
from tests.api.world import GIB, World, absent, gpu
from vgpumgr.wire.problem import Code

Act = Callable[..., Any]
ACTS: list[tuple[Act, str]] = [
    (cordoning.maintain_host, "one"),
    (hosts.delete_host, "one"),
    (tenants.delete_tenant, "acme"),
    (profiles.delete_profile, "small"),
]


def named(act: tuple[Act, str]) -> str:
    return act[0].__name__


@pytest.fixture
def fleet(world: World) -> World:
    """Hosts with room, and a slice that has nothing to do with any of `ACTS`."""
    world.tenant("acme")
    world.tenant("blue")
    world.profile(share=10, name="small")
    world.host("two")
    world.claim("blue", world.profile(share=10), host="two", vm_uuid=uuid4())
    return world


def refusal_of(world: World, act: tuple[Act, str]) -> Any:
    service, name = act
    match = 1 if service is profiles.delete_profile else None
    if name == "one":
        match = world.run(hosts.get_host, name).generation
    with refused(Code.OBJECT_IN_USE) as caught:
        world.run(service, name, if_match=match)
    return caught.refusal


@pytest.mark.parametrize("act", ACTS, ids=named)
def test_a_refusal_names_slices_and_vms_twenty_at_most(fleet: World, act: tuple[Act, str]) -> None:
    agent = fleet.host("one", inventory=[gpu(mem_bytes=64 * GIB)])
    profile = fleet.run(profiles.get_profile, "small")
    vms = {}
    for number in range(22):
        vm = uuid4()
        vms[fleet.claim("acme", profile, host="one", vm_uuid=vm).id] = vm
        agent.report(slices=[absent(each, present=True, vm_uuid=vms[each]) for each in vms])
        if number not in (0, 1, 21):
            continue
        told = refusal_of(fleet, act)
        first = [f"slice {each} for VM {vms[each]}" for each in sorted(vms)][:20]
        assert [reason.detail for reason in told.reasons] == first
        assert {reason.code for reason in told.reasons} == {Code.OBJECT_IN_USE}
        assert f"{number + 1} slices, such as {first[0]};" in told.detail


@pytest.mark.parametrize("act", ACTS[1:], ids=named)
def test_a_slice_without_a_vm_is_named(fleet: World, act: tuple[Act, str]) -> None:
    fleet.host("one")
    claimed = fleet.claim("acme", fleet.run(profiles.get_profile, "small"), host="one")
    [reason] = refusal_of(fleet, act).reasons
    assert reason.detail == f"slice {claimed.id} for no VM yet"
