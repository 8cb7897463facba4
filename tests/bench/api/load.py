# SPDX-License-Identifier: Apache-2.0
"""Clients with little overhead: each has one connection and sends its next request after the last answer."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from urllib.parse import urlsplit

ANSWER_S = 120
"""How long a client waits for one answer."""

Address = tuple[str, int]


def address_of(url: str) -> Address:
    """The address of a server."""
    where = urlsplit(url)
    if where.hostname is None or where.port is None:
        raise ValueError(url)
    return where.hostname, where.port


@dataclass(frozen=True)
class Answer:
    """`body`: the complete body."""

    status: int
    body: bytes


class Connection:
    """One HTTP/1.1 keep-alive connection, for answers with a Content-Length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def opened(address: Address, tls: ssl.SSLContext | None = None) -> "Connection":
        name = "localhost" if tls else None
        return Connection(*await asyncio.open_connection(*address, ssl=tls, server_hostname=name))

    async def ask(self, message: bytes) -> Answer:
        """Sends `message` unchanged and returns the answer."""
        self._writer.write(message)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        _, _, length = head.partition(b"content-length:")
        body = await self._reader.readexactly(int(length.partition(b"\r\n")[0] or 0))
        return Answer(int(head[9:12]), body)

    def send(self, message: bytes) -> asyncio.StreamReader:
        """Sends a request with an endless answer; returns the reader of the answer."""
        self._writer.write(message)
        return self._reader

    def close(self) -> None:
        self._writer.close()


def message(method: str, path: str, token: str, body: bytes = b"", **headers: str) -> bytes:
    """Returns the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += [f"Content-Length: {len(body)}"]
        lines += [] if "Content_Type" in headers else ["Content-Type: application/json"]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass
class Tally:
    """The result of a run of `seconds`; times of single requests in ms."""

    seconds: float
    took_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    refusals: Counter[bytes] = field(default_factory=Counter)

    def note(self, answer: Answer, began_s: float) -> None:
        self.took_ms.append((time.perf_counter() - began_s) * 1000)
        self.statuses[answer.status] += 1
        if answer.status >= 400:
            self.refusals[answer.body[:300]] += 1

    @property
    def done(self) -> int:
        return sum(count for status, count in self.statuses.items() if status < 400)

    @property
    def per_s(self) -> float:
        return self.done / self.seconds

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.took_ms)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


def closed_loop(
    addresses: Sequence[Address],
    clients: int,
    seconds: float,
    make: Callable[[int], bytes],
    *,
    most: int | None = None,
    tls: ssl.SSLContext | None = None,
    anew: bool = False,
) -> Tally:
    """Runs `clients` in parallel, spread over `addresses`; `make(client)` returns its next request. Ends after `most`
    requests, if that is earlier. `anew`: each request opens a new connection, and the time for that counts.

    Requests that were sent in time are awaited and count, and so does the duration of the last one.
    """
    turns = count() if most is None else iter(range(most))
    return asyncio.run(_closed_loop(addresses, clients, seconds, make, turns, tls, anew=anew))


def ask_once(address: Address, asked: bytes) -> Answer:
    """Sends one request on a new connection."""

    async def ask() -> Answer:
        connection = await Connection.opened(address)
        try:
            return await connection.ask(asked)
        finally:
            connection.close()

    return asyncio.run(asyncio.wait_for(ask(), ANSWER_S))


async def _closed_loop(
    addresses: Sequence[Address],
    clients: int,
    seconds: float,
    make: Callable[[int], bytes],
    turns: Iterator[int],
    tls: ssl.SSLContext | None,
    *,
    anew: bool,
) -> Tally:
    tally = Tally(seconds)

    def opened(number: int) -> Awaitable[Connection]:
        return Connection.opened(addresses[number % len(addresses)], tls)

    connections = [] if anew else [await opened(one) for one in range(clients)]
    begun_s = time.perf_counter()

    async def client(number: int) -> None:
        while (sent_s := time.perf_counter()) < begun_s + seconds and next(turns, None) is not None:
            async with asyncio.timeout(ANSWER_S):
                connection = await opened(number) if anew else connections[number]
                tally.note(await connection.ask(make(number)), sent_s)
            if anew:
                connection.close()

    try:
        await asyncio.gather(*(client(number) for number in range(clients)))
    finally:
        tally.seconds = time.perf_counter() - begun_s
        for connection in connections:
            connection.close()
    return tally
