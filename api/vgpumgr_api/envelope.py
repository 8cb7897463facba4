# SPDX-License-Identifier: Apache-2.0
"""What surrounds every request, whatever answers it: request id, size limit, last resort, one line of log.

It lies outside of all handlers, so it sees requests that match no route and exceptions that nobody expected.
"""

import logging
import re
import time
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vgpumgr.wire.problem import Code
from vgpumgr_api.problems import ProblemResponse

BODY_MAX = 1 << 20
"""Bytes."""

REPORT_MAX = 8 << 20
"""Bytes of a host's report, which may name 10,000 slices."""

CLIENT_CLOSED = 499
"""Logged as the status of a request whose client went away."""

log = logging.getLogger("vgpumgr_api.envelope")
access = logging.getLogger("vgpumgr_api.access")

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REPORT = re.compile(r"/v1/hosts/[^/]+/report")


class Envelope:
    """ASGI middleware. Sets ``request.state.request_id``; the routes set ``request.state.caller`` for the log."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        wanted = headers.get("x-request-id", "")
        state = scope.setdefault("state", {})
        state["request_id"] = wanted if _SANE_ID.fullmatch(wanted) else uuid4().hex
        exchange = _Exchange(scope, receive, send)
        try:
            if _announced_bytes(headers) > exchange.body_max:
                await exchange.fail(Code.BODY_TOO_LARGE, f"the body is larger than {exchange.body_max >> 20} MiB")
            else:
                await self.app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = CLIENT_CLOSED
        except Exception:
            log.exception("request %s: unexpected", state["request_id"])
            if exchange.started:
                raise
            await exchange.fail(Code.INTERNAL, "a defect of the API; its log says more under this request_id")
        finally:
            exchange.log()


def _announced_bytes(headers: Headers) -> int:
    """0 if the client did not say, or not in digits; what it sends is counted all the same."""
    value = headers.get("content-length", "")
    return int(value) if re.fullmatch(r"[0-9]{1,20}", value) else 0


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = False
        self.status = 0
        self.body_max = REPORT_MAX if _REPORT.fullmatch(scope["path"]) else BODY_MAX
        self._scope = scope
        self._receive = receive
        self._send = send
        self._received_bytes = 0
        self._begun_s = time.monotonic()

    @property
    def _state(self) -> dict[str, object]:
        state: dict[str, object] = self._scope["state"]
        return state

    async def receive(self) -> Message:
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        if self._received_bytes > self.body_max:
            raise HTTPException(status_code=413)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-Id"] = str(self._state["request_id"])
            headers["Cache-Control"] = "no-store"
        await self._send(message)

    async def fail(self, code: Code, detail: str) -> None:
        # The body may not have been read: the connection cannot carry another request.
        response = ProblemResponse(
            code, detail, request_id=str(self._state["request_id"]), headers={"Connection": "close"}
        )
        await response(self._scope, self._receive, self.send)

    def log(self) -> None:
        """Path and no query, as it came, so that nobody can forge a line; never a header."""
        client = self._scope.get("client")
        raw_path: bytes = self._scope.get("raw_path") or self._scope["path"].encode("unicode_escape")
        access.info(
            "%s %s %s %d %d ms caller=%s request=%s",
            client[0] if client else "-",
            self._scope["method"],
            raw_path.decode("ascii", "backslashreplace"),
            self.status or CLIENT_CLOSED,
            round((time.monotonic() - self._begun_s) * 1000),
            self._state.get("caller", "-"),
            self._state["request_id"],
        )
