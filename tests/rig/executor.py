# SPDX-License-Identifier: Apache-2.0
"""An executor of a slice (kmod/uapi/vgpu_exec.h), and the other end of its byte channel.

As a program it is a trivial one: `python3 -m tests.rig.executor UUID BEHAVIOUR`. It prints `ready` when attached and
`taken NUMBER` for each grant, and ends when its file does.
"""

import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DEVICE = Path("/dev/vgpumgr-exec")
ATTACH, TAKE, COMPLETE = 0x40287650, 0x80307651, 0x40187652
REVOKED = 1
PR_SET_THP_DISABLE = 41  # linux/prctl.h
PIPE_BYTES = 0x4000
"""So many the kernel holds each way (kmod/channel.h)."""

OK, FAILED, ITEM_REVOKED, LOST = range(4)  # enum vgpu_item_status
CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Grant:
    number: int
    deadline_ns: int
    cookie: int
    args: tuple[int, ...]
    kernel_id: int
    revoked: bool


@dataclass(frozen=True)
class Executor:
    """An open file of the device. OSError from whatever the kernel refuses."""

    fd: int

    def attach(self, uuid: str) -> None:
        fcntl.ioctl(self.fd, ATTACH, struct.pack("40s", uuid.encode()))

    def take(self) -> Grant:
        found = fcntl.ioctl(self.fd, TAKE, bytes(48))
        number, deadline_ns, cookie, *args, kernel_id, flags = struct.unpack("<QQQ4III", found)
        return Grant(
            number=number,
            deadline_ns=deadline_ns,
            cookie=cookie,
            args=tuple(args),
            kernel_id=kernel_id,
            revoked=bool(flags & REVOKED),
        )

    def complete(self, number: int, *, status: int = OK, result: int = 0, reserved: int = 0) -> None:
        fcntl.ioctl(self.fd, COMPLETE, struct.pack("<QQII", number, result, status, reserved))

    def ready(self, timeout_s: float = 0) -> int:
        """What poll() says, after at most so long."""
        poller = select.poll()
        poller.register(self.fd, select.POLLIN | select.POLLOUT | select.POLLPRI)
        found = poller.poll(timeout_s * 1000)
        return found[0][1] if found else 0

    def ended(self, timeout_s: float = 20) -> bool:
        """Whether the slice lets it go, within so long."""
        poller = select.poll()
        poller.register(self.fd, 0)
        return any(what & select.POLLHUP for _, what in poller.poll(timeout_s * 1000))

    def granted(self, timeout_s: float = 20) -> Grant:
        """Take the next grant; TimeoutError."""
        poller = select.poll()
        poller.register(self.fd, select.POLLPRI)
        if not poller.poll(timeout_s * 1000):
            raise TimeoutError
        return self.take()


@contextmanager
def executor(uuid: str | None = None) -> Iterator[Executor]:
    """An executor of this process that does not block, attached if a slice is named; closed at the end."""
    fd = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK)
    try:
        is_ours = Executor(fd)
        if uuid is not None:
            is_ours.attach(uuid)
        yield is_ours
    finally:
        os.close(fd)


@dataclass
class Program:
    """The trivial executor as a process of its own."""

    process: subprocess.Popen[str]

    def line(self) -> str:
        """What it prints next; blocks."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def program(uuid: str, behaviour: str, *, by: Sequence[str] = ()) -> Iterator[Program]:
    """`behaviour`: see `serve`; `by`: a command that executes another; killed at the end if it still runs."""
    command = [*by, sys.executable, "-m", "tests.rig.executor", uuid, behaviour]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)
    try:
        started = Program(process)
        assert started.line() == "ready"
        yield started
    finally:
        process.kill()
        process.communicate()


def work(ns: int) -> None:
    """Use that much time."""
    until = time.monotonic_ns() + ns
    while (left := until - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def serve(one: Executor, behaviour: str) -> None:
    """Execute what comes until the end of the file.

    sum: the result is the sum of the arguments, and arg[0] is the time it takes, in ns. stuck: takes and never
    completes. Bytes that come are sent back.
    """
    poller = select.poll()
    poller.register(one.fd, select.POLLIN | select.POLLPRI)
    while True:
        events = poller.poll()[0][1]
        if events & select.POLLHUP:
            return
        if events & select.POLLIN:
            echo(one.fd)
        if events & select.POLLPRI:
            grant = one.take()
            print("taken", grant.number, flush=True)
            if behaviour == "stuck":
                poller.modify(one.fd, select.POLLIN)
                continue
            work(grant.args[0])
            try:
                one.complete(grant.number, result=sum(grant.args))
            except OSError as error:
                print("refused", error.errno, flush=True)


def echo(fd: int) -> None:
    data = os.read(fd, 1 << 16)
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])


def refuse_huge_pages() -> None:
    """Else khugepaged (nice 19) may hold this process's memory, to gather a huge page, while busier tasks keep it from
    the processor: whoever then faults waits for it, in real time or not.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_THP_DISABLE")


def main() -> None:
    refuse_huge_pages()
    with executor(sys.argv[1]) as one:
        print("ready", flush=True)
        serve(one, sys.argv[2])


if __name__ == "__main__":
    main()
