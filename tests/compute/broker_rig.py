# SPDX-License-Identifier: Apache-2.0
"""A real vgpu-broker. The test itself plays its supervisors, children and programs."""

from __future__ import annotations

import array
import contextlib
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.compute.executor_rig import ROOT, build
from vgpumgr.broker.control import Control

LIMIT_S = 30.0
VERSION = 1
HELLO, WELCOME, REFUSED = 1, 2, 3
START, KILL, FREEZE, THAW, DONE, FAILED, EXITED = range(1, 8)
READY, YIELD = 1, 2
WANT = 1
NONE, LENT, RECALLED, EXPIRED = range(4)
GATE = 1 << 63
CLIENT_MESSAGE = struct.Struct("=IIIIQ192s")
SUPERVISOR_MESSAGE = struct.Struct("=IIQQQQQQQQQQQiI192s")
STREAM_REQUEST = struct.Struct("=IIQIIQ")
LEASE_PAGE = struct.Struct("=IIIIQQQQ")
STREAM_PAGE = struct.Struct("=QQQQQQQ")
CHILD_STATE_OFFSET = 64  # offset in struct vgpu_window
MIB = 1 << 20


def make_broker(*, sanitized: bool = False) -> Path:
    """Build vgpu-broker from the present sources."""
    target = ROOT / f"build/compute{'-sanitized' if sanitized else ''}/vgpu-broker"
    variables = [f"PYTHON={sys.executable}", *(["SANITIZE=1"] if sanitized else [])]
    subprocess.run(["make", "-s", "-C", str(ROOT / "compute"), *variables, str(target)], check=True)
    return target


def build_fake_supervisor(folder: Path) -> Path:
    return build(folder / "fake-supervisor", ROOT / "tests/compute/fake_supervisor.c")


def receive(connection: socket.socket, size: int, count: int = 5) -> tuple[bytes, list[int]]:
    """Return one datagram and its descriptors. The data is b"" at the end of the connection."""
    fds = array.array("i")
    data, ancillary, _, _ = connection.recvmsg(size, socket.CMSG_SPACE(count * fds.itemsize), socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return data, list(fds)


class Page:
    """A page that the broker shares, mapped with the access that its descriptor allows."""

    def __init__(self, fd: int, *, writable: bool, size: int = 4096) -> None:
        self.fd = fd
        self.writable = writable
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self.memory = mmap.mmap(fd, size, access=access)


@dataclass
class Child:
    """A child that the broker asked the supervisor to start. The test plays the child."""

    number: int
    sequence: int
    window_bytes: int
    memory_bytes: int
    fds: list[int]

    def __post_init__(self) -> None:
        window, lease, stream, requests = self.fds
        self.window = Page(window, writable=True)
        self.lease_page = Page(lease, writable=False)
        self.stream_page = Page(stream, writable=True)
        self.socket = socket.socket(fileno=requests)
        self.socket.settimeout(LIMIT_S)

    @property
    def lease(self) -> tuple[int, int, int]:
        """State, number and end of the child's lease."""
        values = LEASE_PAGE.unpack_from(self.lease_page.memory)
        return values[4] & 3, values[4] >> 2, values[6]

    @property
    def wake(self) -> int:
        """The word that changes when the child has to look at its lease."""
        return int(LEASE_PAGE.unpack_from(self.lease_page.memory)[2])

    def say(self, *, busy: bool, number: int, dry_since_ns: int = 0, idle_ns: int = 0) -> None:
        struct.pack_into("=QQQ", self.stream_page.memory, 0, number << 1 | busy, dry_since_ns, idle_ns)

    def request(self, op: int, *, lease: int = 0, flags: int = 0) -> None:
        self.socket.send(STREAM_REQUEST.pack(op, flags, lease, 0, 0, 0))

    def close(self) -> None:
        self.socket.close()


class Supervisor:
    """The far end of a supervisor's socket."""

    def __init__(self, connection: socket.socket, arguments: str, pid: int) -> None:
        self.socket = connection
        self.socket.settimeout(LIMIT_S)
        self.arguments = arguments
        self.pid = pid
        self.gates: list[int] = []
        self.processor_ns = 0
        self.gate_ns = 0
        self.enforced = 0

    @property
    def tenant(self) -> str:
        return self.arguments.split()[1]

    def receive(self) -> tuple[int, int, int, list[int], int, int]:
        data, fds = receive(self.socket, 4096)
        assert len(data) == SUPERVISOR_MESSAGE.size, "the broker has hung up"
        version, op, sequence, child, window, memory, *_ = SUPERVISOR_MESSAGE.unpack(data)
        assert version == VERSION
        return op, sequence, child, fds, window, memory

    def expect(self, op: int, *, answer: bool = True) -> tuple[int, int]:
        """Wait for a message and return its sequence number and child. Earlier gate requests are answered."""
        while True:
            found, sequence, child, fds, _, _ = self.receive()
            for fd in fds:
                os.close(fd)
            if found in (FREEZE, THAW):
                self.gates.append(found)
            if found == op or answer:
                self.send(DONE, sequence=sequence)
            if found == op:
                return sequence, child

    def start(self, *, done: bool = True) -> Child:
        """Wait for START and create the child."""
        while True:
            op, sequence, child, fds, window, memory = self.receive()
            if op == START:
                break
            self.send(DONE, sequence=sequence)
        assert len(fds) == 4
        if done:
            self.send(DONE, sequence=sequence)
        return Child(child, sequence, window, memory, fds)

    def send(self, op: int, *, sequence: int = 0, child: int = 0, status: int = 0, reason: str = "") -> None:
        counters = (self.processor_ns, 0, 0, 0, self.gate_ns)
        self.socket.send(
            SUPERVISOR_MESSAGE.pack(
                *(VERSION, op, sequence, child, 0, 0, *counters, 0, 0, status, self.enforced, reason.encode())
            )
        )

    def exited(self, child: Child, *, status: int = 9, reason: str = "") -> None:
        child.close()
        self.send(EXITED, child=child.number, status=status, reason=reason)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.socket.close()


@dataclass(frozen=True)
class Answer:
    """The broker's answer to a program."""

    op: int
    refusal: int
    reason: str
    window_bytes: int
    fds: list[int]


class Program:
    """A tenant's program, as the broker sees it."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))

    def hello(self, *, version: int = VERSION, op: int = HELLO) -> Self:
        self.socket.send(CLIENT_MESSAGE.pack(version, op, 0, 0, 0, b""))
        return self

    def answer(self) -> Answer:
        data, fds = receive(self.socket, 4096)
        assert data, "the broker has hung up"
        version, op, refusal, _, window_bytes, reason = CLIENT_MESSAGE.unpack(data)
        assert version == VERSION
        return Answer(op, refusal, reason.rstrip(b"\0").decode(), window_bytes, fds)

    def is_hung_up(self) -> bool:
        try:
            return self.socket.recv(4096) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()


def tenant(name: str, **more: Any) -> dict[str, Any]:
    """A tenant's entry in the broker's configuration."""
    return {
        "name": name,
        "band": "fair",
        "weight": 100,
        "timeslice_ns": 5_000_000,
        "cap_ns": 0,
        "cap_period_ns": 0,
        "burst_ns": 0,
        "reserve_ns": 0,
        "reserve_period_ns": 0,
        "hold_max_ns": 0,
        "inversion_permille": 0,
        "inversion_burst_ns": 0,
        "memory_bytes": 64 * MIB,
        "window_bytes": 4 * MIB,
        "compile_cache_bytes": 8 * MIB,
        "max_processes": 4,
        "process_interval_ns": 1,
        "process_burst": 1000,
        "socket_mode": 0o600,
        "socket_gid": 2**32 - 1,
        **more,
    }


@dataclass
class Broker:
    """A broker in its own directory. `supervisor`: the program that the broker starts as supervisor."""

    directory: Path
    program: Path
    supervisor: Path
    tenants: list[dict[str, Any]] = field(default_factory=lambda: [tenant("blue"), tenant("red")])
    engine: dict[str, int] = field(default_factory=dict)
    child: Path = Path("/bin/true")
    nvidia: object = None

    def settings(self) -> dict[str, Any]:
        programs = {"supervisor": str(self.supervisor), "child": str(self.child), "library": "/bin/true"}
        return {
            "programs": programs | ({} if self.nvidia is None else {"nvidia": self.nvidia}),
            "engine": {
                "grace_ns": 2_000_000,
                "early_ns": 200_000,
                "gate_limit_ns": 20_000_000_000,
                "chunk_ns": 5_000_000,
                "min_chunk_ns": 100_000,
                "switch_cost_ns": 0,
                "reserve_limit_permille": 500,
                "processors": 0,
                "free_permille": 0,
                "allowance_permille": 0,
                "allowance_burst_ns": 0,
                "watch_every_ns": 100_000_000,
                "penalty_ns": 1_000_000_000,
                **self.engine,
            },
            "tenants": self.tenants,
        }

    def __enter__(self) -> Self:
        self.run = self.directory / "run"
        self.run.mkdir()
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.directory / "supervisors"))
        self.listener.listen(64)
        self.listener.settimeout(LIMIT_S)
        self.notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notices.bind(str(self.directory / "notices"))
        self.notices.settimeout(LIMIT_S)
        self.process = self.start(json.dumps(self.settings()).encode())
        assert self.notices.recv(64) == b"READY=1"
        self.control = Control(self.run)
        return self

    def start(self, document: bytes, **how: Any) -> subprocess.Popen[str]:
        file = os.memfd_create("settings", 0)
        os.write(file, document)
        os.lseek(file, 0, os.SEEK_SET)
        env = os.environ | {
            "VGPU_TEST_SUPERVISOR": str(self.directory / "supervisors"),
            "NOTIFY_SOCKET": str(self.directory / "notices"),
        }
        command = [str(self.program), "--directory", str(self.run), "--settings", str(file)]
        with open(self.directory / "log", "a") as log:  # noqa: PTH123
            process = subprocess.Popen(command, env=env, pass_fds=[file], text=True, **({"stderr": log} | how))
        os.close(file)
        return process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        self.listener.close()
        self.notices.close()

    def any_supervisor(self) -> Supervisor:
        connection, _ = self.listener.accept()
        with connection:
            arguments, fds = receive(connection, 4096)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid = struct.unpack("3i", credentials)[0]
        return Supervisor(socket.socket(fileno=fds[0]), arguments.decode(), pid)

    def supervisors(self) -> dict[str, Supervisor]:
        """Accept one supervisor for each tenant."""
        # Keep the sockets open: the broker would replace a supervisor whose socket is closed.
        self.kept = {each.tenant: each for each in (self.any_supervisor() for _ in self.tenants)}
        return self.kept

    def connect(self, name: str) -> Program:
        return Program(self.run / f"{name}.sock")

    def shown(self, name: str) -> dict[str, Any]:
        found = {each["name"]: each for each in self.control.show()["tenants"]}
        shown: dict[str, Any] = found[name]
        return shown

    def log(self) -> str:
        return (self.directory / "log").read_text()


@contextlib.contextmanager
def joined(broker: Broker, supervisor: Supervisor) -> Iterator[tuple[Program, Child]]:
    """A program that the broker has accepted, and its child."""
    program = broker.connect(supervisor.tenant).hello()
    child = supervisor.start()
    answer = program.answer()
    assert answer.op == WELCOME, answer
    for fd in answer.fds:
        os.close(fd)
    yield program, child
    program.close()


def descriptors(broker: Broker) -> int:
    """The number of descriptors that the broker has open."""
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def until(condition: Callable[[], bool]) -> None:
    """Poll until the broker has done the expected. Each check queries the broker or reads a page that it writes."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)
