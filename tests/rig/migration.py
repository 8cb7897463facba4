# SPDX-License-Identifier: Apache-2.0
"""VFIO migration of a slice that this process has opened: states, and the stream with its header parsed."""

import fcntl
import os
import struct
from dataclasses import dataclass, fields

from tests.rig.vfio import Device

FEATURE = 0x3B75
GET, SET = 1 << 16, 1 << 17
MIGRATION, STATE, DATA_SIZE = 1, 2, 9
STOP_COPY_FLAG, P2P_FLAG = 1, 2

ERROR, STOP, RUNNING, STOP_COPY, RESUMING, RUNNING_P2P, PRE_COPY = range(7)

ENABLED, REPORTED = 1, 2
_CRC32C = 0x82F63B78


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_CRC32C if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFF_FFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFF_FFFF


def _feature(device: Device, what: int, data: bytes) -> bytes:
    request = bytearray(struct.pack("<II", 8 + len(data), what) + data)
    fcntl.ioctl(device.fd, FEATURE, request)
    return bytes(request[8:])


def flags(device: Device) -> int:
    """The kinds of migration that the device supports."""
    return int(struct.unpack("<Q", _feature(device, GET | MIGRATION, bytes(8)))[0])


def data_bytes(device: Device) -> int:
    """The number of bytes to save; OSError on a kernel before 6.2."""
    return int(struct.unpack("<Q", _feature(device, GET | DATA_SIZE, bytes(8)))[0])


def state(device: Device) -> int:
    return int(struct.unpack("<Ii", _feature(device, GET | STATE, bytes(8)))[0])


def set_state(device: Device, wanted: int) -> int:
    """Change the state; returns the stream's file, or -1 where there is none. Raises OSError."""
    return int(struct.unpack("<Ii", _feature(device, SET | STATE, struct.pack("<Ii", wanted, -1)))[1])


def read_all(fd: int, piece: int = 1 << 20) -> bytes:
    data = bytearray()
    while part := os.read(fd, piece):
        data += part
    return bytes(data)


def write_all(fd: int, data: bytes, piece: int = 1 << 20) -> None:
    for at in range(0, len(data), piece):
        part = data[at : at + piece]
        while part:
            part = part[os.write(fd, part) :]


def save(device: Device) -> bytes:
    """Save the whole state of a device in any running state, and leave it stopped."""
    fd = set_state(device, STOP_COPY)
    try:
        return read_all(fd)
    finally:
        os.close(fd)
        set_state(device, STOP)


def restore(device: Device, stream: bytes, piece: int = 1 << 20) -> None:
    """Load a state into a device in any running state, and leave it stopped. Raises OSError."""
    fd = set_state(device, RESUMING)
    try:
        write_all(fd, stream, piece)
    finally:
        os.close(fd)
    set_state(device, STOP)


@dataclass
class Header:
    """The first part of a stream; `pack` adds the checksum it needs."""

    magic: int
    version: int
    header_bytes: int
    memory_bytes: int
    abi: int
    flags: int
    ring: int
    completion: int
    shadow: int
    run_ns: int
    entries: int
    run_ns_hi: int
    tail: int
    completed: int
    error: int
    error_index: int
    config: bytearray
    msix: bytearray
    engine: bytes
    operations: int

    FORMAT = "<QIIQIIQQQQIIIIII256s32s16sI"
    BYTES = struct.calcsize(FORMAT) + 4

    @classmethod
    def of(cls, stream: bytes) -> "Header":
        values = struct.unpack_from(cls.FORMAT, stream)
        header = cls(*values)
        header.config, header.msix = bytearray(header.config), bytearray(header.msix)
        return header

    def pack(self) -> bytes:
        values = [getattr(self, one.name) for one in fields(self)]
        data = struct.pack(self.FORMAT, *[bytes(v) if isinstance(v, bytearray) else v for v in values])
        return data + crc32c(data).to_bytes(4, "little")
