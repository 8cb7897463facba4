# SPDX-License-Identifier: Apache-2.0
"""Requests of a VMM and its guest without memory."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rig import migration
from tests.rig.client import client
from tests.rig.failing import (
    WITHOUT_MEMORY,
    all_failing,
    each_failure,
    failing,
    failures_possible,
    numbers,
    text_of,
    text_of_function,
)
from tests.rig.gpu import Gpu, poll
from tests.rig.migration import RESUMING, STOP, STOP_COPY, set_state
from tests.rig.ring import IRQ, NOP, Guest, descriptor
from tests.rig.vfio import BAR0, MSIX, Device, eventfd, opened, taken

pytestmark = pytest.mark.usefixtures("reached")

CONTROL, STATUS, ERROR = 0x10, 0x14, 0x18
RINGS = {0x20: 0x10000, 0x28: 0x20000, 0x30: 0x30000, 0x38: 8}  # addresses of both rings and the shadow, entries
ENABLE = (1).to_bytes(4, "little")
ERROR_RESOURCE = 11  # kmod/uapi/vgpu_device.h


def scene(gpu: Gpu) -> str:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    return gpu.slice("blue")


def prepare(device: Device) -> None:
    device.reset()
    device.master()
    for offset, value in RINGS.items():
        device.set_register(offset, value)


def enable(device: Device) -> None:
    prepare(device)
    os.pwrite(device.fd, ENABLE, control_at(device))


def control_at(device: Device) -> int:
    return device.region(BAR0)[1] + CONTROL


def enabled_without_memory(device: Device) -> tuple[int, int]:
    """Enable with each allocation failing in turn. Returns how many could fail, and how many of those stopped the
    device.

    A guest's request cannot be refused, so a failure stops the device.
    """
    place = control_at(device)
    failed: set[int] = set()
    stopped: set[int] = set()
    met: list[bool] = []
    for number in numbers(met):
        prepare(device)
        with failing(number) as has_failed:
            with suppress(OSError):  # the copy of the written value
                os.pwrite(device.fd, ENABLE, place)
            met.append(has_failed())
        error = device.register(ERROR)
        assert error in ((0, ERROR_RESOURCE) if met[-1] else (0,))
        assert not (device.register(STATUS) & 1 and error)
        if met[-1]:
            failed.add(number)
        if error == ERROR_RESOURCE:
            stopped.add(number)
    enable(device)
    assert device.register(STATUS) & 1
    return len(failed), len(stopped)


def feed(device: Device, stream: bytes) -> int:
    """Restore up to the last step; returns the stream's file."""
    fd = set_state(device, RESUMING)
    migration.write_all(fd, stream)
    return fd


def test_enabling_a_ring(gpu: Gpu) -> None:
    uuid = scene(gpu)
    with opened(uuid) as device:
        _, stopped = enabled_without_memory(device)
    assert stopped >= 1
    assert client(uuid, "verify").status == 0


def test_opening_a_slice(gpu: Gpu) -> None:
    """Device memory is allocated completely or not at all. The memory with which KASAN tracks it is not ours."""
    uuid = scene(gpu)

    def try_to_open() -> None:
        with opened(uuid):
            pass

    def seen() -> tuple[bool, int, bool]:
        memory = "vgpu_memory_create" in Path("/proc/vmallocinfo").read_text()
        return gpu.slice_stats(uuid).open, gpu.slice_stats(uuid).error, memory

    with failures_possible(text_of("vgpumgr"), but=text_of_function("kasan_populate_vmalloc")):
        assert each_failure(try_to_open, undo=lambda: None, same=seen) > 10
    assert client(uuid, "verify").status == 0


def test_saving_and_restoring(gpu: Gpu) -> None:
    with opened(scene(gpu)) as device:
        set_state(device, STOP)

        def back() -> None:
            if migration.state(device) == RESUMING:
                device.reset()
            set_state(device, STOP)

        for wanted in (STOP_COPY, RESUMING):
            times = each_failure(
                lambda wanted=wanted: os.close(set_state(device, wanted)),  # type: ignore[misc]
                undo=back,
                same=lambda: migration.state(device),
            )
            assert times > 2


def test_saving_and_restoring_without_any_memory(gpu: Gpu) -> None:
    """A stream's memory may be allocated page by page, so that no single failure prevents it."""
    with opened(scene(gpu)) as device:
        set_state(device, STOP)
        for wanted in (STOP_COPY, RESUMING):
            with failures_possible(text_of_function("vgpu_migration_open")), all_failing() as failed:
                with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
                    set_state(device, wanted)
                assert failed() > 1
            assert migration.state(device) == STOP
            os.close(set_state(device, wanted))
            device.reset()
            set_state(device, STOP)


def test_restoring_a_ring(gpu: Gpu) -> None:
    """Nothing is left of a stream that found no memory, and the same stream can be restored afterwards."""
    uuid = scene(gpu)
    with opened(uuid) as device:
        guest = Guest()
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, descriptor(NOP))
        guest.wait(device)
        stream = migration.save(device)

        refused: dict[int, int | None] = {}
        met: list[bool] = []
        for number in numbers(met):
            device.reset()
            set_state(device, STOP)
            os.close(feed(device, stream))
            with failing(number) as has_failed:
                try:
                    set_state(device, STOP)
                except OSError as error:
                    refused[number] = error.errno
                met.append(has_failed())
            state, enabled = migration.state(device), device.register(STATUS) & 1
            assert (state, enabled) in ((STOP, 1), (migration.ERROR, 0), (RESUMING, 0))
        assert len(refused) >= 2
        assert set(refused.values()) <= WITHOUT_MEMORY
        device.reset()
        set_state(device, STOP)
        os.close(feed(device, stream))
        set_state(device, STOP)
        set_state(device, migration.RUNNING)
        guest.submit(device, descriptor(NOP))
        guest.wait(device)


def test_connecting_interrupts(gpu: Gpu) -> None:
    """Connected interrupts stay connected."""
    guest, old, new = Guest(), eventfd(), eventfd()
    with opened(scene(gpu)) as device:
        device.connect(MSIX, [old])
        guest.attach(device)
        guest.enable(device)

        def heard() -> tuple[int, int]:
            guest.submit(device, descriptor(NOP, flags=IRQ))
            poll(lambda: guest.completion(guest.tail - 1).seq == guest.tail)
            found = (0, 0)
            while found == (0, 0):
                found = taken(old), taken(new)
            return found

        times = each_failure(lambda: device.connect(MSIX, [new]), undo=lambda: device.connect(MSIX, [old]), same=heard)
        assert times > 1
