# SPDX-License-Identifier: Apache-2.0
"""Memory runs out at any moment: whatever was asked for is refused as a whole, and works when it is asked for again.

Only on kernels that let allocations fail on demand, as the debug kernel does.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rig import migration
from tests.rig.client import client
from tests.rig.failing import each_failure, failing, failures_possible, text_of
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.migration import RESUMING, STOP, STOP_COPY, set_state
from tests.rig.ring import IRQ, NOP, Guest, descriptor
from tests.rig.settings import settings
from tests.rig.vfio import BAR0, MSIX, Device, eventfd, opened, taken

CONTROL, STATUS, ERROR = 0x10, 0x14, 0x18
RINGS = {0x20: 0x10000, 0x28: 0x20000, 0x30: 0x30000, 0x38: 8}  # addresses of both rings and the shadow, entries
ENABLE = (1).to_bytes(4, "little")
ERROR_RESOURCE = 11  # kmod/uapi/vgpu_device.h


@pytest.fixture(autouse=True)
def possible(gpu: Gpu) -> Iterator[None]:
    """What the module allocates, or somebody for it; not what leads there."""
    with failures_possible(text_of("vgpumgr")):
        yield


@pytest.fixture(autouse=True, scope="module")
def quiet_console() -> Iterator[None]:
    """Each failure is told with its stack: in the log only."""
    level = Path("/proc/sys/kernel/printk")
    before = level.read_text()
    level.write_text("1")
    yield
    level.write_text(before.split()[0])


def scene(gpu: Gpu) -> str:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    return gpu.slice("blue")


def stops_enabling(device: Device) -> int:
    """Enable with each allocation failing in turn; how many stopped the device, since a guest cannot be refused."""
    stopped = 0
    place = device.region(BAR0)[1] + CONTROL
    for number in range(1, 100):
        device.reset()
        device.master()
        for offset, value in RINGS.items():
            device.set_register(offset, value)
        with failing(number) as has_failed:
            with suppress(OSError):  # the copy of what is written
                os.pwrite(device.fd, ENABLE, place)
            met = has_failed()
        error = device.register(ERROR)
        assert error in ((0, ERROR_RESOURCE) if met else (0,))
        assert not (device.register(STATUS) & 1 and error)
        stopped += error == ERROR_RESOURCE
        if not met:
            break
    assert device.register(STATUS) & 1
    return stopped


def test_enabling_a_ring(gpu: Gpu) -> None:
    uuid = scene(gpu)
    with opened(uuid) as device:
        assert stops_enabling(device) >= 2  # the ring, its worker
    assert client(uuid, "verify").status == 0


def test_configuring_a_tenant(gpu: Gpu) -> None:
    count = each_failure(
        lambda: gpu.tenant("red", weight=100, timeslice_us=1000),
        undo=lambda: gpu.control.delete_tenant(ADDRESS, "red"),
        same=lambda: settings(gpu.control, gpu.sysfs),
    )
    assert count > 2


def test_an_attribute_of_a_slice(gpu: Gpu) -> None:
    """It creates the tenant that it names."""
    uuid = gpu.slice()
    count = each_failure(
        lambda: gpu.sysfs.write(uuid, "sched_config", "tenant=red weight=3"),
        undo=lambda: gpu.control.set_slice(uuid, tenant="", weight=1),
        same=lambda: settings(gpu.control, gpu.sysfs),
    )
    assert count > 1


def test_saving_and_restoring(gpu: Gpu) -> None:
    with opened(scene(gpu)) as device:
        set_state(device, STOP)

        def back() -> None:
            if migration.state(device) == RESUMING:
                device.reset()
            set_state(device, STOP)

        for wanted in (STOP_COPY, RESUMING):
            count = each_failure(
                lambda wanted=wanted: os.close(set_state(device, wanted)),  # type: ignore[misc]
                undo=back,
                same=lambda: migration.state(device),
            )
            assert count > 2


def test_connecting_interrupts(gpu: Gpu) -> None:
    """Those that were connected stay so."""
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

        count = each_failure(lambda: device.connect(MSIX, [new]), undo=lambda: device.connect(MSIX, [old]), same=heard)
        assert count > 1
