# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 on one connection, with limits for the client.

Extends uvicorn's protocol: it sets deadlines for clients that send a request or read an answer too slowly, answers with
problems where uvicorn sends plain text, and provides the content of a client's certificate. There is no deadline for
the application to answer.
"""

import asyncio
import re
import ssl
from asyncio import sslproto
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import h11
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from vgpumgr.wire.problem import Code
from vgpumgr_api.auth import agent_ca
from vgpumgr_api.edge.call import PEER
from vgpumgr_api.edge.problems import ProblemResponse
from vgpumgr_api.edge.transport.listen import BACKLOG
from vgpumgr_api.errors import Refusal
from vgpumgr_api.observe.exchange import NO_ROUTE, Exchange, Observer
from vgpumgr_api.overload.connection_settings import ConnectionSettings
from vgpumgr_api.overload.connections import Connections, Listener

TLS_BUFFER_BYTES = 32 << 10
"""Two TLS records."""

GRACE_S = 5.0
"""How long after a body's deadline the connection is cut. Until then the application can answer that the body was late.
"""

NO_REQUEST = "not a request of HTTP/1.1: "

_HOST = re.compile(rb"[^\s/?#@]*")
_ABSOLUTE = re.compile(rb"https?://[^/]+(/.*)?", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The limits of all connections of one server. `answered` is called for answers that bypass the application."""

    settings: ConnectionSettings
    connections: Connections
    answered: Observer = lambda _: None


class Server(uvicorn.Server):
    """A server whose connections have limits."""

    def __init__(self, config: uvicorn.Config, bounds: Bounds) -> None:
        super().__init__(config)
        self._bounds = bounds

    async def startup(self, sockets: list[Listener] | None = None) -> None:  # type: ignore[override]  # counted ones
        """Like uvicorn's startup, but with a deadline for the TLS handshake and without the ASGI lifespan."""
        tls: ssl.SSLContext | None = self.config.ssl
        allowed_s = None if tls is None else float(self._bounds.settings.handshake_s)
        # By default asyncio gives each connection a read buffer of 256 KiB before the client has sent anything.
        sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
        loop = asyncio.get_running_loop()
        self.servers = []
        for each in sockets or ():
            each.connections = self._bounds.connections
            made = partial(Protocol, self.config, self.server_state, {}, bounds=self._bounds)
            self.servers.append(
                await loop.create_server(
                    made,
                    sock=each,
                    ssl=tls,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=allowed_s,
                    ssl_shutdown_timeout=allowed_s,
                )
            )
        self.started = True


def _in_origin_form(app: ASGIApp) -> ASGIApp:
    """Converts a proxy's request target `http://host/path` to the usual form `/path`: RFC 9112, section 3.2.2."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        found = _ABSOLUTE.fullmatch(scope["raw_path"])
        if found is not None:
            raw_path: bytes = found[1] or b"/"
            scope.update(raw_path=raw_path, path=unquote(raw_path.decode("ascii")))
        await app(scope, receive, send)

    return called


def _framing_fault(scope: Scope) -> str | None:
    """Returns why a proxy may have parsed other headers or another end of the request: RFC 9112, 3.2 and 6.1."""
    names = [name for name, _ in scope["headers"]]
    # h11 joins folded lines, so another header can become part of the value of Host.
    if any(name == b"host" and not _HOST.fullmatch(value) for name, value in scope["headers"]):
        return "Host is not a host and a port"
    if b"transfer-encoding" not in names:
        return None
    if b"content-length" in names:
        return "Content-Length and Transfer-Encoding exclude each other"
    return "HTTP/1.0 has no Transfer-Encoding" if scope["http_version"] == "1.0" else None


def _framed_once(app: ASGIApp, refuse: Callable[[Refusal], ASGIApp]) -> ASGIApp:
    """Refuses requests with an ambiguous end, to prevent request smuggling, and closes the connection."""

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        fault = _framing_fault(scope)
        chosen = app if fault is None else refuse(Refusal(Code.BODY_INVALID, NO_REQUEST + fault))
        await chosen(scope, receive, send)

    return called


class Protocol(H11Protocol):
    """One connection."""

    def __init__(self, *args: Any, bounds: Bounds) -> None:
        super().__init__(*args)
        self.app = _framed_once(_in_origin_form(self.app), self._refusing)
        self._bounds = bounds
        self._phase = ""
        """The part of a request that the client must send before a deadline: "head", "body", or "" for none."""
        self._deadline: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        # Pauses writing as soon as the kernel's buffer is full, so that at most one message waits here.
        transport.set_write_buffer_limits(high=1, low=0)
        listened = transport.get_extra_info("socket")
        refusal = None if listened is None else self._bounds.connections.refusal(listened.fileno())
        if refusal is not None:
            self.app = self._refusing(refusal)
        self._watch_client()
        tls = transport.get_extra_info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        if shown is not None:
            self.app_state = {**self.app_state, PEER: agent_ca.peer(shown)}

    def handle_events(self) -> None:
        super().handle_events()
        self._watch_client()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget_deadline()
        self._forget_taking()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking = self.loop.call_later(self._bounds.settings.take_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._forget_taking()

    def _forget_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _watch_client(self) -> None:
        """Sets the deadline for the current phase. Between requests, uvicorn's keep-alive timeout applies."""
        state = self.conn.their_state
        asked: object = self.cycle  # None before the first request, despite uvicorn's annotation
        phase = ""
        if state is h11.SEND_BODY:
            phase = "body"
        elif state is h11.IDLE and (asked is None or self.conn.trailing_data[0]):
            phase = "head"
        if phase == self._phase:
            return
        self._phase = phase
        self._forget_deadline()
        settings = self._bounds.settings
        if phase == "head":
            self._deadline = self.loop.call_later(settings.head_s, self._head_is_late)
        elif phase == "body":
            self._deadline = self.loop.call_later(settings.body_s + GRACE_S, self.transport.abort)

    def _head_is_late(self) -> None:
        """Ends a connection whose request is late; answers only if the client has sent a part of it."""
        if self.conn.trailing_data[0] and self.conn.our_state is h11.IDLE and not self.transport.is_closing():
            self._answer(Code.REQUEST_TIMEOUT, f"no head of a request within {self._bounds.settings.head_s} s")
        else:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._answer(Code.BODY_INVALID, NO_REQUEST + msg)

    def _answer(self, code: Code, detail: str) -> None:
        """Answers input that is not a request, and closes the connection."""
        response = ProblemResponse(code, detail, request_id="-")
        headers = [*response.raw_headers, (b"connection", b"close")]
        reason = HTTPStatus(response.status_code).phrase.encode()
        for event in (
            h11.Response(status_code=response.status_code, headers=headers, reason=reason),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()
        self._note(code, response.status_code)

    def _refusing(self, refusal: Refusal) -> ASGIApp:
        """Returns an application that answers with this refusal and closes the connection."""

        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            response = ProblemResponse(
                refusal.code,
                refusal.detail,
                request_id="-",
                headers={"Connection": "close"},
                retry_after_s=refusal.retry_after_s,
            )
            await response(scope, receive, send)
            self._note(refusal.code, response.status_code)

        return refuse

    def _note(self, code: Code, status: int) -> None:
        done = Exchange(route=NO_ROUTE, method="other", status=status, code=code.value, seconds=0)
        self._bounds.answered(done)
