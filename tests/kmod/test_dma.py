# SPDX-License-Identifier: Apache-2.0
"""Guest memory that the VMM unmaps: work on it ends with an error, and the unmap waits for a few pieces only."""

import mmap
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.faults import faulting
from tests.rig.gpu import Gpu, poll
from tests.rig.kernel import lacking
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
from tests.rig.vfio import MSIX, UNMAP_DMA, Device, eventfd, opened, taken

ERROR_DMA = 4  # kmod/uapi/vgpu_device.h
PIECE_BYTES = 64 << 10
PIECES = AREA_BYTES // PIECE_BYTES
SYS_IOCTL = 16
HALF = AREA_BYTES // 2
PATTERN = 0x5A5A5A5A

Unmap = Callable[[Device], None]
# memory unmapped while an item uses it: the item that ends with the error, and what it has written by then
CASES: dict[str, tuple[Unmap, int, int]] = {
    "operand": (lambda device: device.unmap(AREA_IOVA, AREA_BYTES), 1, 0),
    "second half of the operand": (lambda device: device.unmap(AREA_IOVA + HALF, HALF), 1, HALF),
    "rings": (lambda device: device.unmap(RINGS_IOVA, RINGS_BYTES), 0, 0),
}


@pytest.mark.parametrize("what", CASES)
def test_an_item_whose_memory_is_unmapped_ends_with_an_error(gpu: Gpu, what: str) -> None:
    """The item is on the engine or waits for it. Nothing hangs, and after a reset and a map everything works."""
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
def traced_lengths() -> Iterator[list[int]]:
    """The size of each access to guest memory while the body runs; the list is filled at the end."""
    mounted()
    probes = TRACING / "kprobe_events"
    if not probes.exists():
        lacking("CONFIG_KPROBE_EVENTS")
    lengths: list[int] = []
    probes.write_text("p:vf/dma vfio_dma_rw length=%cx:u64\n")
    (TRACING / "trace").write_text("")
    (TRACING / "buffer_size_kb").write_text("8192")
    switch = TRACING / "events/vf/dma/enable"
    try:
        switch.write_text("1")
        yield lengths
    finally:
        switch.write_text("0")
        text = (TRACING / "trace").read_text()
        probes.write_text("")
    assert "LOST" not in text
    lengths += [int(found) for found in re.findall(r"dma: .*length=(\d+)", text)]


@pytest.mark.emulated
def test_a_large_operand_moves_in_pieces(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    guest = Guest()
    with opened(gpu.slice("blue")) as device, traced_lengths() as lengths:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, fill(AREA_IOVA, AREA_BYTES, PATTERN))
        guest.wait(device)
    assert max(lengths) == PIECE_BYTES
    assert lengths.count(PIECE_BYTES) == PIECES


class Unmapper(threading.Thread):
    """One call of the VMM that takes the lock of the guest's memory."""

    def __init__(self, device: Device, iova: int) -> None:
        super().__init__(daemon=True)
        self.device = device
        self.iova = iova
        self.waited_bytes = 0

    def run(self) -> None:
        self.device.unmap(self.iova, mmap.PAGESIZE)

    def is_waiting(self) -> bool:
        """Whether it sleeps in the call: only the holder of the lock can wake it."""
        try:
            words = Path(f"/proc/self/task/{self.native_id}/syscall").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # it has returned
            return False
        return words[0] == str(SYS_IOCTL) and int(words[2], 16) == UNMAP_DMA

    def settle(self) -> bool:
        """Wait until it waits or has returned; returns whether it waits."""
        poll(lambda: self.is_waiting() or not self.is_alive())
        return self.is_alive()


@pytest.mark.emulated
def test_unmapping_waits_for_few_pieces_however_much_is_moved(gpu: Gpu) -> None:
    """Items of a megabyte move in pieces; a VMM that unmaps other memory gets the lock between two pieces.

    Each page of the megabyte is provided only when the unmapping thread sleeps or has returned. So the order of events
    decides, even if a thread gets no processor for long.
    """
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    guest, other = Guest(), mmap.mmap(-1, mmap.PAGESIZE)
    waits: list[int] = []
    with faulting(AREA_BYTES) as faults, opened(gpu.slice("blue")) as device:
        device.map(guest.rings, RINGS_IOVA)
        device.map(faults.memory, AREA_IOVA)
        guest.enable(device)
        for _ in range(3):
            iovas = [number * mmap.PAGESIZE for number in range(PIECES)]
            for iova in iovas:
                device.map(other, iova)
            faults.take_back()
            guest.submit(device, fill(AREA_IOVA, AREA_BYTES, PATTERN))
            unmapper: Unmapper | None = None
            for page in range(0, AREA_BYTES, mmap.PAGESIZE):
                assert faults.wait() == page
                if unmapper is None and page // mmap.PAGESIZE % 5 == 0:
                    unmapper = Unmapper(device, iovas.pop())
                    unmapper.start()
                    poll(unmapper.is_waiting)
                if unmapper is not None and unmapper.settle():
                    unmapper.waited_bytes += mmap.PAGESIZE
                elif unmapper is not None:
                    waits.append(unmapper.waited_bytes)
                    unmapper = None
                faults.give(page)
            guest.wait(device)
            assert faults.memory[:] == b"\x5a" * AREA_BYTES
            if unmapper is not None:
                unmapper.join()
                waits.append(unmapper.waited_bytes)
            device.unmap(0, PIECES * mmap.PAGESIZE)
    assert max(waits) <= 4 * PIECE_BYTES, waits
    assert len(waits) >= 20
