# SPDX-License-Identifier: Apache-2.0
"""A Unix socket with one request and one answer for each connection, each a JSON object on one line.

It serves the root helper and libvirt's hook. `listen` creates the socket file. A `LineServer` accepts connections and
gives each a thread, which uses `receive_line` and `Reply`. Standard library only.
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
    """Another process serves this socket, or the path is not a socket."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def refusal(code: str, reason: str) -> dict[str, Any]:
    """Return a refusal. Its reason is put on one line."""
    return {"ok": False, "code": str(code), "reason": " ".join(reason.split())}


def receive_line(connection: socket.socket, *, limit: int, deadline: float) -> bytes:
    """Return the received line without its end. `deadline`: by time.monotonic().

    Raises TooLongError, TimeoutError; ConnectionError if the peer closes first or sends more than one line.
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
    """Return the peer's user id, from the kernel."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(data)[1])


def listen(path: Path, *, mode: int, gid: int = -1) -> socket.socket:
    """Return a socket that listens at `path` with this mode and group. Raises SocketTakenError, other OSError.

    It replaces a socket that nobody serves. The file is created under another name and then renamed, so that nobody
    finds the file before the socket listens. The file is created with its final mode, because chmod would be unsafe:
    the directory's owner could first replace the file by a link to another file.
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
        raise SocketTakenError(f"{path} is not a socket: move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except BlockingIOError:
            pass  # its queue is full, so somebody serves it, though slowly
    raise SocketTakenError(f"another process answers at {path}: stop it first")


class Reply:
    """The only answer to a connection: the first answer is sent, and closes the connection. Threads may share it."""

    def __init__(self, connection: socket.socket, *, send_s: float = 0) -> None:
        """`send_s`: time limit to send. 0 never blocks, and then an answer must fit into the kernel's buffer."""
        self._connection = connection
        self._send_s = send_s
        self._lock = threading.Lock()
        self._sent = False

    def send(self, answer: Mapping[str, Any]) -> None:
        """Send and close. Ignore a peer that has gone."""
        with self._lock:
            if self._sent:
                return
            self._sent = True
            with contextlib.suppress(OSError):
                self._connection.settimeout(self._send_s)
                self._connection.sendall(encode(answer))
                self._connection.shutdown(socket.SHUT_RDWR)
                while self._connection.recv(_CHUNK_BYTES):  # closing with unread data would reset the peer's connection
                    pass
            self._connection.close()


class LineServer:
    """Accepts connections until it is closed. `open`: the number of present connections.

    `serve` answers a connection through its Reply, in a thread called `name`. Exceptions of `serve` are logged.
    `turn_away` answers a connection that gets no thread: its flag is True if all `places` are taken, False if no thread
    can start. If `admit` returns False, the connection is closed.
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
                log.warning("%s: cannot accept: %s", self._name, error)  # out of descriptors: wait
                self._closing.wait(_PAUSE_S)
                continue
            if self._admit(connection):
                self._give_place(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Stop accepting. Requests in progress finish. Once `run` has returned, the listener may be closed."""
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
        except RuntimeError as error:  # out of threads or memory
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
