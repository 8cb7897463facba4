# SPDX-License-Identifier: Apache-2.0
"""The process behind the fake device files. `python -m tests.gpu.fakerm.server '{"directory": ...}'`

Virtual time moves only while every thread that has a context waits for the GPU or sleeps, so that what a process
computes takes no time and a run depends on nothing but what the processes ask for.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import json
import mmap
import selectors
import socket
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.fakerm.gpu import Behaviour, Gpu
from tests.gpu.fakerm.rm import ResourceManager

REQUEST = struct.Struct("=IIIIQ")
ANSWER = struct.Struct("=iiII")
WORK = struct.Struct("=IIQII")
RM_MAGIC, FAKE_MAGIC = ord("F"), ord("K")
FREE, CONTROL, ALLOC, REGISTER_FD, CHECK_VERSION = 0x29, 0x2A, 0x2B, 201, 210
JOIN, SUBMIT, WAIT, SLEEP, LEAVE = 1, 2, 3, 4, 5
PACKET_MAX = 65536


@dataclass(eq=False)
class File:
    """An open device file. A thread that has a context counts as busy unless it waits in one of its calls."""

    connection: socket.socket
    pid: int
    threads: int = 0
    waits: int = 0


@dataclass(kw_only=True)
class Options:
    """Beside what the GPU does: which driver this is, what it refuses, when it dies."""

    directory: Path
    behaviour: Behaviour = field(default_factory=Behaviour)
    version: str = "580.142"
    refuse_timeslice: bool = False
    refuse_wfi: bool = False
    dies_after_ns: int | None = None

    @classmethod
    def parse(cls, text: str) -> Options:
        document: dict[str, Any] = json.loads(text)
        behaviour = Behaviour(**document.pop("behaviour", {}))
        return cls(behaviour=behaviour, **document | {"directory": Path(document["directory"])})


class Server:
    """One thread; owns the socket and the page with the clock."""

    def __init__(self, options: Options) -> None:
        self._options = options
        path = options.directory / "clock"
        path.write_bytes(bytes(4096))
        with path.open("r+b") as page:
            self._page = mmap.mmap(page.fileno(), 4096)
        self._clock = ctypes.c_uint64.from_buffer(self._page)
        self._gpu = Gpu(options.behaviour, self._show_time)
        self._started_ns = self._gpu.now_ns
        self._show_time(self._gpu.now_ns)
        self._rm = ResourceManager(
            self._gpu,
            version=options.version,
            refuse_timeslice=options.refuse_timeslice,
            refuse_wfi=options.refuse_wfi,
        )
        self._files: set[File] = set()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(options.directory / "socket"))
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the process that started this one closes our standard input."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            ready = self._selector.select(0 if self._may_advance() else None)
            for key, _ in ready:
                if key.fileobj is sys.stdin:
                    self._write_log()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._receive(key.data)
            if not ready and self._may_advance():
                # Time stands still until whoever was woken by this waits again.
                if not self._gpu.advance():
                    raise RuntimeError("every process waits for something that will never happen")
                dies = self._options.dies_after_ns
                if dies is not None and self._gpu.now_ns - self._started_ns >= dies:
                    self._write_log()
                    return

    def _show_time(self, now_ns: int) -> None:
        self._clock.value = now_ns

    def _may_advance(self) -> bool:
        joined = [file for file in self._files if file.threads > 0]
        return bool(joined) and all(file.waits >= file.threads for file in joined)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        pid = struct.unpack("=iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        file = File(connection=connection, pid=pid)
        self._files.add(file)
        self._selector.register(connection, selectors.EVENT_READ, file)

    def _close(self, file: File) -> None:
        self._selector.unregister(file.connection)
        self._files.discard(file)
        self._rm.close(file)
        file.connection.close()

    def _receive(self, file: File) -> None:
        try:
            packet, ancillary, _, _ = file.connection.recvmsg(PACKET_MAX, socket.CMSG_SPACE(4))
        except ConnectionError:
            packet, ancillary = b"", []
        if not packet:
            self._close(file)
            return
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data[:4])
        with socket.socket(fileno=descriptors[0]) as answer_to:
            self._answer(file, packet, answer_to)

    def _answer(self, file: File, packet: bytes, answer_to: socket.socket) -> None:
        request, header_size, nested_size, fault, _ = REQUEST.unpack_from(packet)
        header = packet[REQUEST.size : REQUEST.size + header_size]
        nested = packet[REQUEST.size + header_size :] if nested_size and not fault else None
        if request >> 8 == FAKE_MAGIC:
            self._work(file, request & 0xFF, header, answer_to)
            return
        outcome = self._call(file, request & 0xFF, header, nested)
        if isinstance(outcome, int):
            _send(answer_to, -1, outcome, b"", None)
        else:
            result, changed, params = outcome
            _send(answer_to, result, errno.EINVAL if result < 0 else 0, changed, params)

    def _call(
        self, file: File, escape: int, header: bytes, nested: bytes | None
    ) -> int | tuple[int, bytes, bytes | None]:
        """An errno, or what becomes of the call."""
        if escape == CHECK_VERSION:
            result, changed = self._rm.check_version(header)
            return result, changed, None
        if escape == REGISTER_FD:
            return 0, header, None
        if escape == ALLOC:
            answer = self._rm.allocate(file, header, nested)
            return errno.EINVAL if answer is None else (0, answer, nested)
        if escape == FREE:
            answer = self._rm.free(file, header)
            return errno.EINVAL if answer is None else (0, answer, None)
        if escape == CONTROL:
            outcome = self._rm.control(file, header, nested)
            return errno.EINVAL if outcome is None else (0, *outcome)
        return errno.EINVAL

    def _work(self, file: File, kind: int, header: bytes, answer_to: socket.socket) -> None:
        client, handle, value, memory_bound, _ = WORK.unpack(header)
        if kind == JOIN:
            file.threads += 1
        elif kind == LEAVE:
            file.threads -= 1
        elif kind == SLEEP:
            self._gpu.sleep(value, self._waiting(file, answer_to))
            return
        else:
            group = self._rm.group(file, client, handle)
            if group is None:
                _send(answer_to, -1, errno.EINVAL, b"", None)
                return
            if kind == SUBMIT:
                value = self._gpu.submit(group, value, memory_bound=bool(memory_bound))
                header = WORK.pack(client, handle, value, memory_bound, 0)
            elif self._gpu.wait(group, value, answer := self._waiting(file, answer_to)):
                return
            else:
                answer()
                return
        _send(answer_to, 0, 0, header, None)

    def _waiting(self, file: File, answer_to: socket.socket) -> Any:
        """Counts the file as waiting until what this returns is called, which answers."""
        file.waits += 1
        kept = answer_to.dup()

        def answer() -> None:
            file.waits -= 1
            with kept:
                _send(kept, 0, 0, b"", None)

        return answer

    def _write_log(self) -> None:
        (self._options.directory / "log.json").write_text(json.dumps(self._rm.log))


def _send(answer_to: socket.socket, result: int, error: int, header: bytes, nested: bytes | None) -> None:
    parts = ANSWER.pack(result, error, len(header), len(nested or b"")), header, nested or b""
    with contextlib.suppress(OSError):  # who asked is gone
        answer_to.send(b"".join(parts))


if __name__ == "__main__":
    Server(Options.parse(sys.argv[1])).serve()
