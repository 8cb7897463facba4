# SPDX-License-Identifier: Apache-2.0
"""A host's heartbeat: what it keeps alive, and what it must not keep alive."""

from dataclasses import replace
from uuid import UUID, uuid4

from vgpumgr_api.auth import tokens
from vgpumgr_api.fleet import heartbeats, hosts
from vgpumgr_api.installation import installation

from tests.api.conftest import Clock
from tests.api.world import Agent, World
from vgpumgr.wire.fleet import Heartbeat

LATE_S = 60


def beat(agent: Agent, **members: int | UUID) -> Heartbeat:
    said = {"boot_id": agent.boot_id, "agent_epoch": agent.agent_epoch, "seq": agent.seq}
    return Heartbeat(**(said | members))


def source(agent: Agent) -> heartbeats.Source:
    return heartbeats.source_of(agent.actor, agent.host_id)


def sent(world: World, beats: dict[heartbeats.Source, Heartbeat]) -> set[UUID]:
    return {one.host_id for one in world.database.run(lambda session: heartbeats.note(session, beats))}


def test_a_host_that_only_sends_heartbeats_stays_online(world: World, clock: Clock) -> None:
    agent = world.host("alive")
    world.host("silent")
    for _ in range(3):
        clock.advance(LATE_S)
        assert sent(world, {source(agent): beat(agent)}) == {agent.host_id}
    assert world.run(hosts.get_host, "alive").online
    assert not world.run(hosts.get_host, "silent").online


def test_a_heartbeat_that_names_another_report_than_the_last_does_not_count(world: World, clock: Clock) -> None:
    agent = world.host("one")
    clock.advance(2 * LATE_S)
    for wrong in (beat(agent, seq=agent.seq + 1), beat(agent, agent_epoch=2), beat(agent, boot_id=uuid4())):
        assert sent(world, {source(agent): wrong}) == set()
    assert not world.run(hosts.get_host, "one").online


def test_after_a_new_epoch_a_heartbeat_asks_for_a_report(world: World) -> None:
    agent = world.host("one")
    assert sent(world, {source(agent): beat(agent)}) == {agent.host_id}
    world.run(installation.new_epoch)
    assert sent(world, {source(agent): beat(agent)}) == set()
    assert agent.report()
    assert sent(world, {source(agent): beat(agent)}) == {agent.host_id}


def test_heartbeats_of_many_hosts_are_told_apart(world: World) -> None:
    first, second = world.host("first"), world.host("second")
    unknown = replace(source(first), host_id=uuid4())
    beats = {source(first): beat(first), source(second): beat(second, seq=99), unknown: beat(first)}
    assert sent(world, beats) == {first.host_id}
    with_anothers_credential = replace(source(first), host_id=second.host_id)
    assert sent(world, {with_anothers_credential: beat(second)}) == set()


def test_a_heartbeat_does_not_count_when_its_credential_was_revoked(world: World) -> None:
    first, second = world.host("first"), world.host("second")
    late = source(first)
    world.run(tokens.delete_token, late.credential)
    assert sent(world, {late: beat(first), source(second): beat(second)}) == {second.host_id}


def test_a_token_that_was_replaced_does_not_count_though_its_credential_is_there(world: World) -> None:
    agent = world.host("one")
    shown = source(agent)
    assert sent(world, {replace(shown, secret_hash="0" * 64): beat(agent)}) == set()
    certified = replace(shown, secret_hash="")
    assert sent(world, {certified: beat(agent)}) == {agent.host_id}


def test_a_report_that_is_under_way_is_not_waited_for(world: World, engine_name: str) -> None:
    agent = world.host("one")
    if engine_name == "sqlite":
        return  # has one writer at a time
    with world.database.engine.begin() as holder:
        holder.exec_driver_sql("SELECT 1 FROM host_reports FOR UPDATE")
        assert sent(world, {source(agent): beat(agent)}) == {agent.host_id}
