# SPDX-License-Identifier: Apache-2.0
"""The virtual function is reset while it works: nothing from before happens afterwards, and it can be used at once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kmod.test_function import RESETS, flr
from tests.rig.faults import faulting
from tests.rig.gpu import Gpu, poll
from tests.rig.ring import (
    AREA_BYTES,
    AREA_IOVA,
    DST_DEVICE,
    ENABLED,
    ERROR,
    IRQ,
    REG_ERROR,
    REG_FETCHED,
    REG_STATUS,
    RINGS_IOVA,
    SRC_DEVICE,
    Guest,
    copy,
    delay,
    fill,
)
from tests.rig.vfio import COMMAND, CONFIG, MSIX, Device, eventfd, opened, taken

INTX_DISABLE = 0x400
ITEMS = 20
PATTERN = 0x1234_5678


def as_a_kernel(device: Device) -> None:
    """Do what Linux does in a guest: first disable every access, then reset."""
    device.write(CONFIG, COMMAND, INTX_DISABLE.to_bytes(2, "little"))
    flr(device)


@pytest.mark.parametrize("reset", [*RESETS.values(), as_a_kernel], ids=[*RESETS, "as a kernel"])
def test_a_reset_in_the_middle_of_work(gpu: Gpu, reset: Callable[[Device], None]) -> None:
    """The item on the engine is charged, all items are dropped, none is completed; eventfds and device memory stay."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    vector = eventfd()
    guest = Guest()
    with opened(uuid) as device:
        device.connect(MSIX, [vector])
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, fill(0, 4096, PATTERN, DST_DEVICE), *[delay(50_000, IRQ)] * ITEMS)
        poll(lambda: device.register(REG_FETCHED) == 1 + ITEMS and gpu.slice_stats(uuid).items > 1)
        poll(lambda: taken(vector) > 0)  # an item is counted before its interrupt
        reset(device)
        answered = bytes(guest.rings)
        taken(vector)
        before = gpu.slice_stats(uuid)
        assert (before.queued, before.items + before.dropped) == (0, 1 + ITEMS)
        assert device.register(REG_STATUS) & (ENABLED | ERROR) == 0
        assert device.register(REG_ERROR) == 0

        again = gpu.slice("blue")
        with opened(again) as other:
            busy = Guest()
            busy.attach(other)
            busy.enable(other)
            busy.submit(other, delay(1000))
            busy.wait(other)  # the engine has finished the chunk that it had begun
        assert (bytes(guest.rings), taken(vector)) == (answered, 0)
        assert gpu.slice_stats(uuid).items == before.items

        guest.enable(device)
        guest.submit(device, copy(AREA_IOVA, 0, 4096, SRC_DEVICE | IRQ))
        guest.wait(device)
        assert guest.area[:4096] == PATTERN.to_bytes(4, "little") * 1024
        poll(lambda: taken(vector) == 1)


@pytest.mark.parametrize("how", RESETS)
def test_a_reset_while_guest_memory_does_not_answer_is_no_fault(gpu: Gpu, how: str) -> None:
    """An access that the reset breaks off has not failed: no error is reported."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest, error = Guest(), eventfd()
    with faulting(AREA_BYTES) as faults, opened(uuid) as device:
        device.connect(MSIX, [-1, error])
        device.map(guest.rings, RINGS_IOVA)
        device.map(faults.memory, AREA_IOVA)
        guest.enable(device)
        guest.submit(device, copy(0, AREA_IOVA, 4096, DST_DEVICE))
        assert faults.wait() == 0
        RESETS[how](device)
        assert (gpu.slice_stats(uuid).errors, taken(error)) == (0, 0)


def test_every_item_is_answered_or_counted_as_dropped(gpu: Gpu) -> None:
    """This includes an item that the engine has finished but whose result the guest's memory does not accept before the
    reset."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest = Guest()
    with faulting(AREA_BYTES) as faults, opened(uuid) as device:
        device.map(guest.rings, RINGS_IOVA)
        device.map(faults.memory, AREA_IOVA)
        guest.enable(device)
        guest.submit(device, delay(1), fill(AREA_IOVA, 4096, PATTERN), delay(1), delay(1))
        assert faults.wait() == 0
        poll(lambda: Path(f"/sys/bus/mdev/devices/{uuid}/state").read_text() == "idle\n")
        assert device.register(REG_FETCHED) == 4
        device.reset()
        stats = gpu.slice_stats(uuid)
        assert (stats.items, stats.dropped) == (1, 3)
