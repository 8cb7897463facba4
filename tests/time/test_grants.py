# SPDX-License-Identifier: Apache-2.0
"""The engine `exec`: whoever executes, shares are those of the kernel's clock."""

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.kmod.executor.slices import Slice
from tests.rig.executor import ITEM_REVOKED, Executor, executor, program
from tests.rig.figures import Record
from tests.rig.gpu import Gpu
from tests.rig.kernel import threads
from tests.rig.measure import measure
from tests.rig.ring import ENTRIES, LAUNCH, REG_COMPLETED, Guest, descriptor
from tests.rig.trace import traced_runs
from tests.rig.vfio import opened

pytestmark = pytest.mark.emulated

POINT = 0.01  # of the engine
CHUNK_US = 8000
WORK_US = 1000
FILES, AHEAD = 50, 8


@pytest.fixture
def grants(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.lending(max_chunk_us=CHUNK_US):
        yield gpu


def launching(us: int) -> dict[str, object]:
    """Items whose executor takes so long, beside what it takes to be asked."""
    return {"op": "launch", "delay_us": us}


def test_granted_items_are_shared_three_to_one(grants: Gpu, figures: Record) -> None:
    """By the module's counters and, independently, by the items of equal length that came back."""
    grants.tenant("blue", weight=300, timeslice_us=4000)
    grants.tenant("green", weight=100, timeslice_us=4000)
    blue, green = grants.slice("blue"), grants.slice("green")
    with program(blue, "sum"), program(green, "sum"):
        measured = measure(grants, {blue: launching(1000), green: launching(1000)}, window_s=5)

    figures("grants 3:1, share of blue by counters", measured.share["blue"], against=0.75, unit="of the engine")
    assert measured.saturated
    assert measured.share["blue"] == pytest.approx(0.75, abs=POINT)
    assert measured.share["green"] == pytest.approx(0.25, abs=POINT)
    assert measured.items["blue"] == pytest.approx(3 * measured.items["green"], rel=0.1)


def flood(uuid: str, stop: threading.Event, seen: list[int]) -> None:
    """Keep items queued that take twice what is granted; `seen` are their statuses."""
    with opened(uuid) as device:
        guest = Guest()
        guest.attach(device)
        guest.enable(device)
        while not stop.wait(0.005):
            done = device.register(REG_COMPLETED)
            seen += [guest.completion(number).status for number in range(len(seen), done)]
            room = ENTRIES - (guest.tail - done)
            if room:
                guest.submit(device, *[descriptor(LAUNCH, args=[2000 * CHUNK_US])] * room)


def test_overrunning_grants_costs_who_overruns(grants: Gpu, figures: Record) -> None:
    """Each of its items is revoked, and it has no more of the engine than it is entitled to."""
    grants.tenant("over", weight=100, timeslice_us=4000)
    grants.tenant("steady", weight=100, timeslice_us=4000)
    over, steady = grants.slice("over"), grants.slice("steady")
    stop, seen = threading.Event(), list[int]()
    with ExitStack() as stack:
        stack.enter_context(program(over, "sum"))
        stack.enter_context(program(steady, "sum"))
        flooder = threading.Thread(target=flood, args=(over, stop, seen))
        flooder.start()
        stack.callback(flooder.join)
        stack.callback(stop.set)
        with grants.loaded({steady: launching(1000)}):
            grants.wait_queued(over)
            share = grants.measured_over(5).share

    figures("overrun grants, share of who overruns", share["over"], against=0.5, unit="at most")
    assert set(seen) == {ITEM_REVOKED}
    assert share["over"] <= 0.5 + POINT
    assert share["over"] > 0.1, "the attack did not run"
    assert share["steady"] >= 0.5 - POINT


@contextmanager
def busy_processor(programs: int) -> Iterator[None]:
    """So many others want it at all times, and come before all that is neither in real time nor less nice."""
    with ExitStack() as stack:
        for _ in range(programs):
            hog = stack.enter_context(subprocess.Popen(["nice", "-n", "-10", sys.executable, "-c", "while True: pass"]))
            stack.callback(hog.kill)
        yield


def test_who_attached_in_real_time_is_told_in_time_on_a_busy_host(grants: Gpu, figures: Record) -> None:
    """A grant's time runs from when it is offered, so what is above the executor's own work is the way to it."""
    grants.tenant("blue", weight=100, timeslice_us=WORK_US)
    blue = grants.slice("blue")
    with (
        program(blue, "sum", by=("chrt", "--fifo", "10")),
        grants.loaded({blue: launching(WORK_US)}),
        traced_runs() as runs,  # of an item each
        busy_processor(3),
    ):
        time.sleep(2)
    assert len(runs) > 10
    told_us = max(run.length_ns for run in runs) / 1000 - WORK_US

    figures("to be told in real time of a grant, host busy", told_us, against=WORK_US / 2, unit="us, at most")
    assert told_us < WORK_US / 2


def taken(one: Executor) -> int:
    """The number of the next grant, asked for again and again."""
    while True:
        try:
            return one.take().number
        except BlockingIOError:
            continue


@pytest.mark.parametrize("epolls", [100, 250, 400])
def test_who_lets_many_wait_has_half_of_a_processor_for_that(grants: Gpu, figures: Record, epolls: int) -> None:
    """In real time, with something to be told at all times, however long that is in ticks of the timer."""
    grants.set_max_chunk_us(100 * CHUNK_US)
    with ExitStack() as stack:
        blue = Slice(grants, stack, "blue")
        one = stack.enter_context(executor())
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
        try:
            one.attach(blue.uuid)
        finally:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        same = [os.dup(one.fd) for _ in range(FILES)]
        stack.callback(lambda: [os.close(file) for file in same])
        for _ in range(epolls):
            waiter = stack.enter_context(select.epoll())
            for file in same:
                waiter.register(file, select.EPOLLPRI)

        (thread,) = threads("vgpu-exec-")
        usage = Path(f"/proc/{thread}/schedstat")
        begun_ns, ran_ns = time.monotonic_ns(), int(usage.read_text().split()[0])
        while (passed_ns := time.monotonic_ns() - begun_ns) < 2e9:
            while blue.guest.tail - blue.device.register(REG_COMPLETED) < AHEAD:
                blue.launch()
            one.complete(taken(one))
        share = (int(usage.read_text().split()[0]) - ran_ns) / passed_ns

    figures(f"telling {FILES * epolls} who wait, in real time", share, against=0.5, unit="of a processor, at most")
    assert share > 0.3, "not many enough"
    assert share <= 0.5 + POINT
