# SPDX-License-Identifier: Apache-2.0
"""Leases that the broker lends to children, and what happens to children that do not yield.

The broker is real. The test plays programs, supervisors and children.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from tests.compute.broker_rig import (
    FREEZE,
    KILL,
    LENT,
    NONE,
    READY,
    THAW,
    WANT,
    YIELD,
    Broker,
    descriptors,
    joined,
    until,
)

REFUSED_EXECUTOR, REFUSED_STOPPING = 6, 7


def test_a_child_that_asks_is_lent_the_accelerator_and_hands_it_over(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (_, blue), joined(broker, found["red"]) as (_, red):
        blue.request(READY)
        until(lambda: blue.lease[0] == LENT)
        assert blue.lease == (LENT, 1, 2**64 - 1)
        blue.say(busy=True, number=1)
        red.request(READY)
        until(lambda: blue.lease[2] != 2**64 - 1)
        assert red.lease[0] == NONE
        blue.say(busy=False, number=1)
        blue.request(YIELD, lease=1)
        until(lambda: red.lease[0] == LENT)
        assert blue.lease[0] == NONE
        shown = broker.shown("red")
        assert (shown["holds_lease"], shown["stats"]["leases"]) == (True, 1)


def test_a_child_that_does_not_yield_is_frozen_and_the_next_one_computes(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (_, blue), joined(broker, found["red"]) as (_, red):
        blue.request(READY)
        until(lambda: blue.lease[0] == LENT)
        blue.say(busy=True, number=1)
        red.request(READY)
        found["blue"].expect(FREEZE)
        until(lambda: red.lease[0] == LENT)
        red.say(busy=True, number=1)
        red.say(busy=False, number=1)
        red.request(YIELD, lease=1)
        # The child was stopped in the middle of its work, so it gets the next turn.
        found["blue"].expect(THAW)
        until(lambda: blue.lease[:2] == (LENT, 2))
        assert broker.shown("blue")["stats"]["gates"] == 1


def test_a_supervisor_that_does_not_freeze_its_children_is_killed(
    tmp_path: Path, broker_programs: tuple[Path, Path]
) -> None:
    with Broker(tmp_path, *broker_programs, engine={"gate_limit_ns": 100_000_000}) as broker:
        found = broker.supervisors()
        with joined(broker, found["blue"]) as (program, blue), joined(broker, found["red"]) as (_, red):
            blue.request(READY)
            until(lambda: blue.lease[0] == LENT)
            blue.say(busy=True, number=1)
            red.request(READY)
            assert program.answer().refusal == REFUSED_EXECUTOR
            until(lambda: red.lease[0] == LENT)
        assert "event=gate.lost" in broker.log()


@pytest.mark.parametrize(("chunk_ns", "limit_ms"), [(5_000_000, 100), (50_000_000, 200)])
def test_a_supervisor_gives_children_four_chunks_to_stop(
    tmp_path: Path, broker_programs: tuple[Path, Path], chunk_ns: int, limit_ms: int
) -> None:
    with Broker(tmp_path, *broker_programs, engine={"chunk_ns": chunk_ns}) as broker:
        broker.supervisors()
        pid = broker.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == len(broker.tenants)
        for child in children:
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            assert words[words.index("--gate-limit-ms") + 1] == str(limit_ms)


def test_a_child_that_breaks_the_protocol_is_killed(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    for nonsense in (b"x", b"\xff" * 32, b"\x02\0\0\0\xff\xff\xff\xff" + bytes(24)):
        with joined(broker, supervisor) as (program, child):
            child.socket.send(nonsense)
            assert program.answer().refusal == REFUSED_EXECUTOR
            assert supervisor.expect(KILL)[1] == child.number
            supervisor.exited(child)


def test_a_child_that_floods_its_socket_has_to_wait(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (_, blue), joined(broker, found["red"]) as (_, red):
        blue.socket.setblocking(False)
        for _ in range(3000):
            try:
                blue.request(YIELD, lease=7)
            except BlockingIOError:
                break
        red.request(READY)
        until(lambda: red.lease[0] == LENT)
        assert broker.shown("blue")["stats"]["leases"] == 0


def test_children_of_one_tenant_share_what_it_may_say(broker: Broker) -> None:
    blue = broker.supervisors()["blue"]
    with joined(broker, blue) as (_, one), joined(broker, blue) as (_, other):
        sent = 0
        begun = time.monotonic()
        while time.monotonic() < begun + 1:
            for child in (one, other):
                child.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    child.request(YIELD, lease=7)
                    sent += 1
        # A burst, 5000 a second, and the contents of both sockets.
        assert 1000 < sent < 1000 + 5000 * (time.monotonic() - begun) + 2 * 1000


def test_the_lease_of_a_child_that_ends_is_anothers(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (program, blue), joined(broker, found["red"]) as (_, red):
        blue.request(READY)
        until(lambda: blue.lease[0] == LENT)
        blue.say(busy=True, number=1)
        red.request(READY, flags=0)
        program.close()
        found["blue"].expect(KILL)
        found["blue"].exited(blue)
        until(lambda: red.lease[0] == LENT)
        # The child yields because of a lease end that no longer applies, so the broker tells it to look again.
        woken = red.wake
        red.request(YIELD, lease=1, flags=WANT)
        until(lambda: red.wake != woken)
        assert red.lease == (LENT, 1, 2**64 - 1)


def test_memory_and_descriptors_return(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]

    def once() -> None:
        with joined(broker, supervisor) as (program, child):
            program.close()
            supervisor.expect(KILL)
            supervisor.exited(child)
        until(lambda: not broker.shown("blue")["processes"])

    def held() -> tuple[int, int]:
        maps = Path(f"/proc/{broker.process.pid}/maps").read_text().count("vgpumgr-")
        return descriptors(broker), maps

    before = held()
    for _ in range(20):
        once()
    until(lambda: held() == before)
