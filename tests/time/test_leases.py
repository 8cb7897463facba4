# SPDX-License-Identifier: Apache-2.0
"""A child that never yields, beside one that does: its own slice pays for it.

test_lease_shares.py has the shares when all children yield.
"""

import os
import select
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from tests.kmod.test_windows import function
from tests.rig.figures import Record
from tests.rig.gpu import Gpu
from tests.rig.leasing import Bound, Child, Event, bound, child

POINT = 0.01  # of the engine
TIMESLICE_US = 10_000
WINDOW_S = 5  # more than 200 times a timeslice and a chunk


@pytest.fixture
def lending(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.leasing():
        yield gpu


@dataclass
class Gate:
    """Answers each gate request at once as done. It stops no process: the test itself plays the children."""

    executor: Bound
    closed: int = 0

    def serve(self, stop: int) -> None:
        poller = select.poll()
        for fd in (stop, self.executor.fd):
            poller.register(fd, select.POLLIN)
        while stop not in dict(poller.poll()):
            kind, _, sequence = self.executor.event()
            self.closed += kind is Event.GATE_CLOSE
            self.executor.gate(sequence)


@dataclass
class Worker:
    """Has work at all times, and gives each lease back when the lease is over."""

    child: Child
    leases: int = 0
    raised: list[BaseException] = field(default_factory=list)

    def work(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                self.child.start()
                self.leases += 1
                while (left_ns := self.child.expires_ns() - time.monotonic_ns()) > 0 and not stop.is_set():
                    time.sleep(min(left_ns / 1e9, 0.001))
                self.child.give_back(want=True)
        except BaseException as error:
            self.raised.append(error)


@contextmanager
def served(uuid: str) -> Iterator[tuple[Child, Gate]]:
    """The child of a window that the guest has opened, and the gate of its executor."""
    with function(uuid) as guest, bound(uuid) as executor, ExitStack() as stack:
        guest.open(0)
        assert executor.event() == (Event.OPENED, 0, 0)
        ended, end = os.pipe()
        gate = Gate(executor)
        thread = threading.Thread(target=gate.serve, args=(ended,))
        stack.callback(os.close, ended)
        stack.callback(thread.join)
        stack.callback(os.close, end)
        thread.start()
        yield stack.enter_context(child(executor, 0)), gate


@contextmanager
def working(uuid: str) -> Iterator[Worker]:
    with served(uuid) as (made, _), ExitStack() as stack:
        worker = Worker(made)
        stop = threading.Event()
        thread = threading.Thread(target=worker.work, args=(stop,))
        stack.callback(thread.join)
        stack.callback(stop.set)
        thread.start()
        yield worker
    assert worker.raised == []


def test_who_never_yields_has_no_more_than_its_share(lending: Gpu, figures: Record) -> None:
    """The gate ends each of its leases, and it pays until the gate is closed."""
    lending.tenant("over", weight=100, timeslice_us=TIMESLICE_US)
    lending.tenant("steady", weight=100, timeslice_us=TIMESLICE_US)
    with served(lending.slice("over")) as (hog, gate), working(lending.slice("steady")):
        hog.start()  # and stays busy for ever
        before = gate.closed
        window = lending.measured_over(WINDOW_S)
        assert gate.closed - before > WINDOW_S * 10, "the attack did not run"

    share, of_wall = window.share["over"], window.share_of_wall["steady"]
    figures("a child that never yields, share of its slice", share, against=0.5, unit="at most")
    figures("beside a child that never yields, share of all time", of_wall, against=0.5, unit="at least")
    assert share <= 0.5 + POINT
    assert of_wall >= 0.5 - POINT
