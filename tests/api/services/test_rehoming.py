# SPDX-License-Identifier: Apache-2.0
"""Claims of a removed GPU move to another GPU of their host: all of them or none."""

from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session
from vgpumgr_api.actors import Actor
from vgpumgr_api.background import operating
from vgpumgr_api.claims import profiles
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import Database
from vgpumgr_api.fleet import drain, fencing, host_states, hosts, rehoming
from vgpumgr_api.installation import installation
from vgpumgr_api.operations import operations
from vgpumgr_api.resources.lookup import host_named

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.services.test_cards import IDS, THERE, card, events_of, labelled, of, plugged
from tests.api.world import ADDRESS, GIB, Agent, World, absent, gpu
from vgpumgr.wire.common import Band, Mode, Policy
from vgpumgr.wire.operations import GpuRehome, HostDrain, Operation, OperationCancel, OperationState
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Gpu, HostFence, HostState, ProfileCreate, Slice


@pytest.fixture
def agent(world: World) -> Agent:
    """A host with two cards."""
    return world.host("one", inventory=[card("GPU-a", ADDRESS), card("GPU-b", THERE)])


@pytest.fixture
def claimed(world: World, agent: Agent) -> Slice:
    """A claim on the first card, which is then taken out."""
    world.tenant("acme")
    labelled(world, of(world, "GPU-a"), only="a")
    made = world.claim("acme", world.profile(share=300, gib=4, name="part"), selector={"only": "a"})
    labelled(world, of(world, "GPU-a"), only=None)
    plugged(agent, card("GPU-b", THERE))
    return made


def rehomed(world: World, old: str = "GPU-a", new: str = "GPU-b", **options: Any) -> Operation:
    return rehomed_to(world, of(world, old), of(world, new), **options)


def rehomed_to(world: World, old: Gpu, new: Gpu, **options: Any) -> Operation:
    options = {"if_match": old.generation} | options
    done: Operation = world.run(rehoming.rehome_gpu, old.id, GpuRehome(to=new.id), **options)
    return done


def used(one: Gpu) -> tuple[int, int, int]:
    return one.used_share_permille, one.used_mem_bytes // GIB, one.used_reserve_permille


def test_claims_of_a_gpu_that_is_gone_go_to_another(world: World, agent: Agent, claimed: Slice) -> None:
    before, quota = agent.desired(), world.quota("acme")
    assert world.slice(claimed.id).state_reason == "gpu.absent"

    done = rehomed(world)

    moved = world.slice(claimed.id)
    assert (moved.gpu, moved.gpu_id, moved.state_reason) == (THERE, of(world, "GPU-b").id, "")
    assert (moved.share_permille, moved.mem_bytes, moved.generation) == (300, 4 * GIB, claimed.generation + 1)
    assert (used(of(world, "GPU-a")), used(of(world, "GPU-b"))) == ((0, 0, 0), (300, 4, 0))
    assert world.quota("acme") == quota
    after = agent.desired()
    assert after.generation == before.generation + 1
    assert [(each.gpu, each.card and each.card.uuid) for each in after.slices] == [(THERE, "GPU-b")]
    assert [(each.gpu, each.tenant) for each in after.groups] == [(THERE, "acme")]
    assert after.tombstones == []
    assert (done.kind, done.state, done.target) == ("gpu.rehome", "succeeded", f"one/{ADDRESS}")
    assert done.result == {
        "gpu": f"one/{THERE}",
        "gpu_id": str(moved.gpu_id),
        "moved": 1,
        "slices": [str(claimed.id)],
    }


def test_it_is_told_to_operators_and_to_the_tenant(world: World, claimed: Slice) -> None:
    rehomed(world)
    [event] = events_of(world, "gpu.rehomed")
    assert event.object == f"one/{ADDRESS}"
    some = [str(claimed.id)]
    assert event.detail == {"to": f"one/{THERE}", "slices": 1, "tenants": ["acme"], "some": some}
    [told] = [each for each in world.events(actor=world.tenant_actor("acme")).items if each.kind == "slice.rehomed"]
    assert (told.object, told.detail) == (str(claimed.id), {"from": ADDRESS, "gpu": THERE})


def test_a_card_that_was_replaced_in_its_slot_gives_its_claims_to_the_new_one(world: World, agent: Agent) -> None:
    world.tenant("acme")
    claimed = world.claim("acme", world.profile(share=300, gib=4), placement="pack")
    old = next(one for one in world.gpus() if one.id == claimed.gpu_id)
    others = [each for each in agent.inventory if each.uuid != old.uuid]
    plugged(agent, *others, card("GPU-new", old.address))
    rehomed(world, old.uuid, "GPU-new")
    assert world.slice(claimed.id).gpu == old.address


def test_a_card_that_comes_back_has_no_claims_any_more(world: World, agent: Agent, claimed: Slice) -> None:
    rehomed(world)
    plugged(agent, card("GPU-a", ADDRESS), card("GPU-b", THERE))
    assert (of(world, "GPU-a").present, used(of(world, "GPU-a"))) == (True, (0, 0, 0))
    assert world.slice(claimed.id).gpu == THERE


def test_what_moved_is_deleted_and_released_where_it_is(world: World, agent: Agent, claimed: Slice) -> None:
    rehomed(world)
    world.delete(claimed.id)
    assert agent.confirm_gone(claimed.id)
    assert used(of(world, "GPU-b")) == (0, 0, 0)
    assert world.quota("acme").used_slices == 0


def test_a_tombstone_stays_and_is_fulfilled_on_the_gpu_that_is_gone(world: World, agent: Agent, claimed: Slice) -> None:
    world.delete(claimed.id)
    done = rehomed(world)
    assert done.result is not None
    assert done.result["moved"] == 0
    assert agent.confirm_gone(claimed.id)
    assert (used(of(world, "GPU-a")), used(of(world, "GPU-b"))) == ((0, 0, 0), (0, 0, 0))


def test_a_claim_keeps_what_it_was_sold(world: World, agent: Agent) -> None:
    """It keeps its over-commitment ratio, and its reserved time in the new GPU's units."""
    world.tenant("acme")
    first = of(world, "GPU-a")
    world.set_gpu(first.id, fair_ratio_permille=2000, labels={"only": "a"})
    world.claim("acme", world.profile(share=500, gib=1), selector={"only": "a"})
    world.set_gpu(first.id, labels={"only": None})
    assert used(of(world, "GPU-a")) == (250, 1, 0)
    plugged(agent, card("GPU-b", THERE))
    rehomed(world)
    assert used(of(world, "GPU-b")) == (250, 1, 0)


def test_a_device_may_be_of_another_class_on_the_other_gpu(world: World, agent: Agent, claimed: Slice) -> None:
    other = gpu(THERE, types=(8, 16)).model_copy(update={"uuid": "GPU-b", "pci_ids": IDS})
    plugged(agent, other)
    rehomed(world)
    assert used(of(world, "GPU-b")) == (300, 8, 0)
    assert world.slice(claimed.id).mdev_type == "vgpumgr-8g"
    assert world.quota("acme").used_mem_bytes == 4 * GIB


def test_the_ledger_goes_on_with_another_life(world: World, database: Database, clock: Clock, claimed: Slice) -> None:
    clock.advance(60)
    rehomed(world)
    row = ledger.Grant
    with database.engine.connect() as connection:
        rows = connection.execute(
            select(row.gpu, row.ended_at.is_(None)).where(row.slice_id == claimed.id).order_by(row.started_at)
        ).all()
    assert [tuple(each) for each in rows] == [(ADDRESS, False), (THERE, True)]


def test_who_asks_again_moves_nothing_more(world: World, claimed: Slice) -> None:
    generation = of(world, "GPU-a").generation
    rehomed(world)
    moved = world.slice(claimed.id)
    with refused(Code.GENERATION_STALE):
        rehomed(world, if_match=generation)
    again = rehomed(world)
    assert again.result is not None
    assert (again.state, again.result["moved"]) == ("succeeded", 0)
    assert world.slice(claimed.id) == moved
    assert len(events_of(world, "gpu.rehomed")) == 1


def test_the_operation_is_done_and_can_be_looked_at_and_not_cancelled(world: World, claimed: Slice) -> None:
    done = rehomed(world)
    world.run(operating.look, done.id)
    found: Operation = world.run(operations.get_operation, done.id)
    assert (found.state, found.done, found.progress.left) == (OperationState.SUCCEEDED, True, 0)
    with refused(Code.OPERATION_DONE):
        world.run(operating.cancel_operation, done.id, OperationCancel(undo=True))


def test_operators_only(world: World, claimed: Slice) -> None:
    with refused(Code.PERMISSION_DENIED):
        rehomed(world, actor=world.tenant_actor("acme"))


def test_without_if_match_nothing_moves(world: World, claimed: Slice) -> None:
    with refused(Code.GENERATION_REQUIRED):
        rehomed(world, if_match=None)


def test_a_gpu_that_is_there_keeps_its_claims(world: World, agent: Agent, claimed: Slice) -> None:
    plugged(agent, card("GPU-a", ADDRESS), card("GPU-b", THERE))
    with refused(Code.GPU_PRESENT):
        rehomed(world)
    assert world.slice(claimed.id).gpu == ADDRESS


def test_only_to_another_gpu_of_the_same_host(world: World, claimed: Slice) -> None:
    world.host("two", inventory=[card("GPU-c", ADDRESS)])
    for new in ("GPU-c", "GPU-a"):
        with refused(Code.FIELD_INVALID) as caught:
            rehomed(world, new=new)
        assert caught.refusal is not None
        assert [reason.field for reason in caught.refusal.reasons] == ["$.to"]
    old = of(world, "GPU-a")
    with refused(Code.OBJECT_UNKNOWN) as caught:
        world.run(rehoming.rehome_gpu, old.id, GpuRehome(to=uuid4()), if_match=old.generation)
    assert caught.refusal is not None
    assert [reason.field for reason in caught.refusal.reasons] == ["$.to"]
    with refused(Code.OBJECT_UNKNOWN):
        world.run(rehoming.rehome_gpu, uuid4(), GpuRehome(to=old.id), if_match=1)


def test_a_device_that_the_host_still_has_is_named(world: World, agent: Agent, claimed: Slice) -> None:
    said = absent(claimed.id, present=True, open=True)
    assert agent.report(desired=agent.desired(), slices=[said])
    with refused(Code.OBJECT_IN_USE) as caught:
        rehomed(world)
    assert caught.refusal is not None
    assert [reason.about and reason.about.id for reason in caught.refusal.reasons] == [claimed.id]
    assert agent.report(desired=agent.desired(), slices=[absent(claimed.id)])
    assert rehomed(world).done


@pytest.mark.parametrize(
    ("other", "code"),
    [
        ({"mem_bytes": 2 * GIB, "types": (1, 2)}, "type.none"),
        ({"engine": "other"}, "kind.other"),
        ({"backend": "other"}, "kind.other"),
        ({"policy": Policy.EQUAL_SHARE}, "policy.other"),
    ],
)
def test_a_gpu_of_another_kind_takes_none(
    world: World, agent: Agent, claimed: Slice, other: dict[str, Any], code: str
) -> None:
    size = {name: value for name, value in other.items() if name in ("mem_bytes", "types")}
    said = {"uuid": "GPU-b", "pci_ids": IDS} | {name: value for name, value in other.items() if name not in size}
    plugged(agent, gpu(THERE, **size).model_copy(update=said))
    with refused(Code.CAPACITY_NONE) as caught:
        rehomed(world)
    assert set(caught.reasons) == {code}


def test_all_claims_fit_or_none_moves(world: World, agent: Agent) -> None:
    world.tenant("acme")
    half = world.profile(share=400, gib=4)
    labelled(world, of(world, "GPU-a"), only="a")
    there = [world.claim("acme", half, selector={"only": "a"}) for _ in range(2)]
    labelled(world, of(world, "GPU-a"), only=None)
    plugged(agent, card("GPU-b", THERE))
    full = world.claim("acme", world.profile(share=300, gib=12))
    with refused(Code.CAPACITY_NONE) as caught:
        rehomed(world)
    assert set(caught.reasons) == {"share.full", "memory.full"}
    assert [world.slice(one.id).gpu for one in there] == [ADDRESS, ADDRESS]
    world.delete(full.id)
    assert agent.confirm_gone(full.id)
    rehomed(world)
    assert [world.slice(one.id).gpu for one in there] == [THERE, THERE]
    assert used(of(world, "GPU-b")) == (800, 8, 0)


def test_a_gpu_without_the_labels_takes_none(world: World, claimed: Slice) -> None:
    """It is no longer known which of the labels a claim had selected."""
    labelled(world, of(world, "GPU-a"), rack="7")
    with refused(Code.CAPACITY_NONE) as caught:
        rehomed(world)
    assert caught.refusal is not None
    assert set(caught.reasons) == {"labels.other"}
    assert "rack=7" in caught.refusal.detail
    labelled(world, of(world, "GPU-b"), rack="7")
    assert rehomed(world).done


def test_slices_that_keep_apart_stay_apart(world: World, agent: Agent) -> None:
    world.tenant("acme")
    small = world.profile(share=100, gib=1)
    apart = {"key": "db", "level": "gpu"}
    one, _ = (world.claim("acme", small, anti_affinity=apart) for _ in range(2))
    old = next(each for each in world.gpus() if each.id == one.gpu_id)
    left = next(each for each in agent.inventory if each.uuid != old.uuid)
    plugged(agent, left)
    with refused(Code.CAPACITY_NONE) as caught:
        rehomed(world, old.uuid, left.uuid)
    assert set(caught.reasons) == {"anti_affinity.taken"}


def test_a_host_that_is_silent_is_not_asked_for_more(world: World, clock: Clock, claimed: Slice) -> None:
    clock.advance(91)
    with refused(Code.CAPACITY_NONE) as caught:
        rehomed(world)
    assert set(caught.reasons) == {"host.offline"}


def test_a_gpu_that_is_gone_as_well_takes_none(world: World, agent: Agent, claimed: Slice) -> None:
    plugged(agent)
    with refused(Code.CAPACITY_NONE) as caught:
        rehomed(world)
    assert set(caught.reasons) == {"gpu.absent"}


def test_not_before_a_restored_database_is_compared(world: World, claimed: Slice) -> None:
    world.run(installation.new_epoch)
    with refused(Code.CAPACITY_NONE) as caught:
        rehomed(world)
    assert "host.unconfirmed" in caught.reasons


def test_not_while_the_host_is_drained(world: World, claimed: Slice) -> None:
    generation = world.run(hosts.get_host, "one").generation
    world.run(drain.drain_host, "one", HostDrain(), if_match=generation)
    with refused(Code.HOST_DRAINING):
        rehomed(world)


@pytest.mark.parametrize("state", [HostState.CORDONED, HostState.MAINTENANCE])
def test_while_the_host_takes_no_claims(world: World, claimed: Slice, state: HostState) -> None:
    """An operator replaces a card while the host is closed to claims."""

    def enter(session: Session, actor: Actor) -> None:
        host_states.enter(session, actor, host_named(session, "one", lock=True), state)

    world.run(enter)
    rehomed(world)
    assert world.slice(claimed.id).gpu == THERE


def test_what_was_lost_with_its_host_does_not_move(world: World, claimed: Slice) -> None:
    generation = world.run(hosts.get_host, "one").generation
    world.run(fencing.fence_host, "one", HostFence(confirm="one", force=True), if_match=generation)
    with refused(Code.HOST_FENCED):
        rehomed(world)


def test_time_to_reserve_is_counted_as_on_the_new_gpu(world: World, agent: Agent) -> None:
    def latency(uuid: str, address: str, max_chunk_us: int) -> Any:
        said = {"reserve_limit_permille": 900, "max_chunk_us": max_chunk_us}
        return card(uuid, address).model_copy(update=said)

    plugged(agent, latency("GPU-a", ADDRESS, 500))
    world.tenant("acme")
    wanted = ProfileCreate(
        name="quick",
        share_permille=200,
        mem_bytes=GIB,
        mode=Mode.STRICT,
        band=Band.LATENCY,
        reserve_period_us=10_000,
    )
    world.claim("acme", world.run(profiles.create_profile, wanted))
    assert used(of(world, "GPU-a")) == (200, 1, 250)
    plugged(agent, latency("GPU-b", THERE, 3000))
    with refused(Code.CAPACITY_NONE) as caught:
        rehomed(world)
    assert set(caught.reasons) == {"reserve.full"}
    plugged(agent, latency("GPU-b", THERE, 1000))
    rehomed(world)
    assert (used(of(world, "GPU-a")), used(of(world, "GPU-b"))) == ((0, 0, 0), (200, 1, 300))
