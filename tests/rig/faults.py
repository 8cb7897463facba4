# SPDX-License-Identifier: Apache-2.0
"""Memory whose pages exist only once a test provides them (userfaultfd): an access to a missing page waits until
then."""

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
    """Page faults of private memory, which starts without pages."""

    fd: int
    memory: mmap.mmap
    start: int

    def take_back(self) -> None:
        """Drop all pages; nobody uses the memory."""
        self.memory.madvise(mmap.MADV_DONTNEED)

    def wait(self, *, timeout_s: float = 20) -> int:
        """The offset of the page that an access waits for; raises TimeoutError."""
        if not select.select([self.fd], [], [], timeout_s * PATIENCE)[0]:
            raise TimeoutError
        event, address = struct.unpack("<B15xQ8x", os.read(self.fd, _MESSAGE_BYTES))
        assert event == _PAGEFAULT
        return (int(address) - self.start) & ~(mmap.PAGESIZE - 1)

    def give(self, offset: int) -> None:
        """Provide a page of zeros; the access that waits for it continues."""
        fcntl.ioctl(self.fd, _ZEROPAGE, struct.pack("<QQQq", self.start + offset, mmap.PAGESIZE, 0, 0))


@contextmanager
def faulting(count: int) -> Iterator[Faults]:
    """That many bytes of memory, to which only this process provides pages. At the end every waiting access gets its
    page."""
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
