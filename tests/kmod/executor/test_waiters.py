# SPDX-License-Identifier: Apache-2.0
"""Whoever waits for an executor's file, and however many: all are told, and the engine's thread tells nobody.

That nobody who is told of anything is woken under a lock either is in tests/kfuzz.
"""

import ctypes
import errno
import os
import select
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kmod.executor.slices import Slice
from tests.rig.executor import executor, program
from tests.rig.gpu import Gpu, poll
from tests.rig.kernel import PATIENCE, threads
from tests.rig.priority import thread
from tests.rig.ring import REG_CONTROL
from tests.rig.wakeups import woken_by

TIMES = 20
EPOLLS = 300
RESET = 2
TAKEN_WITHIN_US = 2_000_000
SYS_SCHED_SETATTR = 314
SCHED_DEADLINE = 6
MS = 1_000_000


def test_the_thread_of_the_engine_wakes_no_executor(blue: Slice) -> None:
    """Nor whoever else waits for it, who can make that take as long as they like."""
    with program(blue.uuid, "sum") as one, woken_by(thread()) as found:
        for number in range(TIMES):
            assert blue.done(blue.launch(0, number)).result == number
    assert len(found) >= TIMES, "what it wakes is not seen"
    assert one.process.pid not in found


def test_all_who_wait_are_told_of_a_grant_and_of_the_end(blue: Slice) -> None:
    """Also those who wait for who waits."""
    with executor(blue.uuid) as one, ExitStack() as stack:
        direct = [stack.enter_context(select.epoll()) for _ in range(EPOLLS)]
        beyond = [stack.enter_context(select.epoll()) for _ in range(EPOLLS)]
        for waiter in direct:
            waiter.register(one.fd, select.EPOLLPRI)
        for waiter in beyond:
            waiter.register(direct[0].fileno(), select.EPOLLIN)

        def told(what: int) -> None:
            for waiter in beyond:
                assert waiter.poll(20 * PATIENCE)
            for waiter in direct:
                assert waiter.poll(20 * PATIENCE) == [(one.fd, what)]

        number = blue.launch()
        told(select.EPOLLPRI)
        one.complete(one.take().number)
        blue.done(number)
        assert not [event for waiter in (*beyond, *direct) for event in waiter.poll(0)]
        blue.device.set_register(REG_CONTROL, RESET)
        told(select.EPOLLHUP)


def test_who_waits_is_told_of_a_revocation_and_of_the_rings(grants: Gpu, slices: ExitStack) -> None:
    """By no look after some time, which poll() takes by itself."""
    grants.set_max_chunk_us(TAKEN_WITHIN_US)
    with executor() as one, select.epoll() as waiter:
        blue = Slice(grants, slices, "blue")
        blue.device.set_register(REG_CONTROL, RESET)
        one.attach(blue.uuid)
        waiter.register(one.fd, select.EPOLLOUT | select.EPOLLET)
        assert waiter.poll(0) == []
        blue.enable()
        assert waiter.poll(20 * PATIENCE) == [(one.fd, select.EPOLLOUT)]

        waiter.modify(one.fd, select.EPOLLPRI | select.EPOLLET)
        blue.launch()
        assert waiter.poll(20 * PATIENCE) == [(one.fd, select.EPOLLPRI)]
        one.take()
        assert waiter.poll(20 * PATIENCE) == [(one.fd, select.EPOLLPRI)], "not told that it was revoked"


def notifier() -> int:
    """The thread that wakes who waits for the only executor, once those of others are gone."""
    poll(lambda: len(threads("vgpu-exec-")) == 1)
    return int(threads("vgpu-exec-")[0])


def scheduling(thread: int) -> tuple[int, int, int]:
    """Policy, priority and nice value."""
    return (
        os.sched_getscheduler(thread),
        os.sched_getparam(thread).sched_priority,
        os.getpriority(os.PRIO_PROCESS, thread),
    )


def real_time(policy: int, priority: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(priority))


def nice(value: int) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, value)


def deadline() -> None:
    attributes = struct.pack("<IIQiIQQQ", 48, SCHED_DEADLINE, 0, 0, 0, 5 * MS, 10 * MS, 10 * MS)
    assert ctypes.CDLL(None).syscall(SYS_SCHED_SETATTR, 0, attributes, 0) == 0


@pytest.mark.parametrize(
    ("become", "told_as"),
    [
        (lambda: real_time(os.SCHED_FIFO, 42), (os.SCHED_FIFO, 42, 0)),
        (lambda: real_time(os.SCHED_RR, 7), (os.SCHED_RR, 7, 0)),
        (deadline, (os.SCHED_FIFO, 50, 0)),
        (lambda: real_time(os.SCHED_IDLE, 0), (os.SCHED_OTHER, 0, 0)),
        (lambda: nice(-5), (os.SCHED_OTHER, 0, -5)),
        (lambda: nice(19), (os.SCHED_OTHER, 0, 19)),
    ],
    ids=["fifo", "round robin", "deadline", "idle", "not nice", "nice"],
)
def test_who_waits_is_told_as_soon_as_who_attached_runs(
    blue: Slice, become: Callable[[], None], told_as: tuple[int, int, int]
) -> None:
    with executor() as one:
        become()
        try:
            one.attach(blue.uuid)
        finally:
            real_time(os.SCHED_OTHER, 0)
            nice(0)
        assert scheduling(notifier()) == told_as
        number = blue.launch()
        one.complete(one.granted().number)
        blue.done(number)
    poll(lambda: not threads("vgpu-exec-"))


def test_who_waits_for_a_guest_is_no_task_that_hangs(grants: Gpu) -> None:
    """To the kernel, which complains of those after two minutes: nothing has been told yet."""
    grants.tenant("blue", weight=100, timeslice_us=1000)
    with executor(grants.slice("blue")):
        stat = Path(f"/proc/{notifier()}/stat")
        poll(lambda: stat.read_text().rpartition(")")[2].split()[0] == "I")


def test_who_is_refused_a_slice_leaves_no_thread(blue: Slice) -> None:
    with executor(blue.uuid), executor() as other:
        there = [str(notifier())]
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
            other.attach(blue.uuid)
        poll(lambda: threads("vgpu-exec-") == there)
