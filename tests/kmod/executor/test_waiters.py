# SPDX-License-Identifier: Apache-2.0
"""Whoever waits for an executor's file, and however many: all are told, and no other slice waits for that.

That nobody who is told of anything is woken under a lock either is in tests/kfuzz.
"""

import select
from contextlib import ExitStack

from tests.kmod.executor.slices import Slice
from tests.rig.executor import executor, program
from tests.rig.kernel import PATIENCE
from tests.rig.priority import thread
from tests.rig.ring import REG_CONTROL
from tests.rig.wakeups import woken_by

TIMES = 20
EPOLLS = 300
RESET = 2


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
