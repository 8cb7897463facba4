# SPDX-License-Identifier: Apache-2.0
"""GET /metrics for Prometheus, on a separate listener, so that clients of the API need not reach it."""

import asyncio
import contextlib
import hmac
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from vgpumgr_api.edge.headers import authorization_token
from vgpumgr_api.edge.transport import protocol
from vgpumgr_api.edge.transport.listen import ListenError
from vgpumgr_api.observe.metrics import Metrics

AT_ONCE = 16
CONNECTIONS = 64
MEDIA_TYPE = "text/plain; version=1.0.0; charset=utf-8"


def read_token(path: Path | None) -> str | None:
    """Returns the token that scrapers must show. Raises ListenError for a file without a usable token."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ListenError(f"metrics_token_file {path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
        raise ListenError(f"metrics_token_file {path}: not one word of at least 16 characters")
    return token


def application(metrics: Metrics, token: str | None) -> Starlette:
    """Returns the application. `token`: the bearer token that a scraper must send; None: none is needed."""

    async def answer(request: Request) -> Response:
        shown = authorization_token(request.headers)
        if token is not None and not hmac.compare_digest(shown.encode(), token.encode()):
            return PlainTextResponse("not for you\n", 401, {"WWW-Authenticate": 'Bearer realm="vgpumgr metrics"'})
        return Response(await run_in_threadpool(metrics.text), media_type=MEDIA_TYPE)

    return Starlette(routes=[Route("/metrics", answer)])


class Server(protocol.Server):
    """A second server, which leaves signals to the main server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(server: Server | None, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """Serves metrics until the end of the block. Does nothing if `server` is None."""
    if server is None:
        yield
        return
    task = asyncio.create_task(server.serve(sockets))
    try:
        yield
    finally:
        server.should_exit = True
        await task
