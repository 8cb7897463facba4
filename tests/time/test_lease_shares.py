# SPDX-License-Identifier: Apache-2.0
"""Exact shares of leases of an engine that lends. The children's kernels are sleeps, and computing takes no time.

Every child always has work, stops after the kernel in which its lease ends, and asks for the next lease.
"""

import select
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

from tests.kmod.test_leases import Slice, served
from tests.rig.figures import Record
from tests.rig.gpu import Gpu
from tests.rig.leasing import Child, Event, Lease

TIMESLICE_US, KERNEL_US = 5_000, 1_000
SPANS = 200  # of timeslice and kernel: the shortest measurement, for each tenant
POINT = 0.01
WEIGHTS = {
    2: {"blue": 300, "green": 100},
    8: {"blue": 400, "green": 300, "red": 200, "grey": 100},
    32: {f"tenant-{number}": 100 * (1 + number % 4) for number in range(8)},
}


class Crowd(threading.Thread):
    """Children of many slices in one thread; only one of them has the engine at a time. `closed`: how often a gate was
    closed."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        super().__init__()
        self.closed = 0
        self._ended = threading.Event()
        self._children = {child.signals(): child for child in (each.child() for each in slices)}
        self._executors = {each.executor.fd: each for each in slices}
        self._poller = select.poll()
        for fd in (*self._children, *self._executors):
            self._poller.register(fd, select.POLLIN)

    def __enter__(self) -> "Crowd":
        for child in self._children.values():
            child.ready()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        # There is no signal for a lease that is granted at once.
        for child in self._children.values():
            self._use_leases(child)
        while not self._ended.is_set():
            for fd, _ in self._poller.poll(100):
                if fd in self._executors:
                    self._operate_gate(self._executors[fd])
                else:
                    self._children[fd].signalled(0)
                    self._use_leases(self._children[fd])

    def _operate_gate(self, of: Slice) -> None:
        kind, _, sequence = of.executor.event()
        self.closed += kind is Event.GATE_CLOSE
        of.executor.gate(sequence)

    def _use_leases(self, child: Child) -> None:
        """Use leases until another child has the engine; the child that yields may be the next one again."""
        if child.lease()[1] in (Lease.RECALLED, Lease.EXPIRED):
            child.give_back(want=True)
        while (lease := child.lease())[1] is Lease.LENT and not self._ended.is_set():
            child.say(lease[0], busy=True)
            while child.lease()[1] is not Lease.EXPIRED and time.monotonic_ns() < child.expires_ns():
                time.sleep(KERNEL_US / 1e6)
            child.give_back(want=True)


@pytest.fixture
def lending(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.leasing():
        yield gpu


@pytest.mark.parametrize("slices", WEIGHTS)
def test_slices_have_their_tenants_share_in_leases_no_longer_than_timeslice_and_kernel(
    lending: Gpu, figures: Record, slices: int
) -> None:
    weights = WEIGHTS[slices]
    tenants = list(weights)
    for name, weight in weights.items():
        lending.tenant(name, weight=weight, timeslice_us=TIMESLICE_US + 1)
    with ExitStack() as stack:
        made = [stack.enter_context(served(lending.slice(tenants[at % len(tenants)]))) for at in range(slices)]
        crowd = stack.enter_context(Crowd(made))
        # A tenant that was alone at first had the engine without end. The longest run counts from the change of the
        # timeslice.
        time.sleep(0.1)
        for name, weight in weights.items():
            lending.tenant(name, weight=weight, timeslice_us=TIMESLICE_US)
        least = min(weights.values()) / sum(weights.values())
        window = lending.measured_over(SPANS * (TIMESLICE_US + KERNEL_US) / 1e6 / least)
        longest_us = {name: lending.stats(name).longest_run_ns / 1000 for name in tenants}

    assert crowd.closed == 0
    for name, weight in weights.items():
        share = weight / sum(weights.values())
        figures(f"{slices} slices, {name}", window.share[name], against=share, unit="of the lease time")
        assert window.share[name] == pytest.approx(share, abs=POINT)
        own = [window.slice_share[each.uuid] for each in made[tenants.index(name) :: len(tenants)]]
        assert own == pytest.approx([share * len(tenants) / slices] * len(own), abs=POINT)
    most = max(longest_us.values())
    figures(f"{slices} slices, longest lease", most, against=TIMESLICE_US + KERNEL_US, unit="us, at most")
    assert most <= TIMESLICE_US + KERNEL_US


def test_who_is_alone_with_a_cap_has_no_more_than_that(lending: Gpu, figures: Record) -> None:
    lending.tenant("blue", weight=100, timeslice_us=TIMESLICE_US, cap_us=30_000, cap_period_us=100_000)
    with served(lending.slice("blue")) as made, Crowd([made]) as crowd:
        time.sleep(0.2)  # the largest credit it may accumulate
        share = lending.measured_over(10).share_of_wall["blue"]

    figures("alone with a cap of 30 %", share, against=0.3, unit="of all time")
    assert crowd.closed == 0
    assert share == pytest.approx(0.3, abs=POINT)


def test_a_weight_that_is_changed_live_is_followed(lending: Gpu, figures: Record) -> None:
    for name, weight in (("blue", 300), ("green", 100)):
        lending.tenant(name, weight=weight, timeslice_us=TIMESLICE_US)
    with ExitStack() as stack:
        stack.enter_context(Crowd([stack.enter_context(served(lending.slice(name))) for name in ("blue", "green")]))
        time.sleep(0.5)
        lending.tenant("green", weight=900)
        share = lending.measured_over(5).share["blue"]

    figures("3:1 becomes 1:3, share of blue", share, against=0.25, unit="of the lease time")
    assert share == pytest.approx(0.25, abs=POINT)
