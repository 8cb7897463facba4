# SPDX-License-Identifier: Apache-2.0
"""The process behind the fake device files. `python -m tests.gpu.fakerm.server '{"directory": ...}'`

Virtual time moves only while every thread that has a context waits for the GPU or sleeps. So a process's own computing
takes no time, and a run depends only on the requests of the processes.
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
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.fakerm.gpu import Behaviour, Gpu, Group
from tests.gpu.fakerm.rm import UVM, ResourceManager

REQUEST = struct.Struct("=IIIIQ")
ANSWER = struct.Struct("=iiII")
WORK = struct.Struct("=IIQII")
RM_MAGIC, FAKE_MAGIC = ord("F"), ord("K")
FREE, CONTROL, ALLOC, DUP, HEAP, REGISTER_FD, CHECK_VERSION = 0x29, 0x2A, 0x2B, 0x34, 0x4A, 201, 210
GROUP_GET_INFO = 0xA06C0106
JOIN, SUBMIT, WAIT, SLEEP, LEAVE, PROGRESS = 1, 2, 3, 4, 5, 6
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
    """Settings besides the GPU's behaviour: the driver's version, what it refuses, and when it dies.

    refuse_later_disable: refuse to disable channels of all clients except the first. refuse_cilp: refuse to make
    kernels preemptible. disable_s: real time of a call that disables or enables channels. A second such call at the
    same time leaves the groups of both calls stuck, like on a real GPU. info_s: real time of a call that only asks.
    """

    directory: Path
    behaviour: Behaviour = field(default_factory=Behaviour)
    version: str = "580.142"
    refuse_timeslice: bool = False
    refuse_wfi: bool = False
    refuse_disable: bool = False
    refuse_later_disable: bool = False
    refuse_cilp: bool = False
    disable_s: float = 0.0
    info_s: float = 0.0
    dies_after_ns: int | None = None

    @classmethod
    def parse(cls, text: str) -> Options:
        document: dict[str, Any] = json.loads(text)
        behaviour = Behaviour(**document.pop("behaviour", {}))
        return cls(behaviour=behaviour, **document | {"directory": Path(document["directory"])})


class Server:
    """Runs in one thread. Owns the socket and the page with the clock."""

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
            refuse_disable=options.refuse_disable,
            refuse_later_disable=options.refuse_later_disable,
            refuse_cilp=options.refuse_cilp,
        )
        self._files: set[File] = set()
        # Pending calls: their end, their groups, and the function that completes them.
        self._under_way: list[tuple[float, list[Group], Callable[[], None]]] = []
        # The process that makes the present call.
        self._caller = 0
        # True if only a call can make the GPU continue.
        self._stands = False
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(options.directory / "socket"))
        # The kernel reports the sender of a packet, because the caller need not be the process that opened the file.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Serve until the parent process closes our standard input."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            ready = self._selector.select(0 if self._may_advance() else self._end_calls())
            for key, _ in ready:
                if key.fileobj is sys.stdin:
                    self._write_log()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._receive(key.data)
            if not ready and self._may_advance():
                # Time stops until every process that this step woke waits again.
                if not self._gpu.advance():
                    self._stands = self._gpu.has_stopped
                    if self._stands:
                        continue
                    raise RuntimeError("every process waits for something that will never happen")
                dies = self._options.dies_after_ns
                if dies is not None and self._gpu.now_ns - self._started_ns >= dies:
                    self._write_log()
                    return

    def _show_time(self, now_ns: int) -> None:
        self._clock.value = now_ns

    def _end_calls(self) -> float | None:
        """Complete the calls whose time is over. Returns the time until the next completion."""
        while self._under_way and self._under_way[0][0] <= time.monotonic():
            self._under_way.pop(0)[2]()
            self._stands = False
        return max(self._under_way[0][0] - time.monotonic(), 0) if self._under_way else None

    def _may_advance(self) -> bool:
        if self._under_way or self._stands:
            return False
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
            packet, ancillary, _, _ = file.connection.recvmsg(PACKET_MAX, socket.CMSG_SPACE(4) + socket.CMSG_SPACE(12))
        except ConnectionError:
            packet, ancillary = b"", []
        if not packet:
            self._close(file)
            return
        descriptors = array.array("i")
        for _, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[:4])
            else:
                self._caller = struct.unpack("=iII", data[:12])[0]
        with socket.socket(fileno=descriptors[0]) as answer_to:
            self._answer(file, packet, answer_to)

    def _answer(self, file: File, packet: bytes, answer_to: socket.socket) -> None:
        self._stands = False
        request, header_size, nested_size, fault, _ = REQUEST.unpack_from(packet)
        header = packet[REQUEST.size : REQUEST.size + header_size]
        nested = packet[REQUEST.size + header_size :] if nested_size and not fault else None
        if request >> 8 == FAKE_MAGIC:
            self._work(file, request & 0xFF, header, answer_to)
            return
        if request & 0xFF == CONTROL and len(header) == 32:
            groups = self._rm.groups_of(file, header, nested)
            asks = struct.unpack_from("=I", header, 8)[0] == GROUP_GET_INFO
            lasts_s = self._options.disable_s if groups else self._options.info_s if asks else 0
            if lasts_s:
                self._take_time(file, request, header, nested, answer_to.dup(), groups, lasts_s)
                return
        self._finish(file, request, header, nested, answer_to)

    def _take_time(
        self,
        file: File,
        request: int,
        header: bytes,
        nested: bytes | None,
        kept: socket.socket,
        groups: list[Group],
        lasts_s: float,
    ) -> None:
        """Start a call that ends later. A real GPU does not support two at the same time."""
        for _, others, _ in self._under_way:
            for group in (*others, *groups) if others and groups else ():
                group.stuck = True

        def end() -> None:
            with kept:
                self._finish(file, request, header, nested, kept)

        self._under_way.append((time.monotonic() + lasts_s, groups, end))
        self._under_way.sort(key=lambda call: call[0])

    def _finish(self, file: File, request: int, header: bytes, nested: bytes | None, answer_to: socket.socket) -> None:
        outcome = self._call(file, request & 0xFF, header, nested)
        if isinstance(outcome, int):
            _send(answer_to, -1, outcome, b"", None)
        else:
            result, changed, params = outcome
            _send(answer_to, result, errno.EINVAL if result < 0 else 0, changed, params)

    def _call(
        self, file: File, escape: int, header: bytes, nested: bytes | None
    ) -> int | tuple[int, bytes, bytes | None]:
        """Return an errno, or the outcome of the call."""
        if escape == CHECK_VERSION:
            result, changed = self._rm.check_version(header)
            return result, changed, None
        if escape == REGISTER_FD:
            return 0, header, None
        if escape == ALLOC:
            has_open = any(each.pid == self._caller for each in self._files)
            answer = self._rm.allocate(file, header, nested, caller=self._caller, has_open=has_open)
            return errno.EINVAL if answer is None else (0, answer, nested)
        if escape in UVM:
            return 0, self._rm.manage(escape, header, caller=self._caller), None
        if escape == FREE:
            answer = self._rm.free(file, header)
            return errno.EINVAL if answer is None else (0, answer, None)
        if escape == HEAP:
            answer = self._rm.heap(file, header)
            return errno.EINVAL if answer is None else (0, answer, None)
        if escape == DUP:
            answer = self._rm.duplicate(file, header)
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
        elif kind == PROGRESS:
            header = WORK.pack(client, handle, self._gpu.progress_ns(handle), 0, 0)
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
        """Count the file as waiting, and return a function that ends the wait and sends the answer."""
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
    with contextlib.suppress(OSError):  # the caller is gone
        answer_to.send(b"".join(parts))


if __name__ == "__main__":
    Server(Options.parse(sys.argv[1])).serve()
