# SPDX-License-Identifier: Apache-2.0
"""Guest memory that the VMM takes back: work on it ends with an error, and taking it back waits for few pieces."""

import mmap
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.rig.gpu import Gpu, poll
from tests.rig.ring import (
    AREA_BYTES,
    AREA_IOVA,
    REG_COMPLETED,
    REG_ERROR,
    REG_ERROR_INDEX,
    REG_FETCHED,
    RINGS_BYTES,
    RINGS_IOVA,
    Guest,
    delay,
    fill,
)
from tests.rig.trace import TRACING, mounted
from tests.rig.vfio import MSIX, Device, eventfd, opened, taken

ERROR_DMA = 4  # kmod/uapi/vgpu_device.h
PIECE_BYTES = 64 << 10
HALF = AREA_BYTES // 2
PATTERN = 0x5A5A5A5A

Unmap = Callable[[Device], None]
# what is unmapped while an item is at work: the item that ends with the error, what it has written by then
CASES: dict[str, tuple[Unmap, int, int]] = {
    "operand": (lambda device: device.unmap(AREA_IOVA, AREA_BYTES), 1, 0),
    "second half of the operand": (lambda device: device.unmap(AREA_IOVA + HALF, HALF), 1, HALF),
    "rings": (lambda device: device.unmap(RINGS_IOVA, RINGS_BYTES), 0, 0),
}


@pytest.mark.parametrize("what", CASES)
def test_an_item_whose_memory_is_unmapped_ends_with_an_error(gpu: Gpu, what: str) -> None:
    """The item is on the engine or waits for it; nothing hangs, and after a reset and a map it all works."""
    unmap, index, written = CASES[what]
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    guest, vector = Guest(), eventfd()
    halves = [mmap.mmap(-1, HALF), mmap.mmap(-1, HALF)]
    with opened(gpu.slice("blue")) as device:
        device.connect(MSIX, [-1, vector])
        device.map(guest.rings, RINGS_IOVA)
        for number, half in enumerate(halves):
            device.map(half, AREA_IOVA + number * HALF)
        guest.enable(device)
        guest.submit(device, delay(900_000), fill(AREA_IOVA, AREA_BYTES, PATTERN))
        poll(lambda: device.register(REG_FETCHED) == 2)
        assert device.register(REG_COMPLETED) == 0
        unmap(device)
        poll(lambda: device.register(REG_ERROR) != 0)
        assert (device.register(REG_ERROR), device.register(REG_ERROR_INDEX)) == (ERROR_DMA, index)
        poll(lambda: taken(vector) == 1)
        assert b"".join(half[:] for half in halves) == b"\x5a" * written + bytes(AREA_BYTES - written)

        device.reset()
        device.unmap(0, 1 << 40)
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, fill(AREA_IOVA, AREA_BYTES, PATTERN))
        guest.wait(device)
        assert guest.area[:] == b"\x5a" * AREA_BYTES


@contextmanager
def traced_dma() -> Iterator[list[tuple[str, int]]]:
    """Accesses to guest memory with their length, and unmaps, in order; the list is filled at the end."""
    mounted()
    probes = TRACING / "kprobe_events"
    unmapping = "cmd == 0x3b72"
    events: list[tuple[str, int]] = []
    probes.write_text("p:vf/dma vfio_dma_rw length=%cx:u64\n")
    (TRACING / "trace").write_text("")
    (TRACING / "buffer_size_kb").write_text("8192")
    enter, leave = (TRACING / f"events/syscalls/sys_{side}_ioctl" for side in ("enter", "exit"))
    (enter / "filter").write_text(unmapping)
    switches = [TRACING / "events/vf/dma/enable", enter / "enable", leave / "enable"]
    try:
        for switch in switches:
            switch.write_text("1")
        yield events
    finally:
        for switch in switches:
            switch.write_text("0")
        text = (TRACING / "trace").read_text()
        (enter / "filter").write_text("0")
        probes.write_text("")
    assert "LOST" not in text
    unmapper = None
    for line in text.splitlines():
        task = re.match(r"\s*\S.*?-(\d+)\s+\[", line)
        if found := re.search(r"dma: .*length=(\d+)", line):
            events.append(("dma", int(found[1])))
        elif "sys_ioctl(" in line and task:
            unmapper = task[1]
            events.append(("unmap", 0))
        elif "sys_ioctl ->" in line and task and task[1] == unmapper:
            unmapper = None
            events.append(("unmapped", 0))


def test_unmapping_waits_for_few_pieces_however_much_is_moved(gpu: Gpu) -> None:
    """Items of a megabyte move in pieces; a VMM that unmaps something else meanwhile gets the lock between them."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    guest, other = Guest(), mmap.mmap(-1, mmap.PAGESIZE)
    with opened(gpu.slice("blue")) as device, traced_dma() as events:
        guest.attach(device)
        guest.enable(device)

        def work() -> None:
            for _ in range(3):
                guest.submit(device, *[fill(AREA_IOVA, AREA_BYTES, PATTERN)] * 8)
                guest.wait(device)

        worker = threading.Thread(target=work)
        worker.start()
        while worker.is_alive():
            device.map(other, 0)
            device.unmap(0, len(other))
            time.sleep(0.001)
    lengths = [length for what, length in events if what == "dma"]
    assert max(lengths) == PIECE_BYTES
    waits, within = [], None
    for what, _ in events:
        if what == "unmap":
            within = 0
        elif what == "unmapped" and within is not None:
            waits.append(within)
            within = None
        elif within is not None:
            within += 1
    assert len(waits) >= 20
    assert max(waits) <= 4, waits
    names = [what for what, _ in events]
    between = names[names.index("unmap") : len(names) - names[::-1].index("unmapped")]
    assert "dma" in between, "nothing moved while it unmapped"
