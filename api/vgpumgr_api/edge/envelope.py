# SPDX-License-Identifier: Apache-2.0
"""The outermost middleware: request id, size limit, handler of last resort, access log, metrics and traces.

It encloses all handlers, so it also sees requests that match no route, and unexpected exceptions.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vgpumgr.wire.fleet import REPORT_BYTES_MAX
from vgpumgr.wire.problem import Code
from vgpumgr_api.edge.lifecycle import Lifecycle
from vgpumgr_api.edge.problems import TOO_LARGE, ProblemResponse
from vgpumgr_api.errors import Refusal
from vgpumgr_api.observe.exchange import Exchange, Observer, method_of, route_of
from vgpumgr_api.observe.logs import FIELDS, REQUEST
from vgpumgr_api.observe.tracing import Tracing
from vgpumgr_api.overload.bodies import Bodies
from vgpumgr_api.overload.connections import network_of

BODY_MAX = 1 << 20
"""The maximum size of a body in bytes."""

ENROLL_MAX = 128 << 10
"""The maximum size of an enrolment in bytes: its signing request may have 8192 characters, escaped in any way."""

CLIENT_CLOSED = 499
"""Logged as the status if the client disconnected."""

log = logging.getLogger("vgpumgr_api.edge.envelope")
access = logging.getLogger("vgpumgr_api.access")

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REPORT = re.compile(r"/v1/hosts/[^/]+/report")
_ENROLL = "/v1/enroll"


class Envelope:
    """ASGI middleware that surrounds every request.

    Sets ``request.state.request_id``. The routes set ``request.state.caller`` for the log, and ``request.state.actor``
    before they read a body. `bodies` counts the bytes of bodies in memory; each body must arrive within `body_s`.
    `observers` are called after each request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        lifecycle: Lifecycle,
        bodies: Bodies,
        body_s: float,
        observers: Sequence[Observer] = (),
        tracing: Tracing | None = None,
    ) -> None:
        self.app = app
        self._lifecycle = lifecycle
        self._bodies = bodies
        self._body_s = body_s
        self._observers = observers
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        wanted = headers.get("x-request-id", "")
        state = scope.setdefault("state", {})
        state["request_id"] = wanted if _SANE_ID.fullmatch(wanted) else uuid4().hex
        exchange = _Exchange(scope, receive, send, self._lifecycle, self._bodies, self._body_s)
        context = REQUEST.set(state)
        try:
            with contextlib.nullcontext() if self._tracing is None else self._tracing.request(headers) as span:
                await self._answer(headers, exchange)
                if self._tracing is not None and span is not None:
                    self._tracing.answered(span, exchange.summary(), state["request_id"])
        finally:
            exchange.close()
            done = exchange.summary()
            for observer in self._observers:
                observer(done)
            exchange.log(done)
            REQUEST.reset(context)

    async def _answer(self, headers: Headers, exchange: "_Exchange") -> None:
        try:
            if _announced_bytes(headers) > exchange.body_max:
                await exchange.fail(Code.BODY_TOO_LARGE, TOO_LARGE)
            else:
                await self.app(exchange.scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = CLIENT_CLOSED
        except Exception:
            log.exception("request %s: unexpected", exchange.state["request_id"])
            if exchange.started:
                raise
            await exchange.fail(Code.INTERNAL, "a defect of the API; its log says more under this request_id")


def _announced_bytes(headers: Headers) -> int:
    """Returns Content-Length, or 0 if it is missing or malformed. The bytes received are counted in any case."""
    value = headers.get("content-length", "")
    return int(value) if re.fullmatch(r"[0-9]{1,20}", value) else 0


def _body_max(path: str) -> int:
    if _REPORT.fullmatch(path):
        return REPORT_BYTES_MAX
    return ENROLL_MAX if path == _ENROLL else BODY_MAX


class _Exchange:
    """One request and its answer."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        lifecycle: Lifecycle,
        bodies: Bodies,
        body_s: float,
    ) -> None:
        self.started = False
        self.status = 0
        self.body_max = _body_max(scope["path"])
        self._lifecycle = lifecycle
        self.scope = scope
        self._receive = receive
        self._send = send
        self._bodies = bodies
        self._body_s = body_s
        self._received_bytes = self._held_bytes = 0
        self._stranger: str | None = None
        self._received = False
        self._broken_off = False
        self._begun_s = time.monotonic()
        self._body_until_s = asyncio.get_running_loop().time() + body_s

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scope["state"]
        return state

    async def receive(self) -> Message:
        if self._received:  # only the disconnection of the client can follow, and may take long
            return await self._receive()
        message = await self._next_piece()
        size_bytes = len(message.get("body", b""))
        self._received_bytes += size_bytes
        self._received = not message.get("more_body", False)
        if self._received_bytes > self.body_max:
            raise HTTPException(status_code=413)
        if size_bytes:
            if not self._held_bytes:  # the actor of a valid credential is known by now
                self._stranger = None if "actor" in self.state else self._address()
            self._bodies.take(size_bytes, self._stranger)
            self._held_bytes += size_bytes
        return message

    def _address(self) -> str:
        client = self.scope.get("client")
        return network_of(client[0]) if client else ""

    async def _next_piece(self) -> Message:
        try:
            async with asyncio.timeout_at(self._body_until_s):
                return await self._receive()
        except TimeoutError:
            self._broken_off = True
            raise Refusal(
                Code.REQUEST_TIMEOUT,
                f"the body was not there after {self._body_s:g} s; nothing was done, send it again",
            ) from None

    def close(self) -> None:
        """Releases the bytes counted for the body."""
        self._bodies.give(self._held_bytes, self._stranger)
        self._held_bytes = 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = str(self.state["request_id"])
            headers["Cache-Control"] = "no-store"
            # If the API is stopping, the client must connect elsewhere. After a timeout, the rest of the body is never
            # read.
            if self._lifecycle.stopping or self._broken_off:
                headers["Connection"] = "close"
        await self._send(message)

    async def fail(self, code: Code, detail: str) -> None:
        # The body may be unread, so the connection cannot carry another request.
        response = ProblemResponse(
            code, detail, request_id=str(self.state["request_id"]), headers={"Connection": "close"}
        )
        await response(self.scope, self._receive, self.send)

    def summary(self) -> Exchange:
        return Exchange(
            route=route_of(self.scope),
            method=method_of(self.scope),
            status=self.status or CLIENT_CLOSED,
            code=str(self.state.get("problem_code", "")),
            seconds=time.monotonic() - self._begun_s,
            asked=int(self.state.get("asked", 1)),
        )

    def log(self, done: Exchange) -> None:
        """Logs the request: its undecoded path, so that no client can forge a line, but no query and no headers."""
        client = self.scope.get("client")
        source = client[0] if client else "-"
        raw_path: bytes = self.scope.get("raw_path") or self.scope["path"].encode("unicode_escape")
        path = raw_path.decode("ascii", "backslashreplace")
        duration_ms = round(done.seconds * 1000)
        fields = {
            "method": self.scope["method"],
            "path": path,
            "route": done.route,
            "status": done.status,
            "code": done.code,
            "duration_ms": duration_ms,
            "source": source,
        }
        access.info(
            "%s %s %s %d %d ms caller=%s request=%s",
            source,
            self.scope["method"],
            path,
            done.status,
            duration_ms,
            self.state.get("caller", "-"),
            self.state["request_id"],
            extra={FIELDS: fields},
        )
