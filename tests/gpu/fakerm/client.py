# SPDX-License-Identifier: Apache-2.0
"""A process on the fake GPU without libcuda. Tests use it to advance the time, to observe others, or to compete."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Self

from tests.gpu.fakerm.server import (
    ALLOC,
    ANSWER,
    CHECK_VERSION,
    CONTROL,
    FAKE_MAGIC,
    JOIN,
    PROGRESS,
    REQUEST,
    RM_MAGIC,
    SLEEP,
    SUBMIT,
    WORK,
)

ROOT_CLIENT, DEVICE, SUBDEVICE, GROUP, CHANNEL = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F
PARAMETERS = {ROOT_CLIENT: b"", DEVICE: bytes(56), SUBDEVICE: bytes(4), CHANNEL: bytes(368)}
LIMIT_S = 60.0


class FakeClient:
    """An open file of the fake driver, accessed by its server's protocol."""

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(str(directory / "socket"))
        self._handles = iter(range(0x5C000001, 0x5D000000))
        self.client = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, kind: int, header: bytes, nested: bytes = b"", *, magic: int = RM_MAGIC) -> tuple[bytes, bytes]:
        """Make one call. Returns the structure and the data of its pointer after the call. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            ours.settimeout(LIMIT_S)
            packet = REQUEST.pack(magic << 8 | kind, len(header), len(nested), 0, 0) + header + nested
            socket.send_fds(self._socket, [packet], [theirs.fileno()])
            theirs.close()
            answer = ours.recv(65536)
        result, error, size, _ = ANSWER.unpack_from(answer)
        if result < 0:
            raise OSError(error, os.strerror(error))
        return answer[ANSWER.size : ANSWER.size + size], answer[ANSWER.size + size :]

    def work(self, kind: int, *, group: int = 0, value: int = 0) -> int:
        header, _ = self.call(kind, WORK.pack(self.client, group, value, 0, 0), magic=FAKE_MAGIC)
        return int(WORK.unpack(header)[2]) if header else 0

    def join(self) -> None:
        """From now on, time passes only while this process sleeps."""
        self.work(JOIN)

    def pass_time(self, ns: int) -> None:
        self.work(SLEEP, value=ns)

    def progress_ns(self, number: int) -> int:
        """Return the run time of the group with this number. Only groups that run kernels count, from 0."""
        return self.work(PROGRESS, group=number)

    def make(self, parent: int, class_id: int, parameters: bytes | None = None) -> int:
        """Make an object and return its handle."""
        data = PARAMETERS[class_id] if parameters is None else parameters
        wanted = 0 if class_id == ROOT_CLIENT else next(self._handles)
        header = struct.pack("=4IQQ4I", self.client, parent, wanted, class_id, 1 if data else 0, 0, len(data), 0, 0, 0)
        answer, _ = self.call(ALLOC, header, data)
        handle, status = struct.unpack_from("=I", answer, 8)[0], struct.unpack_from("=I", answer, 40)[0]
        assert status == 0, f"status {status:#x}"
        return int(handle)

    def control(self, target: int, command: int, parameters: bytes) -> int:
        """Make one control call and return its status."""
        header = struct.pack("=4IQ2I", self.client, target, command, 0, 1, len(parameters), 0)
        answer, _ = self.call(CONTROL, header, parameters)
        return int(struct.unpack_from("=I", answer, 28)[0])

    def begin(self, version: str) -> int:
        """Make a context with one group and a channel, and return the group's handle."""
        self.call(CHECK_VERSION, struct.pack("=II64s", 0, 0, version.encode()))
        self.client = self.make(0, ROOT_CLIENT)
        device = self.make(self.client, DEVICE)
        self.make(device, SUBDEVICE)
        group = self.make(device, GROUP, struct.pack("=IIIIB3x", 0, 0, 0, 1, 0))
        self.make(group, CHANNEL)
        return group

    def submit(self, group: int, ns: int) -> None:
        """Submit a kernel of this length."""
        self.work(SUBMIT, group=group, value=ns)
