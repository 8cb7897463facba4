# SPDX-License-Identifier: Apache-2.0
"""Native programs as the broker sees them: hostile launchers, and requests that cross on the way to a supervisor.

The test itself plays the supervisors (broker_rig.py), so it chooses the order of all events.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.compute.broker_rig import (
    CLIENT_MESSAGE,
    DONE,
    FREEZE,
    REFUSED,
    SUPERVISOR_MESSAGE,
    THAW,
    VERSION,
    Program,
    Supervisor,
    build_fake_supervisor,
    make_broker,
    receive,
)
from tests.compute.executor_rig import BUILT, LIMIT_S, wait_for
from tests.compute.native_rig import NativeBroker, launch, make_native, native_tenant

MS = 1_000_000
NATIVE = 4
START_NATIVE, WORKS = 9, 11
MALFORMED, TOO_MANY = 2, 3
# SECCOMP_IOCTL_NOTIF_RECV and its struct seccomp_notif
TAKE, TOLD_BYTES = 0xC0502100, 80


@dataclass
class Launchers:
    """Real launchers that the test answers. They provide the descriptors on which the kernel reports their calls."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def listener(self) -> int:
        """Return a listener whose launcher has made its call. The test has received it, so others see no call."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
            path = self.folder / f"launcher-{len(self.processes)}"
            own.bind(str(path))
            own.listen()
            own.settimeout(LIMIT_S)
            self.processes.append(subprocess.Popen([str(BUILT / "vgpu-native"), "--socket", str(path), "--", "true"]))
            connection, _ = own.accept()
        with connection:
            _, (listener,) = receive(connection, 4096)
        fcntl.ioctl(listener, TAKE, bytearray(TOLD_BYTES))
        return listener

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(LIMIT_S)


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[Launchers]:
    make_native()
    found = Launchers(tmp_path)
    yield found
    found.end()


@contextmanager
def broker_of(*tenants: dict[str, Any], turns: str = "firmware") -> Iterator[NativeBroker]:
    make_native()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        broker = NativeBroker(folder, make_broker(), build_fake_supervisor(folder), tenants=list(tenants), nvidia=0)
        broker.turns = turns
        with broker:
            yield broker


@dataclass(frozen=True)
class Asked:
    """A request of the broker to a supervisor."""

    op: int
    sequence: int
    child: int
    status: int


def take(supervisor: Supervisor) -> Asked:
    data, descriptors = receive(supervisor.socket, 4096)
    for each in descriptors:
        os.close(each)
    fields = SUPERVISOR_MESSAGE.unpack(data)
    return Asked(fields[1], fields[2], fields[3], fields[13])


def take_until(supervisor: Supervisor, op: int, *, answer: bool = True) -> Asked:
    """Return the next request of this kind and answer it if `answer` is set. Earlier requests are always answered."""
    while True:
        asked = take(supervisor)
        if asked.op != op or answer:
            supervisor.send(DONE, sequence=asked.sequence, child=asked.child)
        if asked.op == op:
            return asked


def has_request(supervisor: Supervisor) -> bool:
    return bool(select.select([supervisor.socket], [], [], 0)[0])


def announce(program: Program, descriptor: int) -> Program:
    """Send the announcement of a launcher."""
    message = CLIENT_MESSAGE.pack(VERSION, NATIVE, 0, 0, 0, b"")
    socket.send_fds(program.socket, [message], [descriptor])
    os.close(descriptor)
    return program


def readable_pipe() -> int:
    ours, theirs = os.pipe()
    os.write(theirs, b"x")
    os.close(theirs)
    return ours


def connected_socket() -> int:
    ours, theirs = socket.socketpair()
    theirs.send(b"x")
    theirs.close()
    return ours.detach()


def a_file() -> int:
    return os.open("/dev/zero", os.O_RDWR)


@pytest.mark.parametrize("make", [readable_pipe, connected_socket, a_file])
def test_another_descriptor_than_a_listener_is_refused_before_anybody_asks_it(make: Callable[[], int]) -> None:
    with broker_of(native_tenant("blue")) as broker:
        supervisor = broker.supervisors()["blue"]
        answer = announce(broker.connect("blue"), make()).answer()
        assert (answer.op, answer.refusal) == (REFUSED, MALFORMED)
        assert answer.reason == "its descriptor is no listener of seccomp"
        assert broker.shown("blue")["refused"]["message"] == 1
        assert not has_request(supervisor)


def test_a_launcher_that_announces_itself_twice_is_refused_and_leaves_no_descriptor(launchers: Launchers) -> None:
    with broker_of(native_tenant("blue")) as broker:
        broker.supervisors()
        broker.shown("blue")
        opened = Path(f"/proc/{broker.process.pid}/fd")
        before = len(list(opened.iterdir()))
        program = announce(broker.connect("blue"), launchers.listener())
        announce(program, launchers.listener())
        answer = program.answer()
        assert (answer.op, answer.refusal) == (REFUSED, MALFORMED)
        assert answer.reason.endswith("HELLO once, and nothing else")
        wait_for(lambda: len(list(opened.iterdir())) == before, "its descriptors to be closed")


def test_launchers_that_wait_count_as_processes(launchers: Launchers) -> None:
    with broker_of(native_tenant("blue", max_processes=1)) as broker:
        broker.supervisors()
        first = announce(broker.connect("blue"), launchers.listener())
        wait_for(lambda: len(launchers.processes) == 1 and not is_heard(broker, first), "the first to be heard")
        answer = announce(broker.connect("blue"), launchers.listener()).answer()
        assert (answer.op, answer.refusal) == (REFUSED, TOO_MANY)


def is_heard(broker: NativeBroker, program: Program) -> bool:
    """Return whether a part of what the program has sent is still unread."""
    queued = fcntl.ioctl(program.socket, 0x5411, b"\0" * 4)
    broker.shown("blue")
    return bool(struct.unpack("=i", queued)[0])


def begin(broker: NativeBroker, supervisor: Supervisor, name: str) -> tuple[subprocess.Popen[str], int]:
    """Start a program that the broker accepts. Returns its process and its number."""
    process = launch(broker, name, "true")
    return process, take_until(supervisor, START_NATIVE).child


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def test_a_program_that_starts_while_its_gate_opens_does_not_wait_for_a_second_opening() -> None:
    with broker_of(native_tenant("blue", cap_ns=MS, cap_period_ns=100 * MS)) as broker:
        supervisor = broker.supervisors()["blue"]
        first, number = begin(broker, supervisor, "blue")
        supervisor.send(WORKS, child=number, status=1)
        take_until(supervisor, FREEZE)
        # The opening of the gate is not answered yet, so a program that starts now comes after it.
        take_until(supervisor, THAW, answer=False)
        second = launch(broker, "blue", "true")
        assert take_until(supervisor, START_NATIVE).status == 0
        end(first, second)


def test_in_exclusive_turns_nobody_opens_a_gate_that_is_closing() -> None:
    with broker_of(native_tenant("blue"), native_tenant("red"), turns="gate") as broker:
        supervisors = broker.supervisors()
        blue, red = supervisors["blue"], supervisors["red"]
        first, number = begin(broker, blue, "blue")
        blue.send(WORKS, child=number, status=1)
        take_until(blue, THAW)
        second, later = begin(broker, blue, "blue")
        rival, other = begin(broker, red, "red")
        red.send(WORKS, child=other, status=1)
        closing = take_until(blue, FREEZE, answer=False)
        # The tenant's lease ends, and now another program of the same tenant begins to work.
        blue.send(WORKS, child=later, status=1)
        wait_for(lambda: broker.native("blue")["working"] == 2, "the second one to be known to work")
        assert not has_request(blue)
        blue.send(DONE, sequence=closing.sequence)
        take_until(red, THAW)
        take_until(red, FREEZE)
        # The gate opens with the next lease.
        assert take_until(blue, THAW).sequence > closing.sequence
        end(first, second, rival)
