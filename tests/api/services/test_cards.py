# SPDX-License-Identifier: Apache-2.0
"""Claims, labels and operators' settings belong to a card, wherever it is plugged into its host."""

from typing import Any

import pytest
from sqlalchemy import select
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import Database
from vgpumgr_api.fleet import gpus

from tests.api.conftest import Clock
from tests.api.services.test_metering import Told
from tests.api.services.test_reports import group, used
from tests.api.world import ADDRESS, GIB, Agent, World, gpu
from vgpumgr.wire.common import IdentifiedBy
from vgpumgr.wire.fleet import ReportedGpu
from vgpumgr.wire.resources import Event, Gpu, GpuPatch, Slice

THERE = "0000:00:11.0"
IDS = "10de:2330"


def card(uuid: str, address: str, *, mem_bytes: int = 16 * GIB, **says: str) -> ReportedGpu:
    said: dict[str, Any] = {"uuid": uuid, "pci_ids": IDS} | says
    return gpu(address, mem_bytes=mem_bytes).model_copy(update=said)


def plugged(agent: Agent, *cards: ReportedGpu) -> None:
    agent.inventory = list(cards)
    assert agent.report()


def labelled(world: World, one: Gpu, **labels: str) -> None:
    world.run(gpus.patch_gpu, one.id, GpuPatch(labels=labels), if_match=one.generation)


def of(world: World, uuid: str) -> Gpu:
    return next(one for one in world.gpus() if one.uuid == uuid)


def events_of(world: World, kind: str) -> list[Event]:
    return [event for event in world.events().items if event.kind == kind]


@pytest.fixture
def agent(world: World) -> Agent:
    """A host with one card."""
    return world.host("one", inventory=[card("GPU-a", ADDRESS)])


@pytest.fixture
def claimed(world: World, agent: Agent) -> Slice:
    world.tenant("acme")
    return world.claim("acme", world.profile(share=300, gib=4))


def test_a_card_that_moves_keeps_what_is_claimed_of_it(world: World, agent: Agent, claimed: Slice) -> None:
    labelled(world, world.gpus()[0], rack="7")
    generation = agent.desired().generation

    plugged(agent, card("GPU-a", THERE))

    [one] = world.gpus()
    assert (one.id, one.address, one.present, one.labels) == (claimed.gpu_id, THERE, True, {"rack": "7"})
    assert one.used_share_permille == 300
    assert world.slice(claimed.id).gpu == THERE
    desired = agent.desired()
    assert desired.generation > generation
    assert [(each.gpu, each.card and each.card.uuid) for each in desired.slices] == [(THERE, "GPU-a")]
    [event] = events_of(world, "gpu.moved")
    assert event.object == f"one/{THERE}"
    assert event.detail == {"from": ADDRESS, "slices": 1, "tenants": ["acme"], "some": [str(claimed.id)]}


def test_two_cards_that_are_swapped_do_not_change_places(world: World, agent: Agent, claimed: Slice) -> None:
    plugged(agent, card("GPU-a", ADDRESS), card("GPU-b", THERE, mem_bytes=64 * GIB))
    for uuid in ("GPU-a", "GPU-b"):
        labelled(world, of(world, uuid), card=uuid)

    plugged(agent, card("GPU-b", ADDRESS, mem_bytes=64 * GIB), card("GPU-a", THERE))

    assert [(one.address, one.uuid, one.labels["card"], one.mem_bytes // GIB) for one in world.gpus()] == [
        (ADDRESS, "GPU-b", "GPU-b", 64),
        (THERE, "GPU-a", "GPU-a", 16),
    ]
    assert of(world, "GPU-a").used_share_permille == 300
    assert world.slice(claimed.id).gpu == THERE
    large = world.claim("acme", world.profile(share=100, gib=16), placement="spread")
    assert large.gpu_id == of(world, "GPU-b").id


def test_who_reports_the_same_again_changes_nothing(world: World, agent: Agent) -> None:
    plugged(agent, card("GPU-b", ADDRESS), card("GPU-a", THERE))
    generation, events = agent.desired().generation, len(world.events().items)
    plugged(agent, card("GPU-b", ADDRESS), card("GPU-a", THERE))
    assert agent.desired().generation == generation
    assert len(world.events().items) == events


def test_another_card_in_its_place_gets_nothing_of_one_that_is_gone(world: World, agent: Agent, claimed: Slice) -> None:
    labelled(world, world.gpus()[0], rack="7")

    plugged(agent, card("GPU-b", ADDRESS))

    new, gone = of(world, "GPU-b"), of(world, "GPU-a")
    assert (new.address, new.present, new.used_share_permille, new.labels) == (ADDRESS, True, 0, {})
    assert (gone.id, gone.present, gone.labels) == (claimed.gpu_id, False, {"rack": "7"})
    assert gone.address.startswith("ffffffff:")
    # An agent that knows only addresses finds no GPU there, rather than the wrong one.
    assert [each.gpu for each in agent.desired().slices] == [gone.address]

    plugged(agent, card("GPU-a", ADDRESS))
    assert (of(world, "GPU-a").address, of(world, "GPU-a").present) == (ADDRESS, True)
    assert not of(world, "GPU-b").present
    assert world.slice(claimed.id).gpu == ADDRESS


def test_an_absent_card_says_what_is_hit(world: World, agent: Agent, claimed: Slice) -> None:
    assert (claimed.state_reason, claimed.state_detail) == ("", "")
    plugged(agent)
    found = world.slice(claimed.id)
    assert (found.state, found.state_reason) == ("claimed", "gpu.absent")
    assert "not in its host" in found.state_detail
    [event] = events_of(world, "gpu.absent")
    assert event.detail == {"slices": 1, "tenants": ["acme"], "some": [str(claimed.id)]}

    plugged(agent, card("GPU-a", ADDRESS))
    assert world.slice(claimed.id).state_reason == ""


def test_a_slice_that_was_given_up_says_why_it_is_as_it_is(world: World, agent: Agent, claimed: Slice) -> None:
    world.delete(claimed.id)
    plugged(agent)
    assert world.slice(claimed.id).state_reason == ""


def test_a_serial_number_tells_cards_that_have_no_uuid(world: World, agent: Agent) -> None:
    plugged(agent, card("", ADDRESS, serial="11"), card("", THERE, serial="22"))
    first, second = world.gpus()
    assert first.uuid == "GPU-a"  # the same card, but its UUID is not readable now
    plugged(agent, card("", ADDRESS, serial="22"), card("", THERE, serial="11"))
    assert {(one.id, one.serial, one.address) for one in world.gpus()} == {
        (first.id, "11", THERE),
        (second.id, "22", ADDRESS),
    }
    assert second.identified_by is IdentifiedBy.SERIAL


def test_what_several_cards_say_identifies_none(world: World, agent: Agent) -> None:
    plugged(agent, card("", ADDRESS, serial="1"), card("", THERE, serial="1"))
    before = {(one.id, one.address) for one in world.gpus()}
    assert [one.serial for one in world.gpus()] == ["", ""]
    plugged(agent, card("", THERE, serial="1"), card("", ADDRESS, serial="1"))
    assert {(one.id, one.address) for one in world.gpus()} == before


def test_without_either_the_address_tells_as_long_as_the_kind_of_card_is_the_same(world: World) -> None:
    agent = world.host("two", inventory=[card("", ADDRESS)])
    [one] = world.gpus()
    assert one.identified_by is IdentifiedBy.ADDRESS
    plugged(agent, card("", ADDRESS, pci_ids="1002:74a1"))
    new, gone = world.gpus()
    assert (new.pci_ids, new.present) == ("1002:74a1", True)
    assert (gone.id, gone.present) == (one.id, False)


def test_an_agent_of_before_and_its_successor_speak_of_the_same_cards(world: World) -> None:
    agent = world.host("two", inventory=[gpu()])
    [one] = world.gpus()
    assert all(each.card is None for each in agent.desired().groups)
    plugged(agent, card("GPU-z", ADDRESS))
    assert [(each.id, each.uuid) for each in world.gpus()] == [(one.id, "GPU-z")]
    plugged(agent, gpu())  # the agent went back to the release before
    assert [(each.id, each.uuid, each.present) for each in world.gpus()] == [(one.id, "GPU-z", True)]


def test_counters_follow_the_card(world: World, agent: Agent, claimed: Slice) -> None:
    agent.inventory = [card("GPU-a", THERE), card("GPU-b", ADDRESS)]
    assert agent.report(groups=[group("acme", THERE, run_ns=9), group("acme", ADDRESS, run_ns=1)])
    assert [(one.gpu, one.run_ns) for one in used(world)] == [(THERE, 9)]


@pytest.mark.parametrize("deleted", [False, True])
def test_what_a_card_counted_is_billed_wherever_it_was(
    database: Database, world: World, agent: Agent, claimed: Slice, clock: Clock, deleted: bool
) -> None:
    told, hour = Told(agent), int(clock().timestamp()) // 3600
    if deleted:
        world.delete(claimed.id)
    clock.advance(60)
    plugged(agent, card("GPU-a", THERE))
    told.tell(told.reading(100, hour=hour), told.reading(10, hour=hour, gpu=THERE))

    with database.engine.connect() as connection:
        booked = connection.execute(select(ledger.LedgerEntry.gpu, ledger.LedgerEntry.run_ns)).all()
        lives = connection.execute(
            select(ledger.Grant.gpu, ledger.Grant.started_at, ledger.Grant.deleted_at, ledger.Grant.ended_at).order_by(
                ledger.Grant.started_at
            )
        ).all()
    assert sorted(tuple(row) for row in booked) == [(ADDRESS, 100), (THERE, 10)]
    first, second = lives
    assert (first.gpu, second.gpu) == (ADDRESS, THERE)
    assert first.ended_at == second.started_at
    assert (second.deleted_at == second.started_at) is deleted
    assert second.ended_at is None
