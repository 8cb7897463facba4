# SPDX-License-Identifier: Apache-2.0
"""The server's sockets and HTTP protocol around any application, in the test's event loop."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp
from vgpumgr_api.edge.transport.protocol import Bounds, Server
from vgpumgr_api.observe.exchange import Exchange
from vgpumgr_api.overload.connection_settings import ConnectionSettings
from vgpumgr_api.overload.connections import Connections, Listener

SOON_S = 60
T = TypeVar("T")


def run(work: Coroutine[None, None, T]) -> T:
    """Runs the coroutine; fails if it does not end soon."""
    return asyncio.run(asyncio.wait_for(work, SOON_S))


@dataclass
class Listening:
    """`noted`: the answers that the protocol gave without the application."""

    address: tuple[str, int]
    connections: Connections
    noted: list[Exchange]

    async def open(self, *said: bytes, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> "Talk":
        """Connects from a loopback address and sends these pieces."""
        reader, writer = await asyncio.open_connection(*self.address, local_addr=(source, 0), ssl=tls)
        for part in said:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        return Talk(reader, writer)

    async def empty(self) -> None:
        """Returns once there are no connections."""
        while len(self.connections):
            await asyncio.sleep(0.01)


@dataclass
class Talk:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def heard(self) -> bytes:
        """Returns everything up to the end of the connection."""
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := await self.reader.read(1000):
                got += piece
        self.writer.close()
        return got


def problem(answer: bytes) -> tuple[int, str, dict[str, str]]:
    """Returns status, code and headers of a problem answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert headers["content-type"] == "application/problem+json", answer
    said = json.loads(body)
    assert said["status"] == int(first.split()[1])
    return said["status"], said["code"], headers


@contextlib.asynccontextmanager
async def listening(app: ASGIApp, *, tls: ssl.SSLContext | None = None, **settings: Any) -> AsyncIterator[Listening]:
    """`settings`: settings of `[connections]`; fractions of seconds are allowed here."""
    chosen = ConnectionSettings.model_construct(**(ConnectionSettings().model_dump() | settings))
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        timeout_keep_alive=chosen.idle_s,
        ssl_context_factory=None if tls is None else lambda *_: tls,
    )
    config.load()
    connections = Connections(total=chosen.total, per_address=chosen.per_address)
    noted: list[Exchange] = []
    server = Server(config, Bounds(settings=chosen, connections=connections, answered=noted.append))
    with Listener(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        address = listener.getsockname()
        await server.startup([listener])
        try:
            yield Listening(address, connections, noted)
        finally:
            for each in server.servers:
                each.close()
