# SPDX-License-Identifier: Apache-2.0
"""The socket at which libvirt's hook, and `vgpumgr attach` and `detach`, ask the agent.

Each connection carries one request and one answer, each a JSON object on one line; see docs/libvirt-hook.md. A
HookServer owns its socket file (see `line_socket`) and its threads. One thread accepts connections. Each connection has
a thread that serves it and a thread that enforces the time limit. If a call of the agent hangs, it holds only its own
thread and connection, and its caller still gets an answer in time. Only root is answered.
"""

import contextlib
import logging
import socket
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vgpumgr_agent.hook.request import INVALID, HookRequest, parse
from vgpumgr_agent.hook.service import PREPARE_LIMIT_S, HookService
from vgpumgr_agent.line_socket import LineServer, Reply, TooLongError, listen, peer_uid, receive_line, refusal
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Time limits of a connection, and the number of connections. `decide_s` is a little less than the hook waits."""

    receive_s: float = 2.0
    decide_s: float = PREPARE_LIMIT_S - 1
    connections: int = 64


@dataclass(kw_only=True)
class HookCounters:
    """Counters since the start. All only grow, except `open`, the number of present connections."""

    connections: int = 0
    open: int = 0
    refused_peers: int = 0
    invalid: int = 0
    refused: int = 0
    busy: int = 0
    timeouts: int = 0
    failed: int = 0


class HookServer:
    """Serves from `start` to `close`. `peer_uid`: the only user that is answered."""

    def __init__(self, path: Path, service: HookService, *, limits: Limits | None = None, peer_uid: int = 0) -> None:
        self._path = path
        self._service = service
        self._limits = limits or Limits()
        self._peer_uid = peer_uid
        self._lock = threading.Lock()
        self._counters = HookCounters()
        self._listener: socket.socket | None = None
        self._server: LineServer | None = None
        self._acceptor: threading.Thread | None = None
        self._inode = 0

    def start(self) -> None:
        """Listen, replacing a socket that nobody serves. Raises SocketTakenError if somebody serves it, OSError."""
        self._listener = listen(self._path, mode=0o600)
        self._inode = self._path.stat().st_ino
        self._server = LineServer(
            self._listener,
            name="hook-request",
            places=self._limits.connections,
            admit=self._admit,
            serve=self._serve,
            turn_away=self._turn_away,
        )
        self._acceptor = threading.Thread(target=self._server.run, name="hook", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening and remove the socket, if it is still ours. Open connections end within their time limits."""
        if self._listener is None or self._server is None or self._acceptor is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._server.close()
        self._acceptor.join()
        self._listener.close()
        self._listener = None

    def counters(self) -> HookCounters:
        """Return a copy, for reports and metrics."""
        with self._lock:
            return replace(self._counters, open=self._server.open if self._server is not None else 0)

    def _count(self, name: str) -> None:
        with self._lock:
            setattr(self._counters, name, getattr(self._counters, name) + 1)

    def _admit(self, connection: socket.socket) -> bool:
        uid = peer_uid(connection)
        if uid != self._peer_uid:
            log.warning("hook socket: connection of user %d closed: only user %d may ask", uid, self._peer_uid)
            self._count("refused_peers")
            return False
        self._count("connections")
        return True

    def _turn_away(self, reply: Reply, full: bool) -> None:
        self._count("busy")
        why = "the agent has no threads left: see its log, and try again"
        if full:
            why = f"{self._limits.connections} requests of libvirt hang: see the agent's log"
        reply.send(refusal("agent.busy", why))

    def _serve(self, connection: socket.socket, reply: Reply) -> None:
        try:
            reply.send(self._answer(connection, reply))
        except Exception:
            log.exception("hook socket: a request failed")
            self._count("failed")
            reply.send(refusal("agent.failed", "the agent failed on this request: see its log"))

    def _answer(self, connection: socket.socket, reply: Reply) -> dict[str, Any]:
        try:
            request = receive(connection, limit_s=self._limits.receive_s)
        except Refused as refused:
            self._count("invalid")
            return refusal(refused.code, refused.reason)

        def give_up() -> None:
            self._count("timeouts")
            log.error("hook socket: %s of %r is not decided in %gs", request.operation, request.domain, limit_s)
            reply.send(refusal("agent.timeout", f"the agent did not decide in {limit_s:g} s: see its log"))

        limit_s = self._limits.decide_s
        watch = threading.Timer(limit_s, give_up)
        watch.daemon = True
        watch.start()
        try:
            request.put_to(self._service)
        except Refused as refused:
            self._count("refused")
            log.info("hook: %s of %r refused: %s", request.operation, request.domain, refused)
            return refusal(refused.code, refused.reason)
        finally:
            watch.cancel()
        return {"ok": True}


def receive(connection: socket.socket, *, limit_s: float) -> HookRequest:
    """Return a request that arrives within `limit_s`. Raises Refused."""
    try:
        return parse(receive_line(connection, limit=REQUEST_BYTES_MAX, deadline=time.monotonic() + limit_s))
    except TooLongError:
        raise Refused(INVALID, f"the request is longer than {REQUEST_BYTES_MAX >> 20} MiB") from None
    except TimeoutError:
        raise Refused(INVALID, f"the request was not complete within {limit_s:g} s") from None
    except OSError as error:
        raise Refused(INVALID, f"the request broke off: {error.strerror or error}") from None
