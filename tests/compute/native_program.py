# SPDX-License-Identifier: Apache-2.0
"""A native program on the fake of NVIDIA's driver: `python native_program.py SERVER_SOCKET VERSION`.

It makes a context like libcuda does and gives the GPU an endless kernel. Then it carries out each line of its standard
input and answers with one line. Its ioctl() calls are real ones on a connection to the fake's server, which stands for
the device's file. The kernel itself answers none of these calls, so every answer comes from the fence.

It uses only the standard library, because it also runs outside the tests' environment.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
FREE, CONTROL, ALLOC, CHECK_VERSION = 0x29, 0x2A, 0x2B, 210
ROOT_CLIENT, DEVICE, SUBDEVICE, GROUP, CHANNEL, MEMORY = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F, 0x40
SCHEDULE = 0xA06C0101
ENDLESS_NS = 10**12
FAKE_SUBMIT = ord("K") << 8 | 2


class Driver:
    """An open driver file with a context on it."""

    def __init__(self, path: str, version: str) -> None:
        self.file = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.file.connect(path)
        self.handles = iter(range(0x5C000001, 0x5D000000))
        self.client = 0
        self.ioctl(CHECK_VERSION, bytearray(struct.pack("=II64s", 0, 0, version.encode())))

    def ioctl(self, escape: int, data: bytearray) -> None:
        number = 3 << 30 | len(data) << 16 | ord("F") << 8 | escape
        buffer = (ctypes.c_char * len(data)).from_buffer(data)
        if LIBC.ioctl(self.file.fileno(), number, ctypes.addressof(buffer)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def make(self, parent: int, class_id: int, parameters: bytes = b"") -> int:
        """Make an object and return its handle."""
        held = ctypes.create_string_buffer(parameters, len(parameters)) if parameters else None
        where = ctypes.addressof(held) if held else 0
        wanted = 0 if class_id == ROOT_CLIENT else next(self.handles)
        data = bytearray(
            struct.pack("=4IQQ4I", self.client, parent, wanted, class_id, where, 0, len(parameters), 0, 0xFFFF, 0)
        )
        self.ioctl(ALLOC, data)
        self.check(struct.unpack_from("=I", data, 40)[0])
        return int(struct.unpack_from("=I", data, 8)[0])

    def control(self, target: int, command: int, parameters: bytes) -> None:
        held = ctypes.create_string_buffer(parameters, len(parameters))
        data = bytearray(
            struct.pack("=4IQ2I", self.client, target, command, 0, ctypes.addressof(held), len(parameters), 0xFFFFFFFF)
        )
        self.ioctl(CONTROL, data)
        self.check(struct.unpack_from("=I", data, 28)[0])

    def free(self, handle: int) -> None:
        data = bytearray(struct.pack("=4I", self.client, 0, handle, 0xFFFFFFFF))
        self.ioctl(FREE, data)
        self.check(struct.unpack_from("=I", data, 12)[0])

    @staticmethod
    def check(status: int) -> None:
        if status:
            raise RuntimeError(f"status {status:#x}")

    def begin(self) -> None:
        self.client = self.make(0, ROOT_CLIENT)
        self.device = self.make(self.client, DEVICE, bytes(56))
        self.make(self.device, SUBDEVICE, bytes(4))

    def work(self) -> int:
        """Make a group and give it an endless kernel."""
        group = self.make(self.device, GROUP, struct.pack("=IIIIB3x", 0, 0, 0, 1, 0))
        self.make(group, CHANNEL, bytes(368))
        self.control(group, SCHEDULE, b"\x01\x00\x00")
        self.submit(group)
        return group

    def submit(self, group: int) -> None:
        """Submit work to the GPU. On a real GPU, this needs no system call of the driver."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        packet = struct.pack("=IIIIQ", FAKE_SUBMIT, 24, 0, 0, 0)
        packet += struct.pack("=IIQII", self.client, group, ENDLESS_NS, 0, 0)
        socket.send_fds(self.file, [packet], [theirs.fileno()])
        theirs.close()
        ours.recv(65536)
        ours.close()

    def allocate(self, size: int) -> int:
        """Allocate memory of the GPU: NV_MEMORY_ALLOCATION_PARAMS with its size at offset 64."""
        parameters = bytearray(128)
        struct.pack_into("=Q", parameters, 64, size)
        return self.make(self.device, MEMORY, bytes(parameters))


def obey(driver: Driver, words: list[str]) -> object:
    """Carry out one line of instructions."""
    match words:
        case ["begin"]:
            return driver.begin()
        case ["work"]:
            return driver.work()
        case ["allocate", size]:
            return driver.allocate(int(size))
        case ["free", handle]:
            return driver.free(int(handle))
        case ["control", target, command, parameters]:
            return driver.control(int(target), int(command, 0), bytes.fromhex(parameters))
        case ["fork"]:
            return os.fork() or os._exit(0)
        case _:
            raise ValueError(words)


def main() -> None:
    driver = Driver(sys.argv[1], sys.argv[2])
    print("ready", os.getpid(), flush=True)
    for line in sys.stdin:
        try:
            print("ok", obey(driver, line.split()), flush=True)
        except (OSError, RuntimeError, ValueError) as error:
            print("failed", error, flush=True)


if __name__ == "__main__":
    main()
