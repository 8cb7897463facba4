# SPDX-License-Identifier: Apache-2.0
"""Work for a slice that this process has opened: rings and operands in its own memory, one descriptor at a time."""

import mmap
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.rig.gpu import poll
from tests.rig.vfio import BAR0, Device

REG_CONTROL, REG_STATUS, REG_ERROR, REG_ERROR_INDEX = 0x10, 0x14, 0x18, 0x1C
REG_RING, REG_COMPLETION, REG_SHADOW, REG_ENTRIES = 0x20, 0x28, 0x30, 0x38
REG_FETCHED, REG_COMPLETED, REG_RUN_NS = 0x50, 0x54, 0x58
REG_FACT_PS, REG_FEATURES, REG_CHANNEL = 0x60, 0x64, 0x68
DOORBELL, SENT, RECEIVED = 0x1000, 0x1008, 0x100C
ENABLE, ENABLED, ERROR = 1, 1, 2

NOP, FILL, COPY, CRC32C, GEMM_I32, DELAY, FACT, LAUNCH = range(8)
DST_DEVICE, SRC_DEVICE, IRQ, NOSPLIT = 1, 2, 8, 16

ENTRIES = 64
RINGS_IOVA, COMPLETION_AT, SHADOW_AT, RINGS_BYTES = 0x10_0000, 0x1_0000, 0x2_0000, 0x3_0000
AREA_IOVA, AREA_BYTES = 0x1000_0000, 1 << 20
CHANNEL_IOVA, CHANNEL_BYTES, CHANNEL_AT = 0x2000_0000, 0x8000, 64


def enable_unused(device: Device) -> None:
    """With rings that need no memory as long as nothing is submitted."""
    device.master()
    device.set_register(REG_RING, 0x10000)
    device.set_register(REG_COMPLETION, 0x20000)
    device.set_register(REG_ENTRIES, 8)
    device.set_register(REG_CONTROL, ENABLE)
    assert device.register(REG_STATUS) & ENABLED


def descriptor(
    op: int, *, flags: int = 0, dst: int = 0, src: int = 0, src2: int = 0, args: Sequence[int] = ()
) -> bytes:
    """Addresses are of guest memory or of device memory, as the flags say."""
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
    """What a guest has: memory with rings and an area for operands. Any device may be given it, one at a time."""

    def __init__(self, *, entries: int = ENTRIES) -> None:
        self.entries = entries
        self.rings = mmap.mmap(-1, RINGS_BYTES)
        self.area = mmap.mmap(-1, AREA_BYTES)
        self.channel = mmap.mmap(-1, 0x11000)
        self.tail = self.sent = self.received = 0

    def attach(self, device: Device) -> None:
        device.map(self.rings, RINGS_IOVA)
        device.map(self.area, AREA_IOVA)
        device.map(self.channel, CHANNEL_IOVA)

    def enable(self, device: Device, *, channel_at: int | None = None, expected: int = ENABLED) -> None:
        """Start with empty rings, and a byte channel if it gets an address."""
        self.ask_to_enable(device, channel_at=channel_at)
        assert device.register(REG_STATUS) & (ENABLED | ERROR) == expected

    def ask_to_enable(self, device: Device, *, channel_at: int | None = None) -> None:
        """Reset, then do all that a guest does to start; the device may have a reason not to."""
        device.master()
        device.set_register(REG_CONTROL, 2)
        self.rings[:] = bytes(RINGS_BYTES)
        self.channel[:CHANNEL_AT] = bytes(CHANNEL_AT)
        self.tail = self.sent = self.received = 0
        for register, at in ((REG_RING, 0), (REG_COMPLETION, COMPLETION_AT), (REG_SHADOW, SHADOW_AT)):
            device.set_register(register, RINGS_IOVA + at)
        if channel_at is not None:
            device.write(BAR0, REG_CHANNEL, channel_at.to_bytes(8, "little"))
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
        """Until all is answered; raises TimeoutError."""
        poll(lambda: device.register(REG_COMPLETED) == self.tail, timeout_s=timeout_s)

    # ---- the byte channel (struct vgpu_channel_area)

    def channel_counts(self) -> tuple[int, int, int]:
        """What the device says it has taken and given, and the state."""
        taken, given, state = struct.unpack("<III", self.channel[:12])
        return taken, given, state

    def count(self, device: Device, *, sent: int | None = None, received: int | None = None) -> None:
        """Tell the device the guest's counts."""
        for register, value in ((SENT, sent), (RECEIVED, received)):
            if value is not None:
                device.set_register(register, value)

    def send(self, device: Device, data: bytes) -> int:
        """Put what there is room for into the channel; how much."""
        count = min(len(data), CHANNEL_BYTES - (self.sent - self.channel_counts()[0]))
        for number in range(count):
            self.channel[CHANNEL_AT + (self.sent + number) % CHANNEL_BYTES] = data[number]
        self.sent += count
        if count:
            self.count(device, sent=self.sent)
        return count

    def receive(self, device: Device) -> bytes:
        """Take what is in the channel."""
        given = self.channel_counts()[1]
        start = CHANNEL_AT + CHANNEL_BYTES
        data = bytes(self.channel[start + number % CHANNEL_BYTES] for number in range(self.received, given))
        self.received = given
        if data:
            self.count(device, received=given)
        return data

    def echo(self, device: Device, data: bytes, *, timeout_s: float = 60) -> bytes:
        """Send `data` while taking as much; raises TimeoutError."""
        sent, found = 0, b""
        deadline = time.monotonic() + timeout_s
        while len(found) < len(data):
            sent += self.send(device, data[sent:])
            found += self.receive(device)
            if time.monotonic() > deadline:
                raise TimeoutError
        return found
