# SPDX-License-Identifier: Apache-2.0
"""An executor of a slice whose engine lends, and its children, over the kernel's interface (kmod/uapi/vgpu_exec.h).

Run as a program it is an executor that cannot stop its child: `python3 -m tests.rig.leasing UUID` serves the first
window that the guest opens, prints `busy` under its first lease, and answers that the gate could not be closed.
"""

import errno
import fcntl
import mmap
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
DEVICE = Path("/dev/vgpumgr-exec")
BIND, WINDOW = 0xC0407658, 0xC0147659
LOST, CLOSED, RING, GATE = 0x4008765A, 0x4008765B, 0x4008765C, 0x4018765D
PAGE = 4096
FOREVER_NS = (1 << 64) - 1


class State(IntEnum):
    """The state of a window, as its guest sees it."""

    FREE = 0
    OPEN = 1
    CLOSING = 2
    LOST = 3


class Event(IntEnum):
    OPENED = 1
    CLOSED = 2
    GATE_CLOSE = 3
    GATE_OPEN = 4


class Lease(IntEnum):
    NONE = 0
    LENT = 1
    RECALLED = 2
    EXPIRED = 3


READY, YIELD, RING_OP = 1, 2, 3
WANT = 1


@dataclass(frozen=True)
class Bound:
    """An executor's open file. Every call that the kernel refuses raises OSError."""

    fd: int
    windows: int
    window_bytes: int
    memory_bytes: int

    def event(self, timeout_s: float = 20) -> tuple[Event, int, int]:
        """The next event: kind, window, sequence; raises TimeoutError."""
        if not self.poll(timeout_s):
            raise TimeoutError
        kind, window, sequence = struct.unpack("<IIQ", os.read(self.fd, 16))
        return Event(kind), window, sequence

    def poll(self, timeout_s: float = 0) -> int:
        """The result of poll(), after at most that long."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        found = poller.poll(timeout_s * 1000)
        return found[0][1] if found else 0

    def ended(self, timeout_s: float = 20) -> bool:
        """Whether the slice detaches it within that time."""
        poller = select.poll()
        poller.register(self.fd, 0)
        return any(what & select.POLLHUP for _, what in poller.poll(timeout_s * 1000))

    def window(self, number: int, *, reserved: int = 0) -> tuple[int, int, int]:
        """The files of the window's memory, lease page and stream."""
        found = fcntl.ioctl(self.fd, WINDOW, struct.pack("<IiiiI", number, 0, 0, 0, reserved))
        _, memory, lease, stream, _ = struct.unpack("<IiiiI", found)
        return memory, lease, stream

    def lost(self, number: int, *, reserved: int = 0) -> None:
        fcntl.ioctl(self.fd, LOST, struct.pack("<II", number, reserved))

    def closed(self, number: int) -> None:
        fcntl.ioctl(self.fd, CLOSED, struct.pack("<II", number, 0))

    def ring(self, number: int) -> None:
        fcntl.ioctl(self.fd, RING, struct.pack("<II", number, 0))

    def gate(self, sequence: int, *, done: int = 1, processor_ns: int = 0, reserved: int = 0) -> None:
        fcntl.ioctl(self.fd, GATE, struct.pack("<QQII", sequence, processor_ns, done, reserved))


@contextmanager
def executor_file() -> Iterator[int]:
    """An open file that is not bound; closed at the end."""
    fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def bind(fd: int, uuid: str, *, reserved: int = 0) -> Bound:
    """Make the file the executor of the slice."""
    found = fcntl.ioctl(fd, BIND, struct.pack("<40sIIQQ", uuid.encode(), 0, reserved, 0, 0))
    _, windows, _, window_bytes, memory_bytes = struct.unpack("<40sIIQQ", found)
    return Bound(fd, windows, window_bytes, memory_bytes)


@contextmanager
def bound(uuid: str) -> Iterator[Bound]:
    """Make this process serve the slice; closed at the end."""
    with executor_file() as fd:
        yield bind(fd, uuid)


def _count(data: bytes) -> int:
    return int.from_bytes(data, "little") if data else -1


def _listen(stream: int, to: socket.socket) -> None:
    """Forward the results of a stream's read() until its window ends or nobody listens."""
    with to, suppress(BrokenPipeError):
        while data := os.read(stream, 8):
            to.send(data)
    os.close(stream)


class Child:
    """One child with its files mapped. It sends and requests what a test tells it to; it computes nothing."""

    def __init__(self, files: tuple[int, int, int]) -> None:
        self.memory, self.lease_file, self.stream = files
        self.window = mmap.mmap(self.memory, os.fstat(self.memory).st_size)
        self.lease_page = mmap.mmap(self.lease_file, PAGE, prot=mmap.PROT_READ)
        self.page = mmap.mmap(self.stream, PAGE)
        self._heard: socket.socket | None = None

    def let_go(self) -> None:
        """Unmap the window's memory, so that the window may be reported as closed."""
        self.window.close()
        if self.memory >= 0:
            os.close(self.memory)
        self.memory = -1

    def close(self) -> None:
        self.let_go()
        for mapped in (self.lease_page, self.page):
            mapped.close()
        for fd in (self.lease_file, self.stream):
            os.close(fd)
        if self._heard is not None:
            self._heard.close()

    # ---- what the lease page says

    def lease(self) -> tuple[int, Lease]:
        """The lease's number and state."""
        (word,) = struct.unpack_from("<Q", self.lease_page, 16)
        return word >> 2, Lease(word & 3)

    def expires_ns(self) -> int:
        return int(struct.unpack_from("<Q", self.lease_page, 32)[0])

    def generation(self) -> int:
        return int(struct.unpack_from("<Q", self.lease_page, 40)[0])

    # ---- what it says

    def say(self, number: int, *, busy: bool) -> None:
        if not busy:
            struct.pack_into("<Q", self.page, 8, time.monotonic_ns())
        struct.pack_into("<Q", self.page, 0, number << 1 | busy)

    def request(self, op: int, *, flags: int = 0, lease: int = 0, kernel_id: int = 0, reserved: int = 0) -> None:
        data = struct.pack("<IIQIIQ", op, flags, lease, kernel_id, reserved, 0)
        assert os.write(self.stream, data) == len(data)

    def ready(self) -> None:
        self.request(READY)

    def give_back(self, *, want: bool = False) -> None:
        """Report no more work, and yield the present lease."""
        number, _ = self.lease()
        self.say(number, busy=False)
        self.request(YIELD, flags=WANT if want else 0, lease=number)

    def ring(self) -> None:
        self.request(RING_OP)

    # ---- waiting

    def signals(self) -> int:
        """A file that becomes readable when signalled() has a result. From now on a thread waits for that."""
        if self._heard is None:
            self._heard, hears = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            threading.Thread(target=_listen, args=(os.dup(self.stream), hears), daemon=True).start()
        return self._heard.fileno()

    def signalled(self, timeout_s: float = 20) -> int:
        """The number of doorbells and lease changes since the last call; 0 after the timeout, -1 at the window's
        end."""
        if self._heard is None:
            with suppress(BlockingIOError):
                return self._signalled_already()
            if timeout_s <= 0:
                return 0
        poller = select.poll()
        poller.register(self.signals(), select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            return 0
        assert self._heard is not None
        return _count(self._heard.recv(8))

    def _signalled_already(self) -> int:
        os.set_blocking(self.stream, False)
        try:
            return _count(os.read(self.stream, 8))
        finally:
            os.set_blocking(self.stream, True)

    def start(self, timeout_s: float = 20) -> int:
        """Ask for the engine until it is lent, and be busy; returns the lease's number. Raises TimeoutError."""
        self.ready()
        end = time.monotonic() + timeout_s
        while True:
            number, state = self.lease()
            if state is Lease.LENT and self.expires_ns() > time.monotonic_ns():
                self.say(number, busy=True)
                if self.lease() == (number, Lease.LENT):
                    return number
                self.give_back(want=True)
            left = end - time.monotonic()
            if left <= 0 or not self.signalled(left):
                raise TimeoutError


@contextmanager
def child(executor: Bound, number: int) -> Iterator[Child]:
    """The child of an open window. It is reported lost at the end, unless the window already has another child."""
    made = Child(executor.window(number))
    try:
        yield made
    finally:
        made.close()
        with suppress(OSError):
            executor.lost(number)


def refused(call: object, *arguments: object, **options: object) -> str:
    """The errno's name with which a call is refused; empty if it is accepted."""
    assert callable(call)
    try:
        call(*arguments, **options)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def serve_badly(uuid: str) -> None:
    with bound(uuid) as executor:
        _, number, _ = executor.event()
        Child(executor.window(number)).start()
        print("busy", flush=True)
        _, _, sequence = executor.event(timeout_s=1000)
        executor.gate(sequence, done=0)
        time.sleep(1000)


if __name__ == "__main__":
    serve_badly(sys.argv[1])
