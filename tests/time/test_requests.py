# SPDX-License-Identifier: Apache-2.0
"""How often the children of one slice may ask for leases. Beyond that a call waits, and no other slice notices.

It needs a lab host where computing takes no time: almost all time passes while every thread waits.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.kmod.test_leases import served
from tests.rig.gpu import Gpu
from tests.rig.leasing import Child

BURST, EACH_NS = 1000, 20_000  # kmod/engine/child.c
WAIT_NS = 1_000_000  # of a delayed call
LEFT = WAIT_NS // EACH_NS  # kept for calls that do not wait
AT_ONCE = BURST - LEFT


@pytest.fixture
def lending(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.leasing():
        for name in ("blue", "green"):
            gpu.tenant(name, weight=100, timeslice_us=10_000)
        yield gpu


@contextmanager
def children(gpu: Gpu, *tenants: str) -> Iterator[list[Child]]:
    """One child of each tenant's slice; a name given twice adds a second child of the same slice."""
    with ExitStack() as stack:
        slices = {name: stack.enter_context(served(gpu.slice(name))) for name in set(tenants)}
        yield [slices[name].child(tenants[:at].count(name)) for at, name in enumerate(tenants)]


def asked_without_waiting(child: Child) -> tuple[int, float]:
    """How often it can ask without waiting, and how many of these requests were allowed only because time passed."""
    os.set_blocking(child.stream, False)
    count, begun_ns = 0, time.monotonic_ns()
    try:
        while count < 10 * BURST:
            child.ready()
            count += 1
    except BlockingIOError:
        pass
    os.set_blocking(child.stream, True)
    return count, (time.monotonic_ns() - begun_ns) / EACH_NS


def ask_without_end(child: Child) -> None:
    while True:
        child.ready()


def test_the_children_of_a_slice_have_one_allowance_and_other_slices_have_theirs(lending: Gpu) -> None:
    with children(lending, "blue", "blue", "green") as (first, second, rival):
        count, earned = asked_without_waiting(first)
        assert AT_ONCE <= count <= AT_ONCE + earned
        count, earned = asked_without_waiting(second)
        assert count <= earned + 1
        count, earned = asked_without_waiting(rival)
        assert AT_ONCE <= count <= AT_ONCE + earned


def test_who_does_not_wait_leaves_something_to_those_who_do(lending: Gpu) -> None:
    with children(lending, "blue", "blue") as (greedy, patient):
        asked_without_waiting(greedy)
        begun_ns = time.monotonic_ns()
        patient.ready()
        assert time.monotonic_ns() - begun_ns < EACH_NS


def test_an_allowance_comes_back_with_time_and_is_not_saved_up_beyond_a_burst(lending: Gpu) -> None:
    with children(lending, "blue") as (child,):
        asked_without_waiting(child)
        begun_ns = time.monotonic_ns()
        time.sleep(0.005)
        count, _ = asked_without_waiting(child)
        assert count == pytest.approx((time.monotonic_ns() - begun_ns) / EACH_NS, abs=1)
        time.sleep(10)
        count, earned = asked_without_waiting(child)
        assert AT_ONCE <= count <= AT_ONCE + earned


def test_who_asks_without_end_is_held_up_and_asks_at_the_rate(lending: Gpu) -> None:
    times = 5 * BURST
    with children(lending, "blue", "green") as (child, rival):
        asked_without_waiting(child)
        begun_ns = time.monotonic_ns()
        for _ in range(LEFT + times):
            child.ready()
        took_ns = time.monotonic_ns() - begun_ns
        assert (times - 1) * EACH_NS <= took_ns <= times * EACH_NS + WAIT_NS
        begun_ns = time.monotonic_ns()
        rival.ready()
        assert time.monotonic_ns() - begun_ns < EACH_NS


def test_a_signal_ends_the_wait(lending: Gpu) -> None:
    """The gate must be able to freeze a child at once, whatever the child does."""

    def give_up(*_: object) -> None:
        raise InterruptedError

    with children(lending, "blue") as (child,):
        before = signal.signal(signal.SIGALRM, give_up)
        try:
            asked_without_waiting(child)
            begun_ns = time.monotonic_ns()
            signal.setitimer(signal.ITIMER_REAL, WAIT_NS / 2 / 1e9)
            with pytest.raises(InterruptedError):
                ask_without_end(child)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert time.monotonic_ns() - begun_ns < WAIT_NS
