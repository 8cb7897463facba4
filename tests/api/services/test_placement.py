# SPDX-License-Identifier: Apache-2.0
"""Which GPU takes a claim, and the reasons if none does."""

from typing import Any
from uuid import uuid4

import pytest
from vgpumgr_api.fleet import hosts
from vgpumgr_api.installation import installation
from vgpumgr_api.resources.paging import PageRequest

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import GIB, World, absent, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostCreate, HostPatch, HostState

A, B, C = "0000:00:10.0", "0000:00:11.0", "0000:00:12.0"


def cordon(world: World, name: str, state: HostState = HostState.CORDONED) -> None:
    generation = world.run(hosts.get_host, name).generation
    world.run(hosts.patch_host, name, HostPatch(state=state), if_match=generation)


def test_the_fullest_gpu_that_fits_is_taken(world: World) -> None:
    world.host("one", inventory=[gpu(A), gpu(B)])
    world.host("two", inventory=[gpu(C)])
    world.tenant("acme")
    first = world.claim("acme", world.profile(share=500), host="two")
    assert world.claim("acme", world.profile(share=400)).gpu_id == first.gpu_id
    third = world.claim("acme", world.profile(share=300))
    assert third.host == "one"
    assert world.claim("acme", world.profile(share=300)).gpu_id == third.gpu_id
    assert world.claim("acme", world.profile(share=100)).gpu_id == first.gpu_id


def test_the_smallest_type_with_enough_memory_is_taken(world: World) -> None:
    world.host()
    world.tenant("acme")
    assert world.claim("acme", world.profile(share=1, gib=1)).mdev_type == "vgpumgr-1g"
    assert world.claim("acme", world.profile(share=1, gib=2)).mdev_type == "vgpumgr-4g"
    assert world.claim("acme", world.profile(share=1, gib=4)).mdev_type == "vgpumgr-4g"
    assert world.gpus()[0].used_mem_bytes == 9 * GIB
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(share=1, gib=5))  # a type of 16 GiB would fit, but only 7 GiB are free
    assert caught.reasons == {"memory.full": 1}
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(share=1, gib=17))
    assert caught.reasons == {"type.none": 1}


def test_every_gpu_is_counted_under_one_reason(world: World, clock: Clock) -> None:
    world.tenant("acme")
    world.run(hosts.create_host, HostCreate(name="announced"))
    world.host("silent", inventory=[gpu(A), gpu(B)])
    clock.advance(91)
    world.host("cordoned")
    cordon(world, "cordoned")
    full = world.host("full")
    world.claim("acme", world.profile(share=900), host="full")
    swapped = world.host("swapped", inventory=[gpu(A), gpu(B, mem_bytes=2 * GIB, types=(1, 2)), gpu(C, types=(1,))])
    swapped.inventory = swapped.inventory[1:]
    swapped.report()
    world.claim("acme", world.profile(share=10, gib=2), host="swapped")
    full.report()

    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(share=200, gib=2))

    assert caught.reasons == {
        "host.offline": 2,
        "host.cordoned": 1,
        "share.full": 1,
        "gpu.absent": 1,
        "memory.full": 1,
        "type.none": 1,
    }
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(share=200), host="full")
    assert caught.reasons == {"host.other": 6, "share.full": 1}
    assert caught.refusal is not None
    assert caught.refusal.detail == (
        "no GPU that is asked for has 200 permille and 1024 MiB free; free some, ask for others or ask for less"
    )


def test_without_any_gpu_the_reason_is_that(world: World) -> None:
    world.tenant("acme")
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile())
    assert caught.reasons == {}


@pytest.mark.parametrize(
    ("members", "because"),
    [
        ({"host": "cordoned"}, "their host is cordoned"),
        ({"selector": {"zone": "a"}}, "their host is cordoned"),
        ({"host": "cordoned", "selector": {"zone": "b"}}, "they or their host lack a label that is selected"),
    ],
)
def test_what_keeps_a_claim_from_a_host_that_it_names_is_said_first(
    world: World, members: dict[str, Any], because: str
) -> None:
    world.tenant("acme")
    world.host("ready", inventory=[gpu(A), gpu(B)])
    world.host("cordoned")
    world.set_host("cordoned", state="cordoned", labels={"zone": "a"})
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(), **members)
    assert caught.refusal is not None
    assert caught.refusal.detail == (f"no GPU that is asked for fits, mostly because: {because}; ask for others")


def test_a_host_that_has_reported_no_gpu_is_told_apart_from_full_ones(world: World) -> None:
    world.tenant("acme")
    world.host("ready")
    world.run(hosts.create_host, HostCreate(name="announced"))
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(), host="announced")
    assert caught.refusal is not None
    assert caught.refusal.detail.startswith("the host that is asked for has reported no GPU yet;")


def test_where_no_memory_class_is_large_enough_nobody_is_told_to_free_some(world: World) -> None:
    world.tenant("acme")
    world.host("one", inventory=[gpu(A, types=(1,)), gpu(B, types=(1,))])
    wanted = world.profile(share=200, gib=2)
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", wanted)
    assert caught.reasons == {"type.none": 2}
    assert caught.refusal is not None
    assert caught.refusal.detail == "no GPU offers 2048 MiB to one slice; ask for less memory, or offer a larger class"


def test_a_memory_class_is_too_small_only_where_nothing_else_is_wrong(world: World) -> None:
    world.tenant("acme")
    world.host("large", inventory=[gpu(A), gpu(B)])
    cordon(world, "large")
    world.host("small", inventory=[gpu(C, types=(1,))])
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(share=200, gib=2))
    assert caught.reasons == {"host.cordoned": 2, "type.none": 1}
    assert caught.refusal is not None
    assert caught.refusal.detail == (
        "no GPU fits, mostly because: their host is cordoned; free some, add a host or ask for less"
    )


@pytest.mark.parametrize("members", [{}, {"host": "one"}, {"selector": {"zone": "a"}}, {"vm_uuid": uuid4()}])
@pytest.mark.parametrize("kind", [{"share": 800}, {"share": 1, "gib": 17}])
def test_what_is_short_is_said_of_the_gpus_that_are_asked_for(
    world: World, members: dict[str, Any], kind: dict[str, int]
) -> None:
    """Operators get the details for the requested GPUs; tenants are told only that others would fit. If no GPU fits at
    all, both get the details.
    """
    world.tenant("acme")
    world.host("one", inventory=[gpu(A, types=(1, 4))])
    world.set_host("one", labels={"zone": "a"})
    taken = world.claim("acme", world.profile(share=300), vm_uuid=members.get("vm_uuid"))
    profile = world.profile(**kind)

    def said(**by: Any) -> str:
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile, **members, **by)
        assert caught.refusal is not None
        return caught.refusal.detail

    lacks = "has 800 permille and 1024 MiB free; free some, {} or ask for less"
    if "gib" in kind:
        lacks = "offers 17408 MiB to one slice; ask for less memory, or offer a larger class"
    own = world.tenant_actor("acme")
    assert said() == said(actor=own) == f"no GPU {lacks.format('add a host')}"
    assert taken.host == "one"

    world.host("two", inventory=[gpu(B, mem_bytes=32 * GIB, types=(32,))])
    if not members:
        assert world.claim("acme", profile).host == "two"
        return
    which, elsewhere = "no GPU that is asked for", "ask for others"
    if "vm_uuid" in members:
        which, elsewhere = "no GPU on the host of its VM", "move the VM"
    assert said() == f"{which} {lacks.format(elsewhere)}"
    assert said(actor=own) == f"{which} fits, though others would; {elsewhere}"


def test_a_host_takes_claims_only_while_it_reports_and_is_ready(world: World, clock: Clock) -> None:
    world.tenant("acme")
    profile = world.profile(share=10)
    token = world.run(hosts.create_host, HostCreate(name="new")).enroll_token
    agent = world.enrolled("new", token)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile)
    agent.report(desired=agent.desired())
    world.claim("acme", profile)
    clock.advance(90)
    assert world.run(hosts.get_host, "new").online
    world.claim("acme", profile)
    clock.advance(1)
    assert not world.run(hosts.get_host, "new").online
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile)
    agent.report()
    cordon(world, "new")
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile)
    assert caught.reasons == {"host.cordoned": 1}
    cordon(world, "new", HostState.READY)
    world.claim("acme", profile)


def test_after_a_restore_a_host_takes_no_claims_until_it_is_confirmed(world: World) -> None:
    world.tenant("acme")
    profile = world.profile(share=10)
    agent = world.host("one")
    world.run(installation.new_epoch)
    agent.report(desired=agent.desired())
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile)
    assert caught.reasons == {"host.unconfirmed": 1}
    world.run(hosts.confirm_epoch, "one")
    world.claim("acme", profile)


def test_a_host_with_slices_that_the_database_does_not_know_takes_no_claims(world: World) -> None:
    """These slices use share and memory that nobody has counted."""
    world.tenant("acme")
    profile = world.profile(share=10)
    agent = world.host("one", inventory=[gpu(A), gpu(B)])
    known, releasing = world.claim("acme", profile).id, world.claim("acme", profile).id
    world.delete(releasing)
    unknown = uuid4()
    own = [absent(known, present=True), absent(releasing, present=True)]
    agent.report(desired=agent.desired(), slices=[*own, absent(unknown)])
    world.claim("acme", profile)
    agent.report(desired=agent.desired(), slices=[*own, absent(unknown, present=True)])
    for _ in range(2):
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile)
        assert caught.reasons == {"gpu.unknown_slices": 2}
        agent.report()  # the agent cannot look at its devices
    agent.report(desired=agent.desired(), slices=own)
    world.claim("acme", profile)


def test_what_a_host_may_start_a_vm_with_holds_its_place_though_there_is_no_device(world: World) -> None:
    world.tenant("acme")
    profile = world.profile(share=10)
    agent = world.host("one")
    lost, generation = uuid4(), agent.desired().generation
    for _ in range(2):
        agent.report(desired=agent.desired(), slices=[absent(lost, startable=True)])
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile)
        assert caught.reasons == {"gpu.unknown_slices": 1}
        assert agent.desired().generation == generation + 1  # once only, so the host has received everything
    agent.report(desired=agent.desired(), slices=[absent(lost)])
    world.claim("acme", profile)


def test_a_host_that_knows_more_than_the_database_takes_no_claims_before_a_new_epoch(world: World) -> None:
    """Commits were lost, perhaps those of slices that the host has not made yet. The host does not go back to an older
    document.
    """
    world.tenant("acme")
    profile = world.profile(share=10)
    agent = world.host("one")
    before = agent.desired()
    lost = before.model_copy(update={"generation": before.generation + 9})
    for _ in range(2):
        agent.report(desired=lost, refusals=["the desired state went back"])
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile)
        assert caught.reasons == {"gpu.unknown_slices": 1}
        seen = world.run(hosts.get_host, "one")
        assert (seen.unknown_slices, seen.refusals) == (1, ["the desired state went back"])
        assert world.run(hosts.list_hosts, PageRequest()).items == [seen]
    assert agent.desired().generation == before.generation + 1
    world.run(installation.new_epoch)
    world.run(hosts.confirm_epoch, "one")
    agent.report(desired=agent.desired())
    world.claim("acme", profile)
    told = world.run(hosts.get_host, "one")
    assert (told.unknown_slices, told.refusals) == (0, [])


def test_after_a_restore_a_host_takes_claims_only_once_it_goes_by_the_restored_database(world: World) -> None:
    world.tenant("acme")
    profile = world.profile(share=10)
    agent = world.host("one")
    before = agent.desired()
    world.run(installation.new_epoch)
    world.run(hosts.confirm_epoch, "one")
    for said in (before, None):
        agent.report(desired=said, slices=[absent(uuid4())])
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile)
        assert caught.reasons == {"gpu.unknown_slices": 1}
    agent.report(desired=agent.desired())
    world.claim("acme", profile)


def test_a_host_whose_token_was_revoked_takes_no_claims_until_it_enrols_again(world: World) -> None:
    world.tenant("acme")
    profile = world.profile()
    assert world.host("one").report()
    token = world.run(hosts.reenroll, "one").enroll_token
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile)
    assert caught.reasons == {"host.offline": 1}
    agent = world.enrolled("one", token)
    assert agent.report(desired=agent.desired())
    assert world.claim("acme", profile).host == "one"
