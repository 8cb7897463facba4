# SPDX-License-Identifier: Apache-2.0
"""A claim may be for processes on a host instead of a VM, with the same quotas, on GPUs that are set aside for them."""

from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy.exc import IntegrityError
from vgpumgr_api.claims import claims, explain, moves
from vgpumgr_api.db import models
from vgpumgr_api.fleet import agents, rehoming
from vgpumgr_api.placement import schedulable
from vgpumgr_api.resources.paging import PageRequest

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.services.test_slice_states import LIMITS, pass_time, sweep
from tests.api.world import ADDRESS, GIB, Agent, World, absent, gpu
from vgpumgr.wire.common import Mode, Workload
from vgpumgr.wire.fleet import Bind, ReportedGpu, ReportedSlice
from vgpumgr.wire.operations import GpuRehome
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Level, Slice, SliceCreate, SliceMove, SliceState, Tie

PROCESS = Workload.PROCESS
OTHER = "0000:00:11.0"


def for_processes(address: str = ADDRESS, *, mem_bytes: int = 16 * GIB) -> ReportedGpu:
    """A GPU that the agent's settings set aside, as the agent reports it."""
    said = {"backend": "broker", "engine": "native", "types": [], "timeslice_min_us": 2000, "pci_ids": "10de:2330"}
    return gpu(address, mem_bytes=mem_bytes).model_copy(update=said)


@pytest.fixture
def agent(world: World) -> Agent:
    """The agent of a host with one GPU for processes; there is also a tenant `acme`."""
    world.tenant("acme")
    return world.host("h1", inventory=[for_processes()])


def said(claimed: Slice, **members: Any) -> ReportedSlice:
    return absent(claimed.id, **({"present": True, "applied_permille": 250} | members))


def test_it_takes_a_gpu_for_processes_and_charges_quota_and_exactly_its_memory(world: World, agent: Agent) -> None:
    claimed = world.claim("acme", world.profile(share=300, gib=3), workload=PROCESS)
    assert (claimed.workload, claimed.host, claimed.gpu, claimed.vm_uuid) == (PROCESS, "h1", ADDRESS, None)
    assert claimed.mdev_type == "process"
    quota = world.quota("acme")
    assert (quota.used_share_permille, quota.used_mem_bytes, quota.used_slices) == (300, 3 * GIB, 1)
    [only] = world.gpus()
    assert (only.workload, only.used_share_permille, only.used_mem_bytes) == (PROCESS, 300, 3 * GIB)
    [event] = [each for each in world.events().items if each.kind == "slice.claimed"]
    assert event.detail["workload"] == "process"
    assert world.slice(claimed.id).workload is PROCESS


def test_claims_for_vms_and_for_processes_never_share_a_gpu(world: World) -> None:
    world.tenant("acme")
    world.host("h1", inventory=[gpu(), for_processes(OTHER)])
    profile = world.profile(share=400, gib=1)
    vms = {world.claim("acme", profile).gpu for _ in range(2)}
    processes = {world.claim("acme", profile, workload=PROCESS).gpu for _ in range(2)}
    assert (vms, processes) == ({ADDRESS}, {OTHER})
    for workload in Workload:
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile, workload=workload)
        assert caught.reasons == {"workload.other": 1, "share.full": 1}


def test_why_it_has_no_place_is_said_beforehand(world: World) -> None:
    world.tenant("acme")
    world.host("h1")
    profile = world.profile()
    found = world.run(explain.explain, SliceCreate(tenant="acme", profile=profile.name, workload=PROCESS))
    assert not found.fits
    assert [(each.code, each.count) for each in found.reasons] == [("workload.other", 1)]
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile, workload=PROCESS)
    assert world.quota("acme").used_slices == 0


def test_memory_is_shared_to_the_last_byte_and_no_further(world: World) -> None:
    world.tenant("acme")
    world.host(inventory=[for_processes(mem_bytes=5 * GIB)])
    world.claim("acme", world.profile(share=100, gib=3), workload=PROCESS)
    two = world.profile(share=100, gib=2)
    world.claim("acme", two, workload=PROCESS)
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", two, workload=PROCESS)
    assert set(caught.reasons) == {"memory.full"}


def test_what_only_vms_have_is_refused_by_field(world: World, agent: Agent) -> None:
    profile = world.profile()
    for field in ("vm_uuid", "reservation"):
        request = SliceCreate(tenant="acme", profile=profile.name, workload=PROCESS, **{field: uuid4()})
        for service in (explain.explain, claims.create_slice):
            with refused(Code.FIELD_INVALID) as caught:
                world.run(service, request)
            assert caught.refusal is not None
            assert [each.field for each in caught.refusal.reasons] == [f"$.{field}"]
    assert world.quota("acme").used_slices == 0


def test_a_batch_names_the_claim_at_fault(world: World, agent: Agent) -> None:
    name = world.profile(share=100).name
    good = SliceCreate(tenant="acme", profile=name, workload=PROCESS)
    with refused(Code.FIELD_INVALID) as caught:
        world.claim_all([good, good.model_copy(update={"vm_uuid": uuid4()})])
    assert caught.refusal is not None
    assert [each.field for each in caught.refusal.reasons] == ["$.slices[1].vm_uuid"]
    assert len(world.claim_all([good, good])) == 2


def test_affinity_counts_as_for_vms(world: World) -> None:
    world.tenant("acme")
    world.host("h1", inventory=[for_processes(), for_processes(OTHER)])
    profile = world.profile(share=100)
    apart = Tie(key="train", level=Level.GPU)
    placed = {world.claim("acme", profile, workload=PROCESS, anti_affinity=apart).gpu for _ in range(2)}
    assert placed == {ADDRESS, OTHER}
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile, workload=PROCESS, anti_affinity=apart)
    assert set(caught.reasons) == {"anti_affinity.taken"}


@pytest.mark.parametrize("mode", list(Mode))
def test_its_host_is_told_of_a_tenant_of_its_own_in_no_group(world: World, agent: Agent, mode: Mode) -> None:
    world.claim("acme", world.profile(share=250, gib=2, mode=mode), workload=PROCESS)
    desired = agent.desired()
    assert desired.groups == []
    [one] = desired.slices
    assert (one.workload, one.weight, one.mem_bytes, one.timeslice_us) == (PROCESS, 250, 2 * GIB, 2000)
    assert (one.cap_us, one.cap_period_us) == ((5000, 20_000) if mode is Mode.STRICT else (0, 0))


def test_a_quota_that_is_cut_reaches_processes(world: World, agent: Agent) -> None:
    world.claim("acme", world.profile(share=400), workload=PROCESS)
    before = agent.desired()
    world.quota("acme", share_permille=200)
    after = agent.desired()
    assert after.generation > before.generation
    assert [each.weight for each in after.slices] == [200]


def test_the_other_workload_of_a_tenant_does_not_count_in_its_group(world: World) -> None:
    world.tenant("acme")
    agent = world.host("h1", inventory=[gpu(), for_processes(OTHER)])
    world.claim("acme", world.profile(share=300))
    world.claim("acme", world.profile(share=200), workload=PROCESS)
    desired = agent.desired()
    assert [(each.gpu, each.weight) for each in desired.groups] == [(ADDRESS, 300)]
    assert {each.workload: each.weight for each in desired.slices} == {Workload.VM: 300, PROCESS: 200}


def test_no_vm_is_bound_to_it(world: World, agent: Agent) -> None:
    claimed = world.claim("acme", world.profile(), workload=PROCESS)
    with refused(Code.SLICE_BOUND):
        world.run(agents.bind, "h1", claimed.id, Bind(vm_uuid=uuid4()), actor=agent.actor)
    assert world.slice(claimed.id).vm_uuid is None


def test_its_host_says_how_it_is_and_who_enforces(world: World, agent: Agent) -> None:
    claimed = world.claim("acme", world.profile(), workload=PROCESS)
    assert (claimed.enforcement.enforced_by, claimed.enforcement.mem_enforced_by) == ("", "fence")

    agent.report(slices=[said(claimed, enforced_by="firmware")])
    assert world.slice(claimed.id).state is SliceState.PREPARED
    agent.report(slices=[said(claimed, open=True, run_ns=5, enforced_by="firmware")])
    seen = world.slice(claimed.id)
    assert (seen.state, seen.enforcement.enforced_by) == (SliceState.ATTACHED, "firmware")
    assert seen.observed is not None
    assert (seen.observed.run_ns, seen.observed.open) == (5, True)

    agent.report(slices=[said(claimed, error="workload.other: set aside for VMs")])
    assert world.slice(claimed.id).state_detail == "workload.other: set aside for VMs"


def test_it_may_wait_for_processes_as_long_as_it_likes(world: World, agent: Agent, clock: Clock) -> None:
    claimed = world.claim("acme", world.profile(), workload=PROCESS)
    agent.report(slices=[said(claimed)])
    pass_time(world, clock, LIMITS.prepared_s + 1)
    sweep(world)
    assert world.slice(claimed.id).state is SliceState.PREPARED


def test_a_host_that_makes_no_place_in_time_is_told_of(world: World, agent: Agent, clock: Clock) -> None:
    claimed = world.claim("acme", world.profile(), workload=PROCESS)
    agent.report(slices=[absent(claimed.id)])
    pass_time(world, clock, LIMITS.claimed_s + 1)
    sweep(world)
    seen = world.slice(claimed.id)
    assert (seen.state, seen.state_reason) == (SliceState.FAILED, "deadline.claimed")
    assert seen.state_detail == f"its host has not made a place for processes within {LIMITS.claimed_s} s"


def test_quota_and_memory_return_once_its_host_has_no_place_for_it(world: World, agent: Agent) -> None:
    claimed = world.claim("acme", world.profile(gib=2), workload=PROCESS)
    world.delete(claimed.id)
    assert world.quota("acme").used_slices == 1
    assert [each.id for each in agent.desired().tombstones] == [claimed.id]
    assert agent.confirm_gone(claimed.id)
    assert world.quota("acme").used_slices == 0
    assert [(each.used_share_permille, each.used_mem_bytes) for each in world.gpus()] == [(0, 0)]
    assert world.run(claims.list_slices, PageRequest()).items == []


def test_a_gpu_for_processes_is_looked_at_first_while_memory_is_left(world: World) -> None:
    world.tenant("acme")
    world.host(inventory=[for_processes(mem_bytes=2 * GIB)])

    def hint() -> bool:
        world.run(lambda session, _actor: schedulable.follow(session))
        return bool(world.run(lambda session, _actor: session.query(models.Gpu).one().schedulable))

    assert hint()
    claimed = world.claim("acme", world.profile(gib=2), workload=PROCESS)
    assert not hint()
    assert claimed.workload is PROCESS


def test_the_database_takes_no_third_workload(world: World, agent: Agent) -> None:
    claimed = world.claim("acme", world.profile(), workload=PROCESS)

    def spoil(session: Any, _actor: Any) -> None:
        session.get(models.Slice, claimed.id).workload = "other"
        session.flush()

    with pytest.raises(IntegrityError):
        world.run(spoil)


def test_it_is_not_moved_to_another_host(world: World, agent: Agent) -> None:
    """A move makes a slice for a VM, so it does not apply."""
    claimed = world.claim("acme", world.profile(), workload=PROCESS)
    world.host("h2")
    with refused(Code.SLICE_BOUND):
        world.run(moves.move_slice, claimed.id, SliceMove(host="h2"))
    assert (world.slice(claimed.id).workload, world.slice(claimed.id).state) == (PROCESS, SliceState.CLAIMED)
    assert agent.desired().slices[0].id == claimed.id


def test_it_stays_on_a_gpu_that_is_gone(world: World, agent: Agent) -> None:
    claimed = world.claim("acme", world.profile(), workload=PROCESS)
    agent.report(gpus=[for_processes(OTHER)])
    old, new = sorted(world.gpus(), key=lambda each: each.address)
    with refused(Code.CAPACITY_NONE) as caught:
        world.run(rehoming.rehome_gpu, old.id, GpuRehome(to=new.id), if_match=old.generation)
    assert set(caught.reasons) == {"workload.other"}
    assert world.slice(claimed.id).gpu == ADDRESS
