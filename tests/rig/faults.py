# SPDX-License-Identifier: Apache-2.0
"""Memory whose pages come when a test gives them (userfaultfd): whoever needs one waits there until then."""

import ctypes
import fcntl
import mmap
import os
import select
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.rig.kernel import PATIENCE

_SYS_USERFAULTFD = 323
_API, _REGISTER, _ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
_MISSING = 1
_MESSAGE_BYTES = 32
_PAGEFAULT = 0x12


@dataclass(frozen=True)
class Faults:
    """Faults of private memory. It starts without pages."""

    fd: int
    memory: mmap.mmap
    start: int

    def take_back(self) -> None:
        """All pages; nobody uses the memory."""
        self.memory.madvise(mmap.MADV_DONTNEED)

    def wait(self, *, timeout_s: float = 20) -> int:
        """Offset of the page that somebody waits for; raises TimeoutError."""
        if not select.select([self.fd], [], [], timeout_s * PATIENCE)[0]:
            raise TimeoutError
        event, address = struct.unpack("<B15xQ8x", os.read(self.fd, _MESSAGE_BYTES))
        assert event == _PAGEFAULT
        return (int(address) - self.start) & ~(mmap.PAGESIZE - 1)

    def give(self, offset: int) -> None:
        """A page of zeros; who waits for it goes on."""
        fcntl.ioctl(self.fd, _ZEROPAGE, struct.pack("<QQQq", self.start + offset, mmap.PAGESIZE, 0, 0))


@contextmanager
def faulting(count: int) -> Iterator[Faults]:
    """So many bytes of memory that only this process gives pages to; at the end whoever waits gets them."""
    fd = ctypes.CDLL(None, use_errno=True).syscall(_SYS_USERFAULTFD, os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    try:
        memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        fcntl.ioctl(fd, _API, struct.pack("<QQQ", 0xAA, 0, 0))
        fcntl.ioctl(fd, _REGISTER, struct.pack("<QQQQ", start, count, _MISSING, 0))
        yield Faults(fd, memory, start)
    finally:
        os.close(fd)
