# SPDX-License-Identifier: Apache-2.0
"""Which programs a broker accepts, and what a program and its child receive.

The broker is real. The test plays programs, supervisors and children.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import socket
import stat
import struct
from pathlib import Path

import pytest

from tests.compute.broker_rig import (
    FAILED,
    HELLO,
    KILL,
    LENT,
    LIMIT_S,
    MIB,
    READY,
    REFUSED,
    VERSION,
    WELCOME,
    Broker,
    descriptors,
    joined,
    tenant,
    until,
)

REFUSED_VERSION, REFUSED_MESSAGE, REFUSED_PROCESSES, REFUSED_RATE = 1, 2, 3, 4
REFUSED_EXECUTOR, REFUSED_STOPPING = 6, 7
F_GET_SEALS = 1034
SEALS = 0x1 | 0x2 | 0x4  # SEAL, SHRINK, GROW
FUTURE_WRITE = 0x10


def test_a_program_gets_a_window_and_its_tenants_supervisor_a_child(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    words = "--tenant blue --child /bin/true --library /bin/true --compile-cache-bytes 8388608 --gate-limit-ms 100"
    assert supervisor.arguments == words
    program = broker.connect("blue").hello()
    child = supervisor.start()
    answer = program.answer()
    assert (answer.op, answer.window_bytes, len(answer.fds)) == (WELCOME, 4 * MIB, 1)
    assert (child.window_bytes, child.memory_bytes) == (4 * MIB, 64 * MIB)
    # Program and child map the same window.
    window = mmap.mmap(answer.fds[0], 4 * MIB)
    child.window.memory[1000:1005] = b"hello"
    assert window[:4] == (0x77767067).to_bytes(4, "little")
    assert window[1000:1005] == b"hello"
    shown = broker.shown("blue")["processes"]
    assert [(each["state"], each["pid"]) for each in shown] == [("running", os.getpid())]


def test_nobody_can_resize_what_is_shared_or_write_a_lease_page(broker: Broker) -> None:
    with joined(broker, broker.supervisors()["blue"]) as (_, child):
        for page in (child.window, child.stream_page, child.lease_page):
            assert fcntl.fcntl(page.fd, F_GET_SEALS) & SEALS == SEALS
            with pytest.raises(PermissionError):
                os.ftruncate(page.fd, 0)
        assert fcntl.fcntl(child.lease_page.fd, F_GET_SEALS) & FUTURE_WRITE
        with pytest.raises(PermissionError):
            os.pwrite(child.lease_page.fd, b"x", 0)
        again = os.open(f"/proc/self/fd/{child.lease_page.fd}", os.O_RDWR)
        with pytest.raises(PermissionError):
            mmap.mmap(again, 4096)
        os.close(again)


def test_a_child_that_empties_its_pages_harms_itself_only(broker: Broker) -> None:
    def punch_hole(fd: int) -> bool:
        keep_size, punch = 1, 2
        libc = ctypes.CDLL(None)
        return not libc.fallocate(fd, keep_size | punch, ctypes.c_long(0), ctypes.c_long(4096))

    found = broker.supervisors()
    with joined(broker, found["blue"]) as (program, blue), joined(broker, found["red"]) as (_, red):
        assert not punch_hole(blue.lease_page.fd)
        assert punch_hole(blue.stream_page.fd)
        assert punch_hole(blue.window.fd)
        red.request(READY)
        until(lambda: red.lease[0] == LENT)
        assert broker.shown("blue")["processes"][0]["submitted"] == 0
        found["blue"].exited(blue)
        assert program.answer().refusal == REFUSED_EXECUTOR
        assert broker.shown("red")["processes"]


def test_the_sockets_permissions_are_the_configurations_and_change_with_it(broker: Broker) -> None:
    path = broker.run / "blue.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((broker.run / "control").stat().st_mode) == 0o600
    broker.tenants[0] |= {"socket_mode": 0o660, "socket_gid": os.getgid()}
    broker.control.set(broker.settings(), generation=1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize(
    ("version", "op", "refusal"),
    [(VERSION + 1, HELLO, REFUSED_VERSION), (VERSION, WELCOME, REFUSED_MESSAGE), (VERSION, 77, REFUSED_MESSAGE)],
)
def test_a_program_that_says_something_else_is_refused(broker: Broker, version: int, op: int, refusal: int) -> None:
    program = broker.connect("blue").hello(version=version, op=op)
    answer = program.answer()
    assert (answer.op, answer.refusal) == (REFUSED, refusal)
    assert answer.reason
    assert program.is_hung_up()


@pytest.mark.parametrize("size", [1, 215, 217, 4096])
def test_a_datagram_of_another_size_ends_the_connection(broker: Broker, size: int) -> None:
    program = broker.connect("blue")
    program.socket.send(b"x" * size)
    assert program.answer().refusal == REFUSED_MESSAGE
    assert program.is_hung_up()


def test_descriptors_that_nobody_asked_for_end_the_connection_and_are_closed(broker: Broker) -> None:
    program = broker.connect("blue")
    before = descriptors(broker)
    ends = socket.socketpair()
    with ends[0], ends[1]:
        socket.send_fds(program.socket, [b"x" * 216], [ends[1].fileno()] * 3)
        assert program.answer().refusal == REFUSED_MESSAGE
        ends[1].close()
        ends[0].settimeout(LIMIT_S)
        assert ends[0].recv(1) == b""
    assert program.is_hung_up()
    assert descriptors(broker) <= before


def test_a_second_hello_ends_the_child(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    with joined(broker, supervisor) as (program, child):
        program.hello()
        assert program.answer().refusal == REFUSED_MESSAGE
        assert supervisor.expect(KILL)[1] == child.number


def test_a_tenant_has_no_more_than_max_processes(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    programs = [broker.connect("blue").hello() for _ in range(4)]
    children = [supervisor.start() for _ in programs]
    assert [program.answer().op for program in programs] == [WELCOME] * 4
    refused = broker.connect("blue").hello().answer()
    assert (refused.refusal, "max_processes" in refused.reason) == (REFUSED_PROCESSES, True)
    # A program that is being killed counts until its child has ended.
    programs[0].close()
    assert supervisor.expect(KILL)[1] == children[0].number
    assert broker.connect("blue").hello().answer().refusal == REFUSED_PROCESSES
    supervisor.exited(children[0])
    assert len(broker.shown("blue")["processes"]) == 3
    broker.connect("blue").hello()
    assert supervisor.start().number > children[-1].number
    assert broker.shown("blue")["refused"]["processes"] == 2


def test_new_processes_come_at_a_bounded_rate(tmp_path: Path, broker_programs: tuple[Path, Path]) -> None:
    slow = tenant("blue", process_interval_ns=3600 * 10**9, process_burst=2)
    with Broker(tmp_path, *broker_programs, tenants=[slow]) as broker:
        supervisor = broker.supervisors()["blue"]
        for _ in range(2):
            with joined(broker, supervisor) as (program, child):
                program.close()
                supervisor.expect(KILL)
                supervisor.exited(child)
        assert broker.connect("blue").hello().answer().refusal == REFUSED_RATE


def test_a_slower_rate_counts_what_was_started_lately_and_says_when(
    tmp_path: Path, broker_programs: tuple[Path, Path]
) -> None:
    hour = 3600 * 10**9
    with Broker(
        tmp_path, *broker_programs, tenants=[tenant("blue", process_interval_ns=hour, process_burst=8)]
    ) as broker:
        supervisor = broker.supervisors()["blue"]

        def start() -> None:
            with joined(broker, supervisor) as (program, child):
                program.close()
                supervisor.expect(KILL)
                supervisor.exited(child)

        start()
        broker.tenants[0] |= {"process_interval_ns": 20 * hour, "process_burst": 4}
        broker.control.set(broker.settings(), generation=1)
        for _ in range(3):
            start()
        assert broker.connect("blue").hello().answer().refusal == REFUSED_RATE
        # Another change of the limits does not forgive the earlier starts.
        broker.tenants[0] |= {"process_interval_ns": 10 * 10**9, "process_burst": 3}
        broker.control.set(broker.settings(), generation=2)
        answer = broker.connect("blue").hello().answer()
        assert answer.refusal == REFUSED_RATE
        assert re.fullmatch("processes_per_minute is 6; try in [0-9]+ s", answer.reason)


def test_connections_without_a_hello_are_bounded(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    silent = [broker.connect("blue") for _ in range(32)]
    assert broker.connect("blue").is_hung_up()
    held = descriptors(broker)
    silent[0].close()
    until(lambda: descriptors(broker) < held)
    program = broker.connect("blue").hello()
    supervisor.start()
    assert program.answer().op == WELCOME


def test_a_child_that_does_not_start_is_a_refusal_with_the_reason(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    program = broker.connect("blue").hello()
    child = supervisor.start(done=False)
    supervisor.send(FAILED, sequence=child.sequence, child=child.number, reason="no such library")
    answer = program.answer()
    assert (answer.refusal, "no such library" in answer.reason) == (REFUSED_EXECUTOR, True)
    assert broker.shown("blue")["processes"] == []


def test_a_tenants_used_memory_is_what_its_children_say_up_to_its_limit(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]

    def used() -> tuple[int, list[int]]:
        shown = broker.shown("blue")
        return shown["memory_used_bytes"], sorted(each["memory_used_bytes"] for each in shown["processes"])

    assert used() == (0, [])
    with joined(broker, supervisor) as (_, one), joined(broker, supervisor) as (_, other):
        struct.pack_into("=Q", one.stream_page.memory, 48, 8 * MIB)
        struct.pack_into("=Q", other.stream_page.memory, 48, 4 * MIB)
        assert used() == (12 * MIB, [4 * MIB, 8 * MIB])
        struct.pack_into("=Q", one.stream_page.memory, 48, 2**64 - 1)
        assert used() == (64 * MIB, [4 * MIB, 64 * MIB])
