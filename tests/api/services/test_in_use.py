# SPDX-License-Identifier: Apache-2.0
"""An object that others depend on stays, and the refusal names those others; slices with their VMs."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from vgpumgr_api.claims import profiles, reservations
from vgpumgr_api.fleet import cordoning, drain, hosts
from vgpumgr_api.tenancy import tenants

from tests.api.services.refusals import refused
from tests.api.world import GIB, World, absent, gpu
from vgpumgr.wire.operations import HostDrain
from vgpumgr.wire.problem import Code, Subject
from vgpumgr.wire.resources import ReservationCreate

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
    """Hosts with room, and a slice that is unrelated to all of `ACTS`."""
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
        known = [Subject(kind="slice", id=each, vm_uuid=vms[each]) for each in sorted(vms)][:20]
        assert [reason.about for reason in told.reasons] == known
        many = f"{number + 1} slices, such as " if number else ""
        assert f" {many}{first[0]};" in told.detail


@pytest.mark.parametrize("act", ACTS[1:], ids=named)
def test_a_slice_without_a_vm_is_named(fleet: World, act: tuple[Act, str]) -> None:
    fleet.host("one")
    claimed = fleet.claim("acme", fleet.run(profiles.get_profile, "small"), host="one")
    [reason] = refusal_of(fleet, act).reasons
    assert reason.detail == f"slice {claimed.id} for no VM yet"
    assert reason.about == Subject(kind="slice", id=claimed.id)


def test_projects_of_an_account_are_named(world: World) -> None:
    world.tenant("acme")
    names = [f"p{number:02}" for number in range(22)]
    for name in names:
        world.tenant(name, account="acme")
    reasons = refusal_of(world, (tenants.delete_tenant, "acme")).reasons
    assert [reason.about for reason in reasons] == [Subject(kind="tenant", name=name) for name in names[:20]]
    assert {(reason.code, reason.detail) for reason in reasons[:1]} == {(Code.OBJECT_IN_USE, "project p00")}


@pytest.mark.parametrize("act", ACTS[1:], ids=named)
def test_reservations_are_named(fleet: World, act: tuple[Act, str]) -> None:
    """Each reservation is named once, however many places it holds."""
    fleet.host("one")
    fleet.run(cordoning.cordon_host, "two", if_match=fleet.run(hosts.get_host, "two").generation)
    wanted = ReservationCreate(tenant="acme", profile="small", places=3, expires_in_s=600)
    held = sorted(fleet.run(reservations.create_reservation, wanted).id for _ in range(2))
    reasons = refusal_of(fleet, act).reasons
    assert [reason.about for reason in reasons] == [Subject(kind="reservation", id=each) for each in held]
    assert [(reason.code, reason.detail) for reason in reasons] == [
        (Code.OBJECT_IN_USE, f"reservation {each}") for each in held
    ]


def test_maintenance_that_a_drain_would_end_is_named(fleet: World) -> None:
    fleet.host("one")
    match = fleet.run(hosts.get_host, "one").generation
    match = fleet.run(cordoning.maintain_host, "one", if_match=match).generation
    with refused(Code.OBJECT_IN_USE) as caught:
        fleet.run(drain.drain_host, "one", HostDrain(), if_match=match)
    [reason] = caught.refusal.reasons
    assert (reason.code, reason.about) == ("host.maintenance", Subject(kind="host", name="one"))
