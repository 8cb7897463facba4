# SPDX-License-Identifier: Apache-2.0
"""The virtual function byte by byte: the values that it reads as, the bits that can be written, the effect of a
reset."""

import errno
import os
from collections.abc import Callable

import pytest

from tests.rig.gpu import Gpu, poll
from tests.rig.ring import (
    ENABLE,
    ENABLED,
    ERROR,
    IRQ,
    NOP,
    REG_COMPLETION,
    REG_CONTROL,
    REG_ENTRIES,
    REG_ERROR,
    REG_FEATURES,
    REG_OPS,
    REG_RING,
    REG_STATUS,
    Guest,
    descriptor,
    enable_unused,
)
from tests.rig.vfio import BAR0, CONFIG, MSIX, Device, eventfd, opened, taken

CONFIG_BYTES = 256
# offset: name, value after power on, bits that can be written; everything else is zero and stays zero
CONFIG_SPACE = {
    0x00: ("vendor and device", 0x5647_1234, 0),
    0x04: ("status and command", 0x0010_0000, 0x0000_0546),
    0x08: ("class", 0x1200_0000, 0),
    0x0C: ("cache line size", 0, 0x0000_00FF),
    0x10: ("BAR0, 16 KiB of memory below 4 GiB", 0, 0xFFFF_C000),
    0x2C: ("subsystem", 0x5647_1234, 0),
    0x34: ("first capability", 0x0000_0040, 0),
    0x3C: ("interrupt line; no pin", 0, 0x0000_00FF),
    0x40: ("MSI-X: two vectors; enable and mask all", 0x0001_5011, 0xC000_0000),
    0x44: ("MSI-X table", 0x0000_2000, 0),
    0x48: ("MSI-X pending bits", 0x0000_3000, 0),
    0x50: ("PCI Express endpoint, version 2", 0x0002_0010, 0),
    0x54: ("device capabilities: role-based errors, FLR", 0x1000_8000, 0),
    0x58: ("device control", 0x0000_2810, 0x0000_78FF),
    0x5C: ("link capabilities: 2.5 GT/s, one lane", 0x0000_0011, 0),
    0x60: ("link status", 0x0011_0000, 0),
}
DEVICE_CONTROL = 0x58
FLR = 0x8000

MSIX_TABLE, MSIX_PENDING, VECTORS, ENTRY = 0x2000, 0x3000, 2, 16
MSIX_ENTRY = bytes(12) + b"\x01\0\0\0"
MSIX_ENTRY_WRITABLE = b"\xfc" + b"\xff" * 11 + b"\x01\0\0\0"

OLD_CHANNEL, OLD_DOORBELLS, OLD_LAUNCH = 0x68, (0x1008, 0x100C), 7  # until ABI 1.3

RESET = 2
VGPU_ERROR_MASTER = 10  # kmod/uapi/vgpu_device.h


def table(column: int) -> bytes:
    rows = (CONFIG_SPACE[at][column] if at in CONFIG_SPACE else 0 for at in range(0, CONFIG_BYTES, 4))
    return b"".join(row.to_bytes(4, "little") for row in rows)  # type: ignore[union-attr]


POWER_ON, WRITABLE = table(1), table(2)


def config(device: Device) -> bytes:
    return device.read(CONFIG, 0, CONFIG_BYTES)


def flr(device: Device) -> None:
    control = int.from_bytes(device.read(CONFIG, DEVICE_CONTROL, 2), "little")
    device.write(CONFIG, DEVICE_CONTROL, (control | FLR).to_bytes(2, "little"))


RESETS: dict[str, Callable[[Device], None]] = {"VFIO": Device.reset, "function level": flr}


def harmless(data: int, at: int, count: int) -> bytes:
    """`data` in every byte, without the bit that starts a reset."""
    whole = bytearray([data]) * count
    if at <= DEVICE_CONTROL + 1 < at + count:
        whole[DEVICE_CONTROL + 1 - at] &= ~(FLR >> 8)
    return bytes(whole)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "straddling"])
def test_exactly_the_writable_bits_change(gpu: Gpu, width: int, shift: int) -> None:
    """Every byte of configuration space, by writes of every width, ones over zeros and zeros over ones."""
    with opened(gpu.slice()) as device:
        assert config(device) == POWER_ON
        for at in range(shift, CONFIG_BYTES - width + 1, width):
            reach = slice(at, at + width)
            before = config(device)
            changed = bytearray(before)
            for data in (0xFF, 0x00):
                device.write(CONFIG, at, harmless(data, at, width))
                for i in range(*reach.indices(CONFIG_BYTES)):
                    changed[i] = (before[i] & ~WRITABLE[i]) | (data & WRITABLE[i])
                assert config(device) == changed, f"{data:#x} written to {at:#x}"
            device.write(CONFIG, at, before[reach])
            assert config(device) == POWER_ON


@pytest.mark.parametrize("how", RESETS)
def test_a_reset_restores_every_byte_and_disables(gpu: Gpu, how: str) -> None:
    with opened(gpu.slice()) as device:
        for at in range(CONFIG_BYTES):
            device.write(CONFIG, at, harmless(0xFF, at, 1))
        device.write(BAR0, MSIX_TABLE, b"\xff" * VECTORS * ENTRY)
        assert config(device) == bytes(a & ~w | w for a, w in zip(POWER_ON, WRITABLE, strict=True))
        enable_unused(device)
        RESETS[how](device)
        assert config(device) == POWER_ON
        assert device.read(BAR0, MSIX_TABLE, VECTORS * ENTRY) == MSIX_ENTRY * VECTORS
        assert device.register(REG_STATUS) & ENABLED == 0
        for register in (REG_RING, REG_COMPLETION, REG_ENTRIES):
            assert device.register(register) == 0
        enable_unused(device)


def test_a_function_level_reset_is_found_in_a_write_of_any_width(gpu: Gpu) -> None:
    with opened(gpu.slice()) as device:
        for at, width in ((DEVICE_CONTROL + 1, 1), (DEVICE_CONTROL, 2), (DEVICE_CONTROL, 4), (DEVICE_CONTROL, 8)):
            enable_unused(device)
            device.write(CONFIG, at, (FLR >> 8 * (at - DEVICE_CONTROL)).to_bytes(width, "little"))
            assert device.register(REG_STATUS) & ENABLED == 0, f"{width} bytes at {at:#x}"
            assert config(device) == POWER_ON


def test_the_msix_table_keeps_what_a_table_keeps(gpu: Gpu) -> None:
    """Masked after power on; the low bits of the address and all but the mask bit of the control are fixed."""
    with opened(gpu.slice()) as device:
        for vector in range(VECTORS):
            at = MSIX_TABLE + vector * ENTRY
            assert device.read(BAR0, at, ENTRY) == MSIX_ENTRY
            device.write(BAR0, at, b"\xff" * ENTRY)
            assert device.read(BAR0, at, ENTRY) == MSIX_ENTRY_WRITABLE
            device.write(BAR0, at, bytes(ENTRY))
            assert device.read(BAR0, at, ENTRY) == bytes(ENTRY)
        device.write(BAR0, MSIX_TABLE + VECTORS * ENTRY, b"\xff" * 8)
        device.write(BAR0, MSIX_PENDING, b"\xff" * 8)
        assert device.read(BAR0, MSIX_TABLE + VECTORS * ENTRY, 8) == bytes(8)
        assert device.read(BAR0, MSIX_PENDING, 8) == bytes(8)


def test_a_vector_is_the_vmms_to_mask(gpu: Gpu) -> None:
    """The table and the capability may say masked or off: a VMM that keeps these two itself still connects
    interrupts."""
    vector = eventfd()
    with opened(gpu.slice()) as device:
        device.connect(MSIX, [-1, vector])
        device.master()
        assert device.read(BAR0, MSIX_TABLE + ENTRY, ENTRY) == MSIX_ENTRY
        device.set_register(REG_CONTROL, ENABLE)  # without a ring: an error
        assert taken(vector) == 1
        device.set_register(REG_CONTROL, RESET)
        device.connect(MSIX, [-1, -1])
        device.set_register(REG_CONTROL, ENABLE)
        assert taken(vector) == 0


@pytest.mark.parametrize("how", RESETS)
def test_a_reset_leaves_the_vmms_eventfds_connected(gpu: Gpu, how: str) -> None:
    """A guest may reset its function. The VMM, which is not asked, goes on passing its interrupts."""
    vector = eventfd()
    with opened(gpu.slice()) as device:
        device.connect(MSIX, [-1, vector])
        RESETS[how](device)
        device.set_register(REG_CONTROL, ENABLE)
        assert taken(vector) == 0, "no interrupt without bus mastering"
        device.set_register(REG_CONTROL, RESET)
        device.master()
        device.set_register(REG_CONTROL, ENABLE)
        assert taken(vector) == 1


def test_eventfds_are_connected_together_or_not_at_all(gpu: Gpu) -> None:
    """A bad file descriptor leaves the other vectors unchanged."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    guest = Guest()
    before, after, none = eventfd(), eventfd(), os.memfd_create("none")
    with opened(gpu.slice("blue")) as device:
        guest.attach(device)
        guest.enable(device)
        device.connect(MSIX, [before, before])
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            device.connect(MSIX, [after, none])
        guest.submit(device, descriptor(NOP, flags=IRQ))
        guest.wait(device)
        poll(lambda: taken(before) == 1)
        assert taken(after) == 0


def test_what_a_user_has_connected_goes_with_it(gpu: Gpu) -> None:
    """The next user's interrupts are its own."""
    uuid, vector = gpu.slice(), eventfd()
    with opened(uuid) as device:
        device.connect(MSIX, [vector, vector])
    with opened(uuid) as device:
        device.master()
        device.set_register(REG_CONTROL, ENABLE)  # without a ring: an error
        assert device.register(REG_STATUS) & ERROR
    assert taken(vector) == 0


def test_what_older_devices_had_is_not_there(gpu: Gpu) -> None:
    """A driver that knows of a byte channel finds none, and does no harm if it uses one all the same."""
    with opened(gpu.slice()) as device:
        assert device.register(REG_FEATURES) == 0
        assert device.register(REG_OPS) >> OLD_LAUNCH == 0
        device.write(BAR0, OLD_CHANNEL, b"\x08" * 8)
        assert device.read(BAR0, OLD_CHANNEL, 8) == bytes(8)
        enable_unused(device)
        for doorbell in OLD_DOORBELLS:
            device.set_register(doorbell, 1)
        assert device.register(REG_STATUS) & (ENABLED | ERROR) == ENABLED


def test_without_bus_mastering_an_enabled_device_stops(gpu: Gpu) -> None:
    """When the write returns, no ring is left through which guest memory could be accessed."""
    with opened(gpu.slice()) as device:
        enable_unused(device)
        device.master(on=False)
        assert device.register(REG_STATUS) & (ENABLED | ERROR) == ERROR
        assert device.register(REG_ERROR) == VGPU_ERROR_MASTER


def test_an_access_that_straddles_registers_is_one_of_each(gpu: Gpu) -> None:
    """Eight bytes that begin in the middle of a register: the upper half of one address, the lower half of the next."""
    halves = (0x1234).to_bytes(4, "little"), (0x5678_0000).to_bytes(4, "little")
    with opened(gpu.slice()) as device:
        device.write(BAR0, REG_RING + 4, b"".join(halves))
        assert (device.read(BAR0, REG_RING + 4, 4), device.read(BAR0, REG_COMPLETION, 4)) == halves
        assert device.read(BAR0, REG_RING + 4, 8) == b"".join(halves)
