# SPDX-License-Identifier: Apache-2.0
"""Work for a slice that this process has opened: rings and operands in its own memory, one descriptor at a time."""

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tests.rig.gpu import poll
from tests.rig.vfio import Device

REG_OPS, REG_CONTROL, REG_STATUS, REG_ERROR, REG_ERROR_INDEX = 0x08, 0x10, 0x14, 0x18, 0x1C
REG_RING, REG_COMPLETION, REG_SHADOW, REG_ENTRIES = 0x20, 0x28, 0x30, 0x38
REG_FETCHED, REG_COMPLETED, REG_RUN_NS = 0x50, 0x54, 0x58
REG_FACT_PS, REG_FEATURES = 0x60, 0x64
DOORBELL = 0x1000
ENABLE, ENABLED, ERROR = 1, 1, 2

NOP, FILL, COPY, CRC32C, GEMM_I32, DELAY, FACT = range(7)
DST_DEVICE, SRC_DEVICE, IRQ, NOSPLIT = 1, 2, 8, 16

ENTRIES = 64
RINGS_IOVA, COMPLETION_AT, SHADOW_AT, RINGS_BYTES = 0x10_0000, 0x1_0000, 0x2_0000, 0x3_0000
AREA_IOVA, AREA_BYTES = 0x1000_0000, 1 << 20


def enable_unused(device: Device) -> None:
    """Enable the device with rings that need no memory as long as nothing is submitted."""
    device.master()
    device.set_register(REG_RING, 0x10000)
    device.set_register(REG_COMPLETION, 0x20000)
    device.set_register(REG_ENTRIES, 8)
    device.set_register(REG_CONTROL, ENABLE)
    assert device.register(REG_STATUS) & ENABLED


def descriptor(
    op: int, *, flags: int = 0, dst: int = 0, src: int = 0, src2: int = 0, args: Sequence[int] = ()
) -> bytes:
    """The flags say whether addresses are of guest memory or of device memory."""
    return struct.pack("<HHIQQQQ4IQ", op, flags, 0, 0, dst, src, src2, *[*args, 0, 0, 0, 0][:4], 0)


def delay(us: int, flags: int = 0) -> bytes:
    return descriptor(DELAY, flags=flags, args=[us * 1000])


def fill(dst: int, count: int, pattern: int, flags: int = 0) -> bytes:
    return descriptor(FILL, flags=flags, dst=dst, args=[count, pattern])


def copy(dst: int, src: int, count: int, flags: int = 0) -> bytes:
    return descriptor(COPY, flags=flags, dst=dst, src=src, args=[count])


@dataclass(frozen=True, kw_only=True)
class Completion:
    result: int
    run_ns: int
    seq: int
    status: int


class Guest:
    """A guest's memory with rings and an area for operands. It can be attached to any device, one at a time."""

    def __init__(self, *, entries: int = ENTRIES) -> None:
        self.entries = entries
        self.rings = mmap.mmap(-1, RINGS_BYTES)
        self.area = mmap.mmap(-1, AREA_BYTES)
        self.tail = 0

    def attach(self, device: Device) -> None:
        device.map(self.rings, RINGS_IOVA)
        device.map(self.area, AREA_IOVA)

    def enable(self, device: Device, *, expected: int = ENABLED) -> None:
        """Start with empty rings."""
        self.ask_to_enable(device)
        assert device.register(REG_STATUS) & (ENABLED | ERROR) == expected

    def ask_to_enable(self, device: Device) -> None:
        """Reset the device, then start it as a guest does. The device may have a reason not to start."""
        device.master()
        device.set_register(REG_CONTROL, 2)
        self.rings[:] = bytes(RINGS_BYTES)
        self.tail = 0
        for register, at in ((REG_RING, 0), (REG_COMPLETION, COMPLETION_AT), (REG_SHADOW, SHADOW_AT)):
            device.set_register(register, RINGS_IOVA + at)
        device.set_register(REG_ENTRIES, self.entries)
        device.set_register(REG_CONTROL, ENABLE)

    def submit(self, device: Device, *descriptors: bytes) -> None:
        for one in descriptors:
            at = self.tail % self.entries * 64
            self.rings[at : at + 64] = one
            self.tail += 1
        device.set_register(DOORBELL, self.tail)

    def completion(self, number: int) -> Completion:
        at = COMPLETION_AT + number % self.entries * 32
        _, result, run_ns, seq, status = struct.unpack("<QQQII", self.rings[at : at + 32])
        return Completion(result=result, run_ns=run_ns, seq=seq, status=status)

    def wait(self, device: Device, *, timeout_s: float = 30) -> None:
        """Wait until all items are completed; raises TimeoutError."""
        poll(lambda: device.register(REG_COMPLETED) == self.tail, timeout_s=timeout_s)
