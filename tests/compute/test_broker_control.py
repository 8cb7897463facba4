# SPDX-License-Identifier: Apache-2.0
"""Operators and a running broker: live changes of its configuration, and its command line.

The broker is real. The test plays programs, supervisors and children.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.compute.broker_rig import (
    KILL,
    LIMIT_S,
    Broker,
    joined,
    tenant,
    until,
)
from vgpumgr.cli.main import main
from vgpumgr.cli.session import Session
from vgpumgr.errors import BrokerRefusedError

REFUSED_EXECUTOR, REFUSED_STOPPING = 6, 7


def test_a_configuration_is_taken_as_a_whole_or_not_at_all(broker: Broker) -> None:
    broker.tenants[0]["weight"] = 300
    broker.tenants[1]["weight"] = 0
    with pytest.raises(BrokerRefusedError) as caught:
        broker.control.set(broker.settings(), generation=1)
    assert (caught.value.code, caught.value.field) == ("field.invalid", "tenants.red.weight")
    assert broker.shown("blue")["weight"] == 100
    broker.tenants[1]["weight"] = 50
    assert broker.control.set(broker.settings(), generation=1) == 2
    assert [broker.shown(name)["weight"] for name in ("blue", "red")] == [300, 50]


def test_a_configuration_that_somebody_else_changed_meanwhile_is_refused(broker: Broker) -> None:
    assert broker.control.set(broker.settings(), generation=1) == 2
    with pytest.raises(BrokerRefusedError) as caught:
        broker.control.set(broker.settings(), generation=1)
    assert caught.value.code == "generation.stale"


def test_reservations_move_from_one_tenant_to_another_in_one_change(broker: Broker) -> None:
    latency = {"band": "latency", "reserve_ns": 9_000_000, "reserve_period_ns": 40_000_000}
    fair = {"band": "fair", "reserve_ns": 0, "reserve_period_ns": 0}
    generation = 1
    for first, second in ((latency, fair), (fair, latency), (latency, fair)):
        broker.tenants[0] |= first
        broker.tenants[1] |= second
        generation = broker.control.set(broker.settings(), generation=generation)
        assert [broker.shown(name)["band"] for name in ("blue", "red")] == [first["band"], second["band"]]
    broker.tenants[1] |= latency
    with pytest.raises(BrokerRefusedError) as caught:
        broker.control.set(broker.settings(), generation=generation)
    assert caught.value.field == "tenants.red.reserve_us"


def test_tenants_come_and_go_live(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["red"]) as (kept, _), joined(broker, found["blue"]) as (lost, child):
        broker.tenants = [tenant("red"), tenant("green")]
        broker.control.set(broker.settings(), generation=1)
        assert lost.answer().refusal == REFUSED_STOPPING
        assert not (broker.run / "blue.sock").exists()
        broker.tenants.append(tenant("blue"))
        with pytest.raises(BrokerRefusedError) as caught:
            broker.control.set(broker.settings(), generation=2)
        assert caught.value.code == "object.in_use"
        found["blue"].expect(KILL)
        found["blue"].exited(child)
        green = broker.any_supervisor()
        assert green.tenant == "green"
        with joined(broker, green):
            pass
        found["blue"].kill()
        until(lambda: {each["name"] for each in broker.control.show()["tenants"]} == {"red", "green"})
        kept.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            kept.socket.recv(1)


@pytest.mark.parametrize(
    "request_line",
    [
        b"",
        b"{",
        b"[]",
        b'{"op": "fly"}',
        b'{"op": 7}',
        b'{"op": "set"}',
        b'{"op": "set", "generation": 1}',
        b'{"op": "set", "generation": 1, "settings": {"programs": 3}}',
        b'{"op": "set", "generation": -1, "settings": {}}',
        b'{"op": "show"} trailing',
        b'{"op": "show", "op": "show"}',
        b"[" * 100,
        b'"\\ud800"',
        b'"\x01"',
        b"9" * 30,
        b"1.5",
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_a_code(broker: Broker, request_line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT_S)
        connection.connect(str(broker.run / "control"))
        connection.sendall(request_line + b"\n")
        answer = json.loads(connection.makefile().readline())
        assert answer["ok"] is False
        assert answer["code"] in ("request.invalid", "field.invalid")
        connection.sendall(b'{"op": "show"}\n')
        assert json.loads(connection.makefile().readline())["ok"] is True


def test_a_wrong_first_configuration_ends_the_broker_and_names_the_field(
    tmp_path: Path, broker_programs: tuple[Path, Path]
) -> None:
    broker = Broker(tmp_path, *broker_programs, tenants=[tenant("blue", memory_bytes=0)])
    broker.run = tmp_path / "run"
    broker.run.mkdir()
    process = broker.start(json.dumps(broker.settings()).encode(), stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert said.startswith("vgpumgr: field.invalid: tenants.blue.memory_bytes: ")


def test_the_command_line_shows_tenants_and_processes(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> str:
        session = Session(env={}, sleep=lambda _: None)
        assert main([*arguments, "--run-directory", str(broker.run)], session) == 0
        return capsys.readouterr().out

    with joined(broker, broker.supervisors()["blue"]):
        assert shown("broker", "show") == (
            "TENANT  WEIGHT  TIMESLICE  BAND  MEMORY  PROCESSES  LEASE  SUPERVISOR\n"
            "blue    100     5ms        fair  64M     1/4        none   up\n"
            "red     100     5ms        fair  64M     0/4        none   up\n"
            "\n"
            "TENANT  PID   CHILD  STATE    SUBMITTED  UNDER WAY  FAILED\n"
            "blue    {pid}  1      running  0          0          0\n"
        ).replace("PID ", "PID".ljust(len(str(os.getpid())))).format(pid=os.getpid())
        assert [tenant["name"] for tenant in json.loads(shown("broker", "show", "-o", "json"))["tenants"]]
        table = shown("top", "--broker", "--once").splitlines()
        assert table[0].split()[:4] == ["TENANT", "WEIGHT", "ENTITLED", "OBTAINED"]
        assert table[1].split() == [*("blue", "100", "-", "0.0%", "0us", "0", "-", "0us", "1/4", "64M", "0", "0")]
        rows = json.loads(shown("top", "--broker", "--once", "--tenant", "red", "-o", "json"))
        assert [(row["tenant"], row["processes"], row["obtained_share"]) for row in rows] == [("red", 0, 0.0)]


def test_the_command_line_stops_it(broker: Broker) -> None:
    assert main(["broker", "stop", "--run-directory", str(broker.run)], Session(env={})) == 0
    for supervisor in broker.supervisors().values():
        supervisor.kill()
    assert broker.process.wait(LIMIT_S) == 0
