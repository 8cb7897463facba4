# SPDX-License-Identifier: Apache-2.0
"""Many clients watch events while tenants claim: the time until the last watcher has a claim's event, and whether each
watcher gets every event once and in order.
"""

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from tests.bench.api.fleet import PROFILE, Fleet
from tests.bench.api.load import ANSWER_S, Address, Connection, Tally, message
from tests.bench.api.sizes import Bench
from tests.bench.sched.result import target

CLAIMS_PER_S = 10
ROUNDS = 3
"""The run is this many times longer than others, because few claims a second say little about the slowest."""

ID = re.compile(rb"^id: [0-9a-f]{12}-(\d+)$", re.M)
EVENT = re.compile(rb"^id: [0-9a-f]{12}-(\d+)\ndata: (.*)$", re.M)


@dataclass
class Heard:
    """What all watchers received. `numbers`: event numbers by object. `last_s`: when the last watcher received each
    event.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)


@dataclass
class Watcher:
    """`position`: its newest event. `again`: the number of events that it already had or that came out of order."""

    position: int
    lost: int = 0
    again: int = 0

    def take(self, number: int) -> None:
        """Takes an event. Numbers have no gaps for a watcher of the whole cloud."""
        if number <= self.position:
            self.again += 1
            return
        self.lost += number - self.position - 1
        self.position = number


def measure(bench: Bench) -> dict[str, Any]:
    """All watchers use an operator's token, through all replicas in turn, so no limit of a tenant or address
    applies.
    """
    return asyncio.run(_measured(bench))


async def _measured(bench: Bench) -> dict[str, Any]:
    heard, watchers = Heard(), list[Watcher]()
    addresses, begun_s = bench.addresses, time.perf_counter()
    connections = [
        await Connection.opened(addresses[number % len(addresses)]) for number in range(bench.sizes.watchers)
    ]
    tasks: list[asyncio.Task[None]] = []
    try:
        async with asyncio.timeout(ANSWER_S):
            streams = [_stream(connection, bench.whole.operator) for connection in connections]
            for stream, begins in zip(streams, await asyncio.gather(*map(anext, streams)), strict=True):
                watchers.append(Watcher(position=int(ID.findall(begins)[0])))
                tasks.append(asyncio.create_task(_watch(stream, watchers[-1], heard)))
        opened_s = time.perf_counter() - begun_s
        answered_s, rate = await _claims(bench.whole, addresses, ROUNDS * bench.sizes.seconds)
        # A watcher without the event by then will never get it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                while not answered_s.keys() <= heard.numbers.keys() or _behind(watchers, heard):
                    await asyncio.sleep(0.05)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in connections:
            connection.close()
    unheard = len(answered_s.keys() - heard.numbers.keys()) * len(watchers)
    lost = unheard + sum(each.lost for each in watchers) + _behind(watchers, heard)
    again = sum(each.again for each in watchers)
    took = Tally(ROUNDS * bench.sizes.seconds)
    took.took_ms = [
        max(heard.last_s[heard.numbers[claim]] - when, 0) * 1000
        for claim, when in answered_s.items()
        if claim in heard.numbers
    ]
    row = {
        "claims": len(answered_s),
        "claims/s": round(rate, 1),
        "p50 ms": round(took.quantile_ms(0.5), 1),
        "p99 ms": round(took.quantile_ms(0.99), 1),
        "max ms": round(took.quantile_ms(1), 1),
        "lost": lost,
        "again or out of order": again,
        "all watching after s": round(opened_s, 2),
    }
    name = f"{len(watchers)} watchers"
    return {
        "figures": {"from a claim's answer until the last watcher has its event": {name: row}},
        "targets": [
            target(
                f"events that {name} did not get, or not once and in order", "0", lost + again, met=lost + again == 0
            )
        ],
    }


async def _stream(connection: Connection, token: str) -> AsyncIterator[bytes]:
    """Yields new events in the pieces that the API sent; the first piece states the position."""
    reader = connection.send(message("GET", "/v1/events/watch", token))
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 ") or b"transfer-encoding: chunked" not in head.lower():
        raise RuntimeError(f"no stream: {head!r}")
    while size := int(await reader.readline(), 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def _watch(stream: AsyncIterator[bytes], watcher: Watcher, heard: Heard) -> None:
    async for piece in stream:
        now_s = time.perf_counter()
        for number, data in EVENT.findall(piece):
            watcher.take(int(number))
            if int(number) not in heard.last_s:
                heard.numbers[json.loads(data)["object"]] = int(number)
            heard.last_s[int(number)] = now_s


def _behind(watchers: Sequence[Watcher], heard: Heard) -> int:
    """Returns how many events some watchers have and others do not have yet."""
    newest = max(heard.last_s, default=0)
    return sum(max(newest - each.position, 0) for each in watchers)


async def _claims(whole: Fleet, addresses: Sequence[Address], seconds: float) -> tuple[dict[str, float], float]:
    """Returns the time of each claim's answer, by slice, and the rate of claims per second."""
    answered_s: dict[str, float] = {}
    tenants = cycle(whole.tenants.items())
    begun_s = time.perf_counter()

    async def claim(address: Address, first: int) -> None:
        connection = await Connection.opened(address)
        for number in range(first, int(seconds * CLAIMS_PER_S), len(addresses)):
            await asyncio.sleep(max(begun_s + number / CLAIMS_PER_S - time.perf_counter(), 0))
            tenant, token = next(tenants)
            body = {"tenant": tenant, "profile": PROFILE, "vm_uuid": str(uuid.uuid4())}
            answer = await connection.ask(message("POST", "/v1/slices", token, json.dumps(body).encode()))
            if answer.status != 201:
                raise RuntimeError(f"a claim was refused: {answer.body!r}")
            answered_s[json.loads(answer.body)["id"]] = time.perf_counter()
        connection.close()

    await asyncio.gather(*(claim(address, first) for first, address in enumerate(addresses)))
    return answered_s, len(answered_s) / (time.perf_counter() - begun_s)
