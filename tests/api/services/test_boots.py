# SPDX-License-Identifier: Apache-2.0
"""A host whose disk was copied to a second machine: two boots of one identity are alive at the same time."""

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import agents, boots, heartbeats, hosts
from vgpumgr_api.installation import liveness

from tests.api.conftest import Clock
from tests.api.services.test_cards import events_of
from tests.api.world import Agent, World
from vgpumgr.wire.fleet import Heartbeat, Report
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Host

TAKEN, DROPPED = "taken", "dropped"


@dataclass
class Machine:
    """A machine that reports as the host: one boot at a time."""

    agent: Agent
    agent_epoch: int
    boot_id: UUID = field(default_factory=uuid4)
    seq: int = 0

    def report(self, *, again: bool = False) -> Any:
        """Sends a report; returns whether it was taken or dropped, or the code of a refusal."""
        self.seq += not again
        said: dict[str, Any] = {"boot_id": self.boot_id, "agent_epoch": self.agent_epoch, "seq": self.seq}
        quiet: dict[str, Any] = {"groups": [], "slices": [], "refusals": [], "gpus": self.agent.inventory}
        report = Report(**said, **quiet, agent_version="1", desired_epoch=None, desired_generation=0)
        actor = self.agent.actor
        answer = self.agent.database.run(lambda session: agents.report(session, actor, self.agent.name, report))
        if isinstance(answer, Refusal):
            return answer.code
        return TAKEN if answer.accepted else DROPPED

    def beat(self) -> bool:
        """Returns whether the API accepts that nothing has changed since the machine's last report."""
        said = Heartbeat(boot_id=self.boot_id, agent_epoch=self.agent_epoch, seq=self.seq)
        source = heartbeats.source_of(self.agent.actor, self.agent.host_id)
        return bool(self.agent.database.run(lambda session: heartbeats.note(session, {source: said})))

    def rebooted(self) -> "Machine":
        return replace(self, boot_id=uuid4(), agent_epoch=self.agent_epoch + 1, seq=0)


@pytest.fixture
def agent(world: World) -> Agent:
    return world.host("one")


@pytest.fixture
def first(agent: Agent) -> Machine:
    """The original machine."""
    made = Machine(agent, agent_epoch=5)
    assert replace(made, boot_id=agent.boot_id).report() == TAKEN
    made.boot_id = agent.boot_id
    made.seq = 1
    return made


@pytest.fixture
def copy(first: Machine) -> Machine:
    """The other machine, started with a copy of the first one's disk."""
    return first.rebooted()


def host_of(world: World) -> Host:
    found: Host = world.run(hosts.get_host, "one")
    return found


def alarmed(first: Machine, copy: Machine) -> None:
    assert copy.report() == TAKEN
    assert [first.report(), first.report()] == [DROPPED, Code.HOST_SECOND_BOOT]


def tend(world: World) -> None:
    world.database.run(boots.forget)


def pass_time(world: World, clock: Clock, seconds: int, *machines: Machine) -> None:
    """Passes time while the API runs and these machines report."""
    for _ in range(seconds // 10):
        clock.advance(10)
        world.database.run(liveness.beat)
        for each in machines:
            each.report()
        tend(world)


def test_two_machines_with_one_identity_are_noticed(world: World, first: Machine, copy: Machine) -> None:
    assert copy.report() == TAKEN
    assert first.report() == DROPPED  # the report may have been under way before
    assert host_of(world).state_reason == ""
    assert first.report() is Code.HOST_SECOND_BOOT
    host = host_of(world)
    assert host.state_reason == "host.second_boot"
    assert host.second_boot_at is not None
    [event] = events_of(world, "host.second_boot")
    assert (event.object, event.detail) == ("one", {"boots": [str(copy.boot_id), str(first.boot_id)]})


def test_the_second_is_refused_and_the_first_served(world: World, clock: Clock, first: Machine, copy: Machine) -> None:
    alarmed(first, copy)
    for _ in range(5):
        clock.advance(20)
        assert copy.report() == TAKEN
        assert first.report() is Code.HOST_SECOND_BOOT
    assert len(events_of(world, "host.second_boot")) == 1


def test_machines_whose_agents_started_as_often_are_told_apart(first: Machine, copy: Machine) -> None:
    assert copy.report() == TAKEN
    other = first.rebooted()
    assert other.agent_epoch == copy.agent_epoch
    assert [other.report(), other.report()] == [DROPPED, Code.HOST_SECOND_BOOT]


def test_a_later_start_of_its_agent_does_not_make_the_second_the_first(first: Machine, copy: Machine) -> None:
    alarmed(first, copy)
    first.agent_epoch, first.seq = copy.agent_epoch + 1, 0
    assert first.report() is Code.HOST_SECOND_BOOT
    assert copy.report() == TAKEN


@pytest.mark.parametrize("late", [0, 1])
def test_a_reboot_is_no_alarm(world: World, clock: Clock, first: Machine, late: int) -> None:
    """The same holds for a report of the boot before that was under way or came twice."""
    after = first.rebooted()
    assert after.report() == TAKEN
    for again in (False, True, True)[: 3 * late]:
        assert first.report(again=again) == DROPPED
    assert after.report() == TAKEN
    pass_time(world, clock, 200, after)
    assert after.rebooted().report() == TAKEN
    assert host_of(world).state_reason == ""
    assert events_of(world, "host.second_boot") == []


def test_a_boot_that_was_silent_is_no_second_one(world: World, clock: Clock, first: Machine) -> None:
    """No other boot is alive, so reports of the boot before were only late."""
    after = first.rebooted()
    assert after.report() == TAKEN
    clock.advance(100)
    assert [first.report() for _ in range(3)] == [DROPPED] * 3
    assert host_of(world).state_reason == ""


def test_the_alarm_ends_when_only_the_recorded_one_is_heard(
    world: World, clock: Clock, first: Machine, copy: Machine
) -> None:
    alarmed(first, copy)
    pass_time(world, clock, 90, copy)
    assert host_of(world).state_reason == "host.second_boot"
    pass_time(world, clock, 20, copy)
    assert (host_of(world).state_reason, host_of(world).second_boot_at) == ("", None)
    assert len(events_of(world, "host.one_boot")) == 1
    assert [first.report(), first.report()] == [Code.HOST_SECOND_BOOT] * 2
    assert len(events_of(world, "host.second_boot")) == 2


def test_the_one_that_is_left_is_served_when_the_recorded_one_is_off(
    world: World, clock: Clock, first: Machine, copy: Machine
) -> None:
    alarmed(first, copy)
    pass_time(world, clock, 90, first)
    assert first.report() is Code.HOST_SECOND_BOOT
    pass_time(world, clock, 10)
    assert first.report() == TAKEN
    pass_time(world, clock, 20, first)
    assert host_of(world).state_reason == ""
    assert host_of(world).online


def test_the_recorded_one_may_reboot_meanwhile(world: World, clock: Clock, first: Machine, copy: Machine) -> None:
    """A new boot counts as the second machine until the boot before has been silent for as long as a dead host."""
    alarmed(first, copy)
    after = copy.rebooted()
    assert after.report() is Code.HOST_SECOND_BOOT
    clock.advance(91)
    assert after.report() == TAKEN


def test_a_heartbeat_keeps_the_recorded_one_alive(clock: Clock, first: Machine, copy: Machine) -> None:
    alarmed(first, copy)
    for _ in range(6):
        clock.advance(30)
        assert copy.beat()
        assert not first.beat()
        assert first.report() is Code.HOST_SECOND_BOOT


def test_time_without_an_api_ends_no_alarm(world: World, clock: Clock, first: Machine, copy: Machine) -> None:
    pass_time(world, clock, 100, first)
    alarmed(first, copy)
    clock.advance(600)
    world.database.run(liveness.beat)
    tend(world)
    assert host_of(world).state_reason == "host.second_boot"
    assert copy.report() == TAKEN
    assert first.report() is Code.HOST_SECOND_BOOT
    assert len(events_of(world, "host.second_boot")) == 1


def test_an_enrolment_ends_it(world: World, first: Machine, copy: Machine) -> None:
    """The old credential is void for both machines."""
    alarmed(first, copy)
    world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token)
    assert host_of(world).state_reason == ""
