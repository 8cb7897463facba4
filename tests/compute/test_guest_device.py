# SPDX-License-Identifier: Apache-2.0
"""The guest library in a VM. Its own process plays the device's calls, and the test plays the child."""

import ctypes
import errno
import mmap
import os
import struct
import subprocess
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    BELL,
    CHILD_AT,
    COMPUTE,
    FULL,
    HEAD,
    HEADER,
    LIMIT_S,
    LOST,
    PAGE,
    REASON_AT,
    REPLY_DATA_AT,
    REPLY_RING_AT,
    REQUEST_DATA_AT,
    REQUEST_RING_AT,
    RING_BYTES,
    ROOT,
    SERVING,
    SLEEPING,
    SPACE,
    STARTING,
    TAIL,
    WINDOW_BYTES,
    WINDOW_MAGIC,
    Words,
    build,
    wait_for,
)

TRANSPORT = COMPUTE / "guest" / "transport"
# Words of the control page.
OPEN, CHILD_GONE, RESET, IDLE = range(4)
TO_GUEST_AT, TO_CHILD_AT, WAITS_AT = 4, 8, 12
REFUSED = f"no start: -{errno.ECONNREFUSED}"
REST = f"started with {WINDOW_BYTES - PAGE - 2 * RING_BYTES} bytes"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = ROOT / "tests" / "compute" / "c" / "device_client.c"
    return build(tmp_path_factory.mktemp("device") / "client", source, *sorted(TRANSPORT.glob("*.c")))


class Device:
    """A window as a file, the words of the guest's kernel in another file, and the child's side of both."""

    def __init__(self, client: Path, path: Path) -> None:
        self.client = client
        self.path = path
        path.write_bytes(bytes(WINDOW_BYTES))
        self.control_path = path.with_name(path.name + ".control")
        self.control_path.write_bytes(bytes(PAGE))
        self.file = path.open("r+b")
        self.memory = mmap.mmap(self.file.fileno(), WINDOW_BYTES)
        self.words = Words(self.memory)
        with self.control_path.open("r+b") as file:
            self.control = Words(mmap.mmap(file.fileno(), PAGE))
        self.head = 0
        self.tail = 0

    def start(self, *scenario: str) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("VGPUMGR_")}
        environment["VGPUMGR_DEVICE"] = str(self.path)
        pipe = subprocess.PIPE
        return subprocess.Popen([self.client, *scenario], stdout=pipe, stderr=pipe, text=True, env=environment)

    def run(self, *scenario: str) -> tuple[list[str], str]:
        """Run a client that needs no child, and return its output."""
        return finish(self.start(*scenario))

    def begin(self, state: int, *, reason: bytes = b"", version: int = 1) -> None:
        struct.pack_into("=IIQ", self.memory, 0, WINDOW_MAGIC, version, WINDOW_BYTES)
        self.memory[REASON_AT : REASON_AT + len(reason)] = reason
        self.words.halves[CHILD_AT // 4] = state

    def say(self, state: int) -> None:
        """Set the state of the host that the guest's kernel sees."""
        self.control.halves[0] = state
        self.control.wake(TO_GUEST_AT)

    def ring(self, word_at: int) -> None:
        """Change a word that the guest may sleep on, and wake the guest, like a child does."""
        self.words.halves[word_at // 4] += 1
        self.control.wake(TO_GUEST_AT)

    def wait_for_waits(self, count: int) -> None:
        """Wait until the client has begun this many waits."""
        wait_for(lambda: int(self.control.halves[WAITS_AT // 4]) >= count, f"wait {count}")

    def word(self, at: int) -> int:
        return int(self.words.halves[at // 4])

    def whole(self, at: int) -> int:
        return int(self.words.wholes[at // 8])

    def wait_for_requests(self) -> None:
        """Sleep until the client rings. Nothing else wakes a child."""
        while self.whole(REQUEST_RING_AT + TAIL) == self.head:
            rings = int(self.control.halves[TO_CHILD_AT // 4])
            self.words.halves[(REQUEST_RING_AT + SLEEPING) // 4] = 1
            if self.whole(REQUEST_RING_AT + TAIL) != self.head:
                return
            self.control.wait(TO_CHILD_AT, rings, LIMIT_S)
            assert int(self.control.halves[TO_CHILD_AT // 4]) != rings, "the client does not ring"

    def take(self) -> int:
        """Return the call of the next request."""
        while True:
            self.wait_for_requests()
            size, op, _, call = HEADER.unpack_from(self.memory, REQUEST_DATA_AT + self.head % RING_BYTES)
            self.head += size if op else RING_BYTES - self.head % RING_BYTES
            self.words.wholes[(REQUEST_RING_AT + HEAD) // 8] = self.head
            if self.word(REQUEST_RING_AT + FULL):
                self.ring(REQUEST_RING_AT + SPACE)
            if op:
                return int(call)

    def answer(self, call: int) -> None:
        HEADER.pack_into(self.memory, REPLY_DATA_AT + self.tail % RING_BYTES, HEADER.size, 1, 0, call)
        self.tail += HEADER.size
        self.words.wholes[(REPLY_RING_AT + TAIL) // 8] = self.tail
        if self.word(REPLY_RING_AT + SLEEPING):
            self.ring(REPLY_RING_AT + BELL)


def finish(process: subprocess.Popen[str]) -> tuple[list[str], str]:
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    return output.splitlines(), errors


@pytest.fixture
def device(client: Path, tmp_path: Path) -> Device:
    return Device(client, tmp_path / "vgpu0-compute")


def test_requests_and_replies_pass_while_both_sides_sleep(device: Device) -> None:
    process = device.start("echo", "40")
    device.begin(SERVING)
    device.say(OPEN)
    # The requests exceed the ring, so the client also sleeps for room.
    wait_for(lambda: bool(device.word(REQUEST_RING_AT + FULL)), "a client that waits for room")
    for _ in range(40):
        device.answer(device.take())
    assert finish(process) == ([REST, "wait 1, usable 1, answered 40"], "")


def test_a_program_waits_until_its_child_serves(device: Device) -> None:
    process = device.start("start")
    device.wait_for_waits(1)
    # The client ignores rings and a header without a serving child.
    device.say(OPEN)
    device.wait_for_waits(2)
    device.begin(STARTING)
    device.say(OPEN)
    device.wait_for_waits(3)
    # Until now, the client has not written into the window.
    assert not any(device.memory[CHILD_AT:PAGE])
    device.begin(SERVING)
    device.say(OPEN)
    assert finish(process) == ([REST], "")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (b"no \x1b[2Jmemory", "vgpumgr: refused: no ?[2Jmemory\n"),
        (b"x" * 192, f"vgpumgr: refused: {'x' * 191}\n"),
        (b"", "vgpumgr: refused: the host has no process for this program\n"),
    ],
)
def test_a_refused_program_says_why(device: Device, reason: bytes, said: str) -> None:
    device.begin(LOST, reason=reason)
    assert device.run("start") == ([REFUSED], said)


def test_a_window_that_is_lost_before_a_header_is_there_is_a_refusal(device: Device) -> None:
    device.say(CHILD_GONE)
    assert device.run("start") == ([REFUSED], "vgpumgr: refused: the host has no process for this program\n")


def test_a_host_that_starts_no_child_is_not_waited_for_for_ever(device: Device) -> None:
    device.say(IDLE)
    said = f"vgpumgr: {device.path}: the host has not started a process for this program in time\n"
    assert device.run("start") == ([f"no start: -{errno.ETIMEDOUT}"], said)


def test_another_version_of_the_host_is_refused(device: Device) -> None:
    device.begin(SERVING, version=2)
    said = f"vgpumgr: {device.path}: the host's vgpumgr is of another version\n"
    assert device.run("start") == ([f"no start: -{errno.EPROTO}"], said)


def test_a_child_that_ends_ends_every_wait_and_tells_why(device: Device) -> None:
    device.begin(SERVING)
    process = device.start("wait")
    device.take()
    device.begin(LOST, reason=b"the child was ended by signal 11")
    device.say(CHILD_GONE)
    said = "vgpumgr: this program's device is lost: the child was ended by signal 11\n"
    assert finish(process) == ([REST, "wait 0, usable 0, answered 0"], said)


def test_a_program_outlives_a_reset_while_it_waits(device: Device) -> None:
    device.begin(SERVING)
    process = device.start("wait")
    device.take()
    device.wait_for_waits(1)
    # The window's pages are gone, so an access causes SIGBUS.
    device.control.halves[0] = RESET
    os.ftruncate(device.file.fileno(), 0)
    device.control.wake(TO_GUEST_AT)
    said = "vgpumgr: this program's device is lost: the virtual device was reset or removed\n"
    assert finish(process) == ([REST, "wait 0, usable 0, answered 0"], said)


def test_a_copy_of_the_process_has_no_device(device: Device) -> None:
    device.begin(SERVING)
    assert device.run("fork") == ([REST, "copy right, usable 1"], "")


@pytest.fixture(scope="module")
def transport(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("transport") / "transport.so"
    return ctypes.CDLL(str(build(output, *sorted(TRANSPORT.glob("*.c")), flags=("-shared", "-fPIC"))))


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["vgpu10-compute", "vgpu2-compute", "vgpu0", "vgpu1"], "vgpu2-compute"),
        (["vgpu0-compute", "vgpu1-compute"], "vgpu0-compute"),
        (["vgpu-compute", "vgpux-compute", "vgpu1-computer", "xvgpu1-compute", "vgpu99999999999-compute"], None),
        ([], None),
    ],
)
def test_the_device_with_the_lowest_number_is_chosen(
    transport: ctypes.CDLL, tmp_path: Path, names: list[str], first: str | None
) -> None:
    for name in names:
        (tmp_path / name).touch()
    path = ctypes.create_string_buffer(512)
    transport.vgpu_device_find.restype = ctypes.c_bool
    assert transport.vgpu_device_find(os.fsencode(tmp_path), path, ctypes.c_size_t(512)) == (first is not None)
    if first:
        assert path.value.decode() == str(tmp_path / first)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (errno.ENOSPC, "as many programs use it as it has windows for"),
        (errno.ENODEV, "the device is gone"),
        (errno.EPIPE, "the device was reset"),
        (errno.EACCES, "Permission denied"),
        (errno.ENOTTY, "this is no compute device of vgpumgr"),
    ],
)
def test_a_device_that_cannot_be_used_is_said_in_words(transport: ctypes.CDLL, error: int, said: str) -> None:
    transport.vgpu_device_problem.restype = ctypes.c_char_p
    assert transport.vgpu_device_problem(error).decode() == said
