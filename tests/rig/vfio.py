# SPDX-License-Identifier: Apache-2.0
"""A slice opened through VFIO in this process, as a VMM opens it: its regions, interrupts and reset.

For tests that `vgpu-client` cannot do: reading single bytes, and calls in an order that the test decides.
"""

import ctypes
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

SET_IOMMU = 0x3B66
SET_CONTAINER = 0x3B68
GET_DEVICE_FD = 0x3B6A
GET_REGION_INFO = 0x3B6C
SET_IRQS = 0x3B6E
RESET = 0x3B6F
MAP_DMA = 0x3B71
UNMAP_DMA = 0x3B72

TYPE1V2_IOMMU = 3
BAR0, CONFIG = 0, 7
MSIX, REQUEST = 2, 4
DATA_EVENTFD, ACTION_TRIGGER = 1 << 2, 1 << 5
MAP_READ_WRITE = 3

COMMAND = 0x04
COMMAND_MEMORY, COMMAND_MASTER = 2, 4

_DMA_TIMEOUT_MS = Path("/sys/module/vgpumgr/parameters/dma_timeout_ms")


@dataclass(frozen=True)
class Device:
    """An open slice. Every call that the kernel refuses raises OSError."""

    fd: int
    container: int

    def region(self, index: int) -> tuple[int, int]:
        """The size of a region, and its offset in the file."""
        found = fcntl.ioctl(self.fd, GET_REGION_INFO, struct.pack("<IIIIQQ", 32, 0, index, 0, 0, 0))
        size, offset = struct.unpack("<16xQQ", found)
        return size, offset

    def read(self, index: int, offset: int, count: int) -> bytes:
        return os.pread(self.fd, count, self.region(index)[1] + offset)

    def write(self, index: int, offset: int, data: bytes) -> None:
        assert os.pwrite(self.fd, data, self.region(index)[1] + offset) == len(data)

    def register(self, offset: int) -> int:
        return int.from_bytes(self.read(BAR0, offset, 4), "little")

    def set_register(self, offset: int, value: int) -> None:
        self.write(BAR0, offset, value.to_bytes(4, "little"))

    def master(self, on: bool = True) -> None:
        """Turn bus mastering on or off."""
        value = COMMAND_MEMORY | (COMMAND_MASTER if on else 0)
        self.write(CONFIG, COMMAND, value.to_bytes(2, "little"))

    def reset(self) -> None:
        fcntl.ioctl(self.fd, RESET)

    def connect(self, index: int, eventfds: Sequence[int], start: int = 0) -> None:
        """Give the kernel eventfds for the vectors of an interrupt index; -1 removes one."""
        data = struct.pack(f"<{len(eventfds)}i", *eventfds)
        header = struct.pack("<IIIII", 20 + len(data), DATA_EVENTFD | ACTION_TRIGGER, index, start, len(eventfds))
        fcntl.ioctl(self.fd, SET_IRQS, header + data)

    def map(self, memory: mmap.mmap, iova: int) -> None:
        """Give the device access to all of `memory` at `iova`."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        request = struct.pack("<IIQQQ", 32, MAP_READ_WRITE, address, iova, len(memory))
        fcntl.ioctl(self.container, MAP_DMA, request)

    def unmap(self, iova: int, count: int) -> None:
        fcntl.ioctl(self.container, UNMAP_DMA, struct.pack("<IIQQ", 24, 0, iova, count))


@contextmanager
def opened(uuid: str, *, beside: Device | None = None) -> Iterator[Device]:
    """Open the device, with its own container or that of another device; closed at the end. Raises OSError."""
    group_path = Path("/dev/vfio") / Path(f"/sys/bus/mdev/devices/{uuid}/iommu_group").readlink().name
    with ExitStack() as stack:
        container = beside.container if beside else os.open("/dev/vfio/vfio", os.O_RDWR)
        if not beside:
            stack.callback(os.close, container)
        group = os.open(group_path, os.O_RDWR)
        stack.callback(os.close, group)
        fcntl.ioctl(group, SET_CONTAINER, container.to_bytes(4, "little"))
        if not beside:
            fcntl.ioctl(container, SET_IOMMU, TYPE1V2_IOMMU)
        device = fcntl.ioctl(group, GET_DEVICE_FD, bytearray(uuid.encode() + b"\0"))
        stack.callback(os.close, device)
        yield Device(device, container)


@contextmanager
def dma_timeout(ms: int) -> Iterator[None]:
    """Set how long guest memory may take to answer while the body runs."""
    default = _DMA_TIMEOUT_MS.read_text()
    _DMA_TIMEOUT_MS.write_text(str(ms))
    try:
        yield
    finally:
        _DMA_TIMEOUT_MS.write_text(default)


def eventfd() -> int:
    """An eventfd that starts at zero and never blocks."""
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def taken(fd: int) -> int:
    """How often an eventfd was signalled since the last call."""
    try:
        return os.eventfd_read(fd)
    except BlockingIOError:
        return 0
