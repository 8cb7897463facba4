# SPDX-License-Identifier: Apache-2.0
"""A Unix socket with one request and one answer for each connection, each a JSON object on one line.

The root helper and libvirt's hook are served in this way. `listen` makes the socket file; a `LineServer` accepts at it
and gives each connection a thread of its own; `receive_line` and `Reply` are for that thread. Standard library only.
"""

import contextlib
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_CHUNK_BYTES = 64 << 10
_BACKLOG = 64
_PAUSE_S = 0.1
_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid


class TooLongError(Exception):
    """A line is longer than allowed."""


class SocketTakenError(FileExistsError):
    """Somebody else serves this socket, or what stands in its place is no socket."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def refusal(code: str, reason: str) -> dict[str, Any]:
    """Return the answer that refuses; its reason is one line."""
    return {"ok": False, "code": str(code), "reason": " ".join(reason.split())}


def receive_line(connection: socket.socket, *, limit: int, deadline: float) -> bytes:
    """Return the one line that comes, without its end. `deadline`: by time.monotonic().

    TooLongError, TimeoutError; ConnectionError if the peer hangs up first, or sends more than the line.
    """
    parts: list[bytes] = []
    length = 0
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        connection.settimeout(left_s)
        part = connection.recv(_CHUNK_BYTES)
        if not part:
            raise ConnectionError("hung up before the end of the line")
        end = part.find(b"\n")
        length += len(part) if end < 0 else end
        if length > limit:
            raise TooLongError
        if end >= 0:
            if end + 1 < len(part):
                raise ConnectionError("something follows the line")
            return b"".join([*parts, part[:end]])
        parts.append(part)


def peer_uid(connection: socket.socket) -> int:
    """Return the user at the other end, as the kernel knows it."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def listen(path: Path, *, mode: int, gid: int = -1) -> socket.socket:
    """Return a socket that listens at `path`, of this mode and group; SocketTakenError, other OSError.

    It takes the place of one that nobody serves. The file is made under another name and moved, so that nobody finds
    it before it listens, and it has its mode from the start: whoever owns the directory could put a link to another
    file in its place before a chmod.
    """
    _refuse_if_served(path)
    making = path.with_name(f".{path.name}.new")
    making.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        _bind(listener, making, mode, gid)
        listener.listen(_BACKLOG)
        making.rename(path)
    except BaseException:
        listener.close()
        with contextlib.suppress(OSError):
            making.unlink(missing_ok=True)
        raise
    return listener


def _bind(listener: socket.socket, path: Path, mode: int, gid: int) -> None:
    mask, group = os.umask(~mode & 0o777), os.getegid()
    try:
        if gid not in (-1, group):
            os.setegid(gid)
        listener.bind(str(path))
    finally:
        if os.getegid() != group:
            os.setegid(group)
        os.umask(mask)


def _refuse_if_served(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketTakenError(f"{path} is no socket: move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except BlockingIOError:
            pass  # its queue is full: it is served, though badly
    raise SocketTakenError(f"another process answers at {path}: stop it first")


class Reply:
    """The one answer to a connection: the first one wins, and closes it. For use by several threads."""

    def __init__(self, connection: socket.socket, *, send_s: float = 0) -> None:
        """`send_s`: how long sending may take; 0: it never blocks, and an answer is no longer than the kernel holds."""
        self._connection = connection
        self._send_s = send_s
        self._lock = threading.Lock()
        self._sent = False

    def send(self, answer: Mapping[str, Any]) -> None:
        """Send and close. It does not matter whether anybody still listens."""
        with self._lock:
            if self._sent:
                return
            self._sent = True
            with contextlib.suppress(OSError):
                self._connection.settimeout(self._send_s)
                self._connection.sendall(encode(answer))
                self._connection.shutdown(socket.SHUT_RDWR)
                while self._connection.recv(_CHUNK_BYTES):  # what a closed socket leaves unread resets its peer
                    pass
            self._connection.close()


class LineServer:
    """Accepts until it is closed. `open`: how many connections have a place now.

    `serve` answers a connection through its Reply, in a thread called `name`; what it raises is logged. `turn_away`
    answers a connection that gets no thread: True if all `places` are taken, False if there are no threads. `admit`
    may have a connection closed instead.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        name: str,
        places: int,
        serve: Callable[[socket.socket, Reply], None],
        turn_away: Callable[[Reply, bool], None],
        admit: Callable[[socket.socket], bool] = lambda _: True,
        send_s: float = 0,
    ) -> None:
        self._listener = listener
        self._name = name
        self._places = places
        self._serve = serve
        self._turn_away = turn_away
        self._admit = admit
        self._send_s = send_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self.open = 0

    def run(self) -> None:
        """Accept until `close` is called."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closing.is_set():
                    return
                log.warning("%s: cannot accept: %s", self._name, error)  # out of descriptors: let some be closed
                self._closing.wait(_PAUSE_S)
                continue
            if self._admit(connection):
                self._give_place(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Stop accepting; what was begun goes on. `run` returns, and then the listener may be closed."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def _give_place(self, connection: socket.socket) -> None:
        reply = Reply(connection, send_s=self._send_s)
        with self._lock:
            full = self.open >= self._places
            self.open += not full
        if full:
            self._turn_away(reply, True)
            return
        try:
            threading.Thread(target=self._converse, args=(connection, reply), name=self._name, daemon=True).start()
        except RuntimeError as error:  # no threads or memory: let some end
            log.error("%s: a connection is turned away: %s", self._name, error)
            self._leave()
            self._turn_away(reply, False)

    def _converse(self, connection: socket.socket, reply: Reply) -> None:
        try:
            self._serve(connection, reply)
        except Exception:
            log.exception("%s: a connection failed", self._name)
            connection.close()
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self.open -= 1
