# SPDX-License-Identifier: Apache-2.0
"""Only a host's own report, under an order to remove, ends a claim; nothing else releases quota and capacity."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from vgpumgr_api.claims import claims
from vgpumgr_api.fleet import hosts
from vgpumgr_api.installation import installation
from vgpumgr_api.resources.paging import PageRequest

from tests.api.services.refusals import refused
from tests.api.world import GIB, Agent, World, absent, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import SliceState


def counted(world: World, tenant: str = "acme") -> bool:
    quota, [only] = world.quota(tenant), world.gpus()
    sums = (quota.used_share_permille, quota.used_mem_bytes, quota.used_slices)
    on_gpu = (only.used_share_permille, only.used_mem_bytes)
    assert (sums, on_gpu) in (((250, 3 * GIB, 1), (250, 4 * GIB)), ((0, 0, 0), (0, 0)))
    return sums[2] == 1


@pytest.fixture
def agent(world: World) -> Agent:
    world.tenant("acme")
    return world.host()


def claim(world: World) -> UUID:
    return world.claim("acme", world.profile(share=250, gib=3)).id


def test_deleting_makes_a_tombstone_and_confirming_it_returns_everything(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    before = agent.desired()

    deleted = world.delete(slice_id)

    assert deleted.state is SliceState.RELEASING
    ordered = agent.desired()
    assert ordered.generation > before.generation
    assert [one.id for one in ordered.tombstones] == [slice_id]
    assert (ordered.slices, ordered.groups) == ([], [])
    assert counted(world)

    assert agent.report(desired=ordered, slices=[absent(slice_id)])

    assert not counted(world)
    with refused(Code.OBJECT_UNKNOWN):
        world.slice(slice_id)
    after = agent.desired()
    assert after.tombstones == []
    assert after.generation > ordered.generation


def test_deleting_twice_is_the_same_as_once(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    first = world.delete(slice_id)
    generation = agent.desired().generation
    assert world.delete(slice_id) == first
    assert agent.desired().generation == generation


def test_deleting_heeds_a_generation_that_is_given(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    with refused(Code.GENERATION_STALE):
        world.delete(slice_id, if_match=7)
    assert world.slice(slice_id).state is SliceState.CLAIMED
    world.delete(slice_id, if_match=1)


def test_absence_without_a_tombstone_frees_nothing(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    agent.report(desired=agent.desired(), slices=[absent(slice_id)])
    agent.report(desired=agent.desired(), slices=[])
    assert world.slice(slice_id).state is SliceState.CLAIMED
    assert counted(world)


def test_silence_about_a_tombstone_frees_nothing(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    world.delete(slice_id)
    agent.report(desired=agent.desired(), slices=[])
    assert counted(world)


def test_a_device_that_is_still_there_frees_nothing(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    world.delete(slice_id)
    agent.report(desired=agent.desired(), slices=[absent(slice_id, present=True)])
    assert counted(world)
    observed = world.slice(slice_id).observed
    assert observed is not None
    assert observed.present


@pytest.mark.parametrize(
    "said",
    [
        {"desired_generation": 0},
        {"desired_epoch": None},
        {"desired_epoch": uuid4()},
    ],
)
def test_absence_under_another_document_frees_nothing(world: World, agent: Agent, said: dict[str, Any]) -> None:
    slice_id = claim(world)
    world.delete(slice_id)
    assert agent.report(desired=agent.desired(), slices=[absent(slice_id)], **said)
    assert counted(world)
    agent.confirm_gone(slice_id)
    assert not counted(world)


def test_absence_seen_before_the_tombstone_frees_nothing(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    before = agent.desired()
    world.delete(slice_id)
    agent.report(desired=before, slices=[absent(slice_id)])
    assert counted(world)


def test_a_generation_that_the_database_never_had_frees_nothing(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    world.delete(slice_id)
    desired = agent.desired()
    agent.report(desired=desired, desired_generation=desired.generation + 1, slices=[absent(slice_id)])
    assert counted(world)


def test_absence_of_what_may_be_started_again_frees_nothing(world: World, agent: Agent) -> None:
    """The database lost commits, and its document has the same number as the host's, so it gets another number."""
    slice_id = claim(world)
    world.delete(slice_id)
    desired = agent.desired()
    assert agent.report(desired=desired, slices=[absent(slice_id, startable=True)])
    assert counted(world)
    assert agent.desired().generation == desired.generation + 1
    agent.confirm_gone(slice_id)
    assert not counted(world)


def test_another_host_cannot_confirm(world: World, agent: Agent) -> None:
    other = world.host("other", inventory=[])
    slice_id = claim(world)
    world.delete(slice_id)
    assert other.report(
        desired=other.desired(), desired_generation=agent.desired().generation, slices=[absent(slice_id)]
    )
    other.report(desired=other.desired(), slices=[absent(slice_id, present=True, run_ns=7)])
    assert counted(world)
    assert world.slice(slice_id).observed is None


def test_after_a_new_epoch_a_host_frees_nothing_until_it_is_confirmed(world: World, agent: Agent) -> None:
    slice_id = claim(world)
    world.delete(slice_id)
    before = agent.desired()
    assert before.epoch_confirmed
    seen = world.run(hosts.get_host, agent.name)

    epoch = world.run(installation.new_epoch)

    after = agent.desired()
    assert (after.epoch, after.epoch_confirmed) == (epoch, False)
    assert after.generation > before.generation
    changed = world.run(hosts.get_host, agent.name)
    assert (changed.epoch_confirmed, changed.generation) == (False, seen.generation + 1)
    agent.report(desired=before, slices=[absent(slice_id)])
    agent.report(desired=after, slices=[absent(slice_id)])
    assert counted(world)

    assert world.run(hosts.confirm_epoch, agent.name).epoch_confirmed

    confirmed = agent.desired()
    assert confirmed.epoch_confirmed
    assert confirmed.generation > after.generation
    agent.report(desired=before, slices=[absent(slice_id)])
    assert counted(world)
    agent.confirm_gone(slice_id)
    assert not counted(world)


def test_confirming_twice_changes_nothing(world: World, agent: Agent) -> None:
    world.run(installation.new_epoch)
    once = world.run(hosts.confirm_epoch, agent.name)
    generation = agent.desired().generation
    assert world.run(hosts.confirm_epoch, agent.name) == once
    assert agent.desired().generation == generation


def test_many_slices_of_several_tenants_return_at_once(world: World) -> None:
    addresses = [f"0000:00:{number:02x}.0" for number in range(16, 20)]
    agent = world.host(inventory=[gpu(address, mem_bytes=64 * GIB) for address in addresses])
    world.tenant("acme")
    world.tenant("lab", account="acme")
    world.tenant("other")
    profile = world.profile(share=300)
    gone, kept = [], []
    for tenant in ("acme", "lab", "other") * 4:
        (gone if len(gone) < 8 else kept).append(world.claim(tenant, profile).id)
    for slice_id in gone:
        world.delete(slice_id)
    agent.confirm_gone(*gone, *kept)
    left = world.run(claims.list_slices, PageRequest()).items
    assert {one.id for one in left} == set(kept)
    by_tenant = {name: sum(one.tenant == name for one in left) for name in ("acme", "lab", "other")}
    assert world.quota("lab").used_slices == by_tenant["lab"]
    assert world.quota("acme").used_slices == by_tenant["acme"] + by_tenant["lab"]
    assert world.quota("other").used_share_permille == 300 * by_tenant["other"]
    for one in world.gpus():
        assert one.used_share_permille == sum(300 for claimed in left if claimed.gpu_id == one.id)
        assert one.used_mem_bytes == sum(GIB for claimed in left if claimed.gpu_id == one.id)
