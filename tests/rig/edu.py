# SPDX-License-Identifier: Apache-2.0
"""The accelerator with the engine `edu`, and changes that tests make to its PCI device."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.gpu import ADDRESS, Gpu
from tests.rig.migration import save
from tests.rig.ring import NOP, Guest, descriptor
from tests.rig.vfio import opened

DEVICE = Path("/sys/bus/pci/devices") / ADDRESS
REG_FACT, REG_IRQ_RAISE = 0x08, 0x60
_POKE = Path("/sys/module/lab_pci/parameters/poke")
"""User-mode Linux has this file instead of register pages: a write takes an offset and a value, a read returns the
result."""
TIMEOUT_MS = Path("/sys/module/vgpumgr/parameters/engine_timeout_ms")


@pytest.fixture
def edu(gpu: Gpu) -> Iterator[Gpu]:
    """The accelerator with engine edu. At the end it works again, whatever a test did to it."""
    timeout = TIMEOUT_MS.read_text()
    choose(gpu)
    yield gpu
    TIMEOUT_MS.write_text(timeout)
    gpu.clear()
    rebind(gpu)


def choose(gpu: Gpu) -> None:
    """Engine edu, set so that it takes the jobs of these tests however slow the machine was during calibration."""
    gpu.sysfs.write_gpu(ADDRESS, "engine", "edu")
    gpu.set_max_chunk_us(10_000)


def rebind(gpu: Gpu) -> None:
    gpu.sysfs.unbind(ADDRESS)
    gpu.sysfs.bind(ADDRESS)


def engine(gpu: Gpu) -> str:
    return gpu.sysfs.read_gpu(ADDRESS, "engine")


def state(gpu: Gpu) -> str:
    return gpu.sysfs.read_gpu(ADDRESS, "engine_state")


@contextmanager
def config_bit(offset: int, bit: int) -> Iterator[None]:
    """Clear a bit of the function's configuration space behind the driver's back."""
    config = os.open(DEVICE / "config", os.O_RDWR)
    before = int.from_bytes(os.pread(config, 2, offset), "little")
    assert before & bit
    os.pwrite(config, (before & ~bit).to_bytes(2, "little"), offset)
    try:
        yield
    finally:
        os.pwrite(config, before.to_bytes(2, "little"), offset)
        os.close(config)


def raise_interrupt() -> None:
    """Make the device send its interrupt without a job."""
    write_register(REG_IRQ_RAISE, 1)


def write_register(offset: int, value: int) -> None:
    """Write a register, behind the back of the device's driver if it has one."""
    if _POKE.exists():
        _POKE.write_text(f"{offset:x} {value:x}")
        return
    with mapped() as registers:
        registers[offset // 4] = value


def result() -> int:
    """The result of the device's last job."""
    if _POKE.exists():
        return int(_POKE.read_text(), 16)
    with mapped() as registers:
        return int(registers[REG_FACT // 4])


@contextmanager
def mapped() -> Iterator["memoryview[int]"]:
    """The device's registers, four bytes each."""
    file = os.open(DEVICE / "resource0", os.O_RDWR | os.O_SYNC)
    try:
        with mmap.mmap(file, mmap.PAGESIZE) as memory, memoryview(memory).cast("I") as registers:
            yield registers
    finally:
        os.close(file)


def saved(gpu: Gpu) -> bytes:
    """The stream of an enabled slice of the present engine after it has completed an item."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    guest = Guest()
    with opened(gpu.slice("blue")) as device:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, descriptor(NOP))
        guest.wait(device)
        return save(device)
