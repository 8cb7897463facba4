# SPDX-License-Identifier: Apache-2.0
"""What the end of a program, child, supervisor or broker causes.

The broker is real. The test plays programs, supervisors and children.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time

import pytest

from tests.compute.broker_rig import (
    CHILD_STATE_OFFSET,
    KILL,
    LIMIT_S,
    Broker,
    joined,
    tenant,
)
from tests.compute.executor_rig import wait_for
from vgpumgr.errors import BrokerUnreachableError

REFUSED_EXECUTOR, REFUSED_STOPPING = 6, 7
CHILD_LOST = 2


def test_the_end_of_a_program_kills_its_child(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    with joined(broker, supervisor) as (program, child):
        program.close()
        assert supervisor.expect(KILL)[1] == child.number
        supervisor.exited(child)
    assert broker.shown("blue")["processes"] == []


def test_refused_programs_cost_their_tenant_a_line_a_second(broker: Broker) -> None:
    broker.supervisors()
    many = 400
    begun = time.monotonic()
    for name in ("blue", "red"):
        for _ in range(many):
            broker.connect(name).hello(version=99).answer()
    for name in ("blue", "red"):
        assert broker.shown(name)["refused"]["version"] == many

    def told(name: str) -> tuple[int, int]:
        """The number of lines, and the number of refusals that they report."""
        lines = [line for line in broker.log().splitlines() if f"tenant={name} event=client.refused" in line]
        counts = [int(line.rpartition("left_out=")[2]) if "left_out=" in line else 1 for line in lines]
        return len(counts), sum(counts)

    wait_for(lambda: all(told(name)[1] == many for name in ("blue", "red")), "the count of refused programs")
    for name in ("blue", "red"):
        assert told(name)[0] <= 2 + time.monotonic() - begun


def test_the_log_tells_a_programs_end_from_a_kill_and_names_whose_pid_it_is(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    with joined(broker, supervisor) as (program, child):
        program.close()
        supervisor.expect(KILL)
        supervisor.exited(child, reason="the program has ended and its child was removed")
    with joined(broker, supervisor) as (program, child):
        program.hello()
        supervisor.expect(KILL)
        supervisor.exited(child, reason="it broke the protocol")
    with joined(broker, supervisor) as (_, child):
        supervisor.exited(child, status=0)
    wait_for(lambda: broker.shown("blue")["processes"] == [], "the end of the third child")
    log = broker.log()
    assert log.count(f"level=info event=ready directory={broker.run} tenants=2\n") == 1
    pid = f"program_pid={os.getpid()}"
    assert f"event=child.ended child=1 {pid} the program has ended and its child was removed\n" in log
    assert f"event=child.ended child=2 {pid} the child was ended by signal 9: it broke the protocol\n" in log
    assert f"level=warning tenant=blue event=child.ended child=3 {pid} the child exited with status 0\n" in log
    assert f"event=client.refused {pid} " in log
    assert f"event=supervisor.started supervisor_pid={supervisor.pid}\n" in log


def test_the_end_of_a_child_is_told_to_its_program(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    with joined(broker, supervisor) as (program, child):
        supervisor.exited(child, status=11, reason="out of bounds")
        answer = program.answer()
        assert (answer.refusal, answer.reason) == (
            REFUSED_EXECUTOR,
            "the child was ended by signal 11: out of bounds",
        )
        assert program.is_hung_up()
        assert child.window.memory[CHILD_STATE_OFFSET] == CHILD_LOST


def test_a_supervisor_that_dies_takes_its_tenants_programs_and_nobody_elses_and_comes_back(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (lost, child), joined(broker, found["red"]) as (kept, _):
        found["blue"].kill()
        child.close()
        assert lost.answer().refusal == REFUSED_EXECUTOR
        assert lost.is_hung_up()
        assert child.window.memory[CHILD_STATE_OFFSET] == CHILD_LOST
        again = broker.any_supervisor()
        assert again.tenant == "blue"
        with joined(broker, again):
            assert [len(broker.shown(name)["processes"]) for name in ("blue", "red")] == [1, 1]
        kept.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            kept.socket.recv(1)


def test_a_supervisor_that_makes_no_sense_is_replaced(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    supervisor.socket.send(b"nonsense")
    assert broker.any_supervisor().tenant == "blue"
    assert broker.shown("blue")["supervisor"]["starts"] == 2


def test_a_supervisor_that_dies_at_once_is_started_with_growing_pauses(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    for _ in range(3):
        supervisor.kill()
        supervisor = broker.any_supervisor()
    assert broker.shown("blue")["supervisor"]["starts"] == 4


def test_supervisors_die_with_a_broker_that_is_killed_and_programs_hear_of_it(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (program, _):
        pidfd = os.pidfd_open(found["blue"].pid)
        broker.process.kill()
        broker.process.wait(LIMIT_S)
        assert program.is_hung_up()
        poll = select.poll()
        poll.register(pidfd)
        assert poll.poll(LIMIT_S * 1000)
        os.close(pidfd)
    # The sockets of the killed broker remain; the next broker removes them from the directory.
    assert (broker.run / "red.sock").exists()
    broker.tenants = [tenant("blue")]
    broker.process = broker.start(json.dumps(broker.settings()).encode())
    assert broker.notices.recv(64) == b"READY=1"
    assert broker.control.show()["generation"] == 1
    assert not (broker.run / "red.sock").exists()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stop"])
def test_a_broker_that_is_stopped_ends_its_children_first(broker: Broker, how: str) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (program, child):
        if how == "stop":
            broker.control.stop()
        else:
            broker.process.send_signal(signal.Signals[how])
        answer = program.answer()
        assert answer.refusal == REFUSED_STOPPING
        assert found["blue"].expect(KILL)[1] == child.number
        found["blue"].exited(child)
        for supervisor in found.values():
            with pytest.raises((AssertionError, ConnectionResetError)):
                supervisor.expect(KILL)
            supervisor.kill()
    assert broker.process.wait(LIMIT_S) == 0
    assert not list(broker.run.glob("red.sock"))
    with pytest.raises(BrokerUnreachableError):
        broker.control.show()


def test_a_second_broker_does_not_take_the_directory(broker: Broker) -> None:
    second = broker.start(json.dumps(broker.settings()).encode(), stderr=subprocess.PIPE)
    _, said = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 4
    assert said == f"vgpumgr: broker.running: the broker with pid {broker.process.pid} has this directory\n"
    assert broker.control.show()["generation"] == 1
