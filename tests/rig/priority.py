# SPDX-License-Identifier: Apache-2.0
"""The pace, and thereby the priority, of the engine's thread whenever it had executed something.

`computes`: nice -20, `brief`: the lowest real-time priority, `waits`: the highest of the module's.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

from tests.rig.gpu import ADDRESS, Gpu
from tests.rig.ring import Guest
from tests.rig.trace import TRACING, mounted
from tests.rig.vfio import Device, opened

_GROUP = "vgpu_priority"
_EVENT = re.compile(r": (computes|brief|waits|executed): ")


def executed(gpu: Gpu, items: Callable[[Device], list[bytes]], *, whole: bool = True) -> list[str]:
    """The pace of each item of a slice that is alone.

    `whole`: each item is executed in one piece; otherwise consecutive pieces of the same pace count once.
    """
    count, events = changes_during(gpu, items)
    found = _paces(events)
    if not whole:
        return [pace for pace, _ in groupby(found)]
    assert len(found) == count
    return found


def changes_during(gpu: Gpu, items: Callable[[Device], list[bytes]]) -> tuple[int, list[str]]:
    """The number of items of a slice that is alone, and the `changes` while they were executed."""
    gpu.tenant("blue", weight=100, timeslice_us=5000)
    guest = Guest()
    with opened(gpu.slice("blue")) as device:
        guest.attach(device)
        guest.enable(device)
        wanted = items(device)
        with changes(gpu.sysfs.read_gpu(ADDRESS, "engine")) as events:
            guest.submit(device, *wanted)
            guest.wait(device)
    return len(wanted), events


def thread() -> int:
    """The id of the engine's thread."""
    for comm in Path("/proc").glob("[0-9]*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            if comm.read_text().strip() in (f"vgpu/{ADDRESS}", f"vgpu/{ADDRESS}"[:15]):
                return int(comm.parent.name)
    raise LookupError(ADDRESS)


def _paces(events: list[str]) -> list[str]:
    """The pace of each executed piece; the thread slept before the first."""
    present, found = "waits", []
    for event in events:
        if event == "executed":
            found.append(present)
        else:
            present = event
    return found


@contextmanager
def changes(engine: str) -> Iterator[list[str]]:
    """The paces of the engine's thread, and `executed`, in order; filled at the body's end."""
    mounted()
    clock = TRACING / "trace_clock"
    before = re.findall(r"\[(\w+)\]", clock.read_text())[0]
    clock.write_text("counter")  # orders events across processors
    probes = TRACING / "kprobe_events"
    probes.write_text(
        f"p:{_GROUP}/computes sched_set_normal\n"
        f"p:{_GROUP}/brief sched_set_fifo_low\n"
        f"p:{_GROUP}/waits sched_set_fifo\n"
        f"r:{_GROUP}/executed vgpumgr:{engine}_execute\n"
    )
    events = TRACING / "events" / _GROUP
    (events / "filter").write_text(f"common_pid == {thread()}")
    (events / "enable").write_text("1")
    found: list[str] = []
    try:
        yield found
    finally:
        (events / "enable").write_text("0")
        text = (TRACING / "trace").read_text()
        probes.write_text("")
        clock.write_text(before)
    found += _EVENT.findall(text)
