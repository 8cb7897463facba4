# SPDX-License-Identifier: Apache-2.0
"""The socket at which libvirt's hook, and `vgpumgr attach` and `detach`, ask the agent.

One request and one answer for each connection, each a JSON object on one line; see docs/libvirt-hook.md.
A HookServer owns its socket file and its threads: one accepts, one serves each connection, one watches that one's
time. A call of the agent that hangs keeps its own thread and place only; its caller is answered in time. Whoever is
not root is not answered at all.
"""

import contextlib
import json
import logging
import socket
import stat
import struct
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from vgpumgr_agent.hook_request import INVALID, parse
from vgpumgr_agent.hookproto import PREPARE_LIMIT_S, HookService
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1 << 20
_CREDENTIALS = struct.Struct("3i")


class ServerRunningError(Exception):
    """Somebody else serves this socket, or what stands in its place is no socket."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Of one connection, and how many there may be. `decide_s` is a little less than the hook itself waits."""

    receive_s: float = 2.0
    decide_s: float = PREPARE_LIMIT_S - 1
    connections: int = 64


@dataclass(kw_only=True)
class HookCounters:
    """What has happened since the start. They only grow, except `open`: connections that hold a place."""

    connections: int = 0
    open: int = 0
    refused_peers: int = 0
    invalid: int = 0
    refused: int = 0
    busy: int = 0
    timeouts: int = 0
    failed: int = 0


class HookServer:
    """Serves from `start` to `close`. `peer_uid`: the one user who is answered."""

    def __init__(self, path: Path, service: HookService, *, limits: Limits | None = None, peer_uid: int = 0) -> None:
        self._path = path
        self._service = service
        self._limits = limits or Limits()
        self._peer_uid = peer_uid
        self._lock = threading.Lock()
        self._counters = HookCounters()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._closing = threading.Event()
        self._inode = 0

    def start(self) -> None:
        """Take the place of a socket that nobody serves; ServerRunningError if somebody does, OSError."""
        self._listener = listen(self._path)
        self._inode = self._path.stat().st_ino
        self._acceptor = threading.Thread(target=self._accept, args=(self._listener,), name="hook", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening and remove the socket, if it is still ours. Open connections end within their limits."""
        if self._listener is None or self._acceptor is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self._listener = None

    def counters(self) -> HookCounters:
        """Return a copy, for reports and metrics."""
        with self._lock:
            return replace(self._counters)

    def _count(self, name: str, by: int = 1) -> None:
        with self._lock:
            setattr(self._counters, name, getattr(self._counters, name) + by)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._closing.is_set():
                    return
                log.warning("hook socket: cannot accept: %s", error)  # out of descriptors: let some be closed
                self._closing.wait(0.1)
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        """Give a connection its thread, or close it."""
        uid = peer_uid(connection)
        if uid != self._peer_uid:
            log.warning("hook socket: connection of user %d closed: only user %d may ask", uid, self._peer_uid)
            self._count("refused_peers")
            connection.close()
            return
        with self._lock:
            self._counters.connections += 1
            full = self._counters.open >= self._limits.connections
            self._counters.open += not full
            self._counters.busy += full
        reply = Reply(connection)
        if full:
            reply.send(no("agent.busy", f"{self._limits.connections} requests of libvirt hang: see the agent's log"))
            return
        try:
            threading.Thread(target=self._serve, args=(connection, reply), name="hook-request", daemon=True).start()
        except RuntimeError as error:
            log.error("hook socket: a request is turned away: %s", error)
            self._count("open", -1)
            self._count("busy")
            reply.send(no("agent.busy", "the agent has no threads left: see its log, and try again"))

    def _serve(self, connection: socket.socket, reply: "Reply") -> None:
        try:
            reply.send(self._answer(connection, reply))
        except Exception:
            log.exception("hook socket: a request failed")
            self._count("failed")
            reply.send(no("agent.failed", "the agent failed on this request: see its log"))
        finally:
            self._count("open", -1)

    def _answer(self, connection: socket.socket, reply: "Reply") -> dict[str, object]:
        try:
            request = parse(receive_line(connection, limit_s=self._limits.receive_s))
        except Refused as refusal:
            self._count("invalid")
            return no(refusal.code, refusal.reason)

        def give_up() -> None:
            self._count("timeouts")
            log.error("hook socket: %s of %r is not decided in %gs", request.operation, request.domain, limit_s)
            reply.send(no("agent.timeout", f"the agent did not decide in {limit_s:g} s: see its log"))

        limit_s = self._limits.decide_s
        watch = threading.Timer(limit_s, give_up)
        watch.daemon = True
        watch.start()
        try:
            request.put_to(self._service)
        except Refused as refusal:
            self._count("refused")
            log.info("hook: %s of %r refused: %s", request.operation, request.domain, refusal)
            return no(refusal.code, refusal.reason)
        finally:
            watch.cancel()
        return {"ok": True}


class Reply:
    """The one answer to a connection: the first one wins, and closes it. For use by several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._sent = False

    def send(self, answer: dict[str, object]) -> None:
        """Send and close; never blocks, and does not mind that nobody listens any more."""
        with self._lock:
            if self._sent:
                return
            self._sent = True
            with contextlib.suppress(OSError):
                self._connection.settimeout(0)
                self._connection.send(json.dumps(answer).encode() + b"\n")
                self._connection.shutdown(socket.SHUT_RDWR)
                while self._connection.recv(65536):  # what a closed socket leaves unread resets its peer
                    pass
            self._connection.close()


def no(code: str, reason: str) -> dict[str, object]:
    """Return the answer that refuses, on one line."""
    return {"ok": False, "code": code, "reason": " ".join(reason.split())}


def receive_line(connection: socket.socket, *, limit_s: float) -> bytes:
    """Return one line, complete within `limit_s` altogether; Refused."""
    deadline = time.monotonic() + limit_s
    data = bytearray()
    while b"\n" not in data[-65536:]:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            chunk = connection.recv(65536)
        except TimeoutError:
            raise Refused(INVALID, f"the request was not complete within {limit_s:g} s") from None
        except OSError as error:
            raise Refused(INVALID, f"the request broke off: {error.strerror}") from None
        if not chunk:
            raise Refused(INVALID, "the request is not one line that ends with a newline")
        data += chunk
        if len(data) > REQUEST_BYTES_MAX:
            raise Refused(INVALID, f"the request is longer than {REQUEST_BYTES_MAX >> 20} MiB")
    line, rest = bytes(data).split(b"\n", 1)
    if rest:
        raise Refused(INVALID, "something follows the request's line")
    return line


def peer_uid(connection: socket.socket) -> int:
    """Return the user at the other end, as the kernel knows it."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    return int(uid)


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path` with mode 0600; ServerRunningError, OSError.

    It is made under another name and moved into place, so that nobody finds it with a wider mode.
    """
    _refuse_if_served(path)
    making = path.with_name(f".{path.name}.new")
    making.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(making))
        making.chmod(0o600)
        listener.listen(64)
        making.rename(path)
    except OSError:
        listener.close()
        making.unlink(missing_ok=True)
        raise
    return listener


def _refuse_if_served(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ServerRunningError(f"{path} is no socket: move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return
        except BlockingIOError:
            pass  # its queue is full: it is served, though badly
    raise ServerRunningError(f"another process answers at {path}: stop it first")
