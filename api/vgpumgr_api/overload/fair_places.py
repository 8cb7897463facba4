# SPDX-License-Identifier: Apache-2.0
"""Places for requests, given to the client that has used the least of them so far.

Start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996) over clients. A client is charged the time for which its
requests had places: an estimate when a request gets a place, and the difference from the actual time when the request
ends. A client that was idle starts at the current virtual time, so that it has neither credit nor debt.

The order alone is not enough: the threads of a process share one interpreter, so all running requests compete with each
other. Therefore the concurrent requests of one client may together be expected to take at most `WORK_S` of processor
time. A request that is expected to take more runs only while no other of its client does.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

WORK_S = 0.064
"""Processor time that running requests of one client are expected to take together."""

FIRST_S = 0.004
"""The estimated time in a place, and processor time, of a kind of request that has not occurred yet."""

WEIGHT = 0.5
"""The weight of the newest request in an estimate."""

CLIENTS_MAX = 10_000
"""Above this number, and above twice the number of active clients, idle clients without debt are forgotten."""


@dataclass
class Spent:
    """Processor time that threads took for one request. The threads add to it."""

    processor_s: float = 0.0


@dataclass(frozen=True)
class _Cost:
    place_s: float = FIRST_S
    processor_us: int = round(FIRST_S * 1e6)

    def towards(self, other: "_Cost") -> "_Cost":
        return _Cost(
            self.place_s + WEIGHT * (other.place_s - self.place_s),
            round(self.processor_us + WEIGHT * (other.processor_us - self.processor_us)),
        )


@dataclass(eq=False)
class _Waiter:
    """A waiting request. `expected`: its estimated cost, set when it gets its place."""

    client: "_Client"
    kind: str
    number: int
    given: asyncio.Future[None]
    expected: _Cost = _Cost()


@dataclass(eq=False)
class _Client:
    """A client. `finish_s`: the virtual time up to which it has used its share."""

    finish_s: float
    costs: dict[str, _Cost] = field(default_factory=dict)
    waiting: deque[_Waiter] = field(default_factory=deque)
    running: int = 0
    work_us: int = 0


class FairPlaces:
    """Belongs to one event loop. `clock` counts seconds from any start."""

    def __init__(self, places: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = places
        self._clock = clock
        self._virtual_s = 0.0
        self._last_finish_s = 0.0
        self._number = 0
        self._clients: dict[Hashable, _Client] = {}
        self._backlogged: dict[_Client, None] = {}
        self._costs: dict[str, _Cost] = {}
        self._forget_at = CLIENTS_MAX
        self.working = 0
        self.waiting = 0

    def __len__(self) -> int:
        """The number of clients remembered."""
        return len(self._clients)

    @asynccontextmanager
    async def place(self, client: Hashable, kind: str, *, wait_s: float) -> AsyncIterator[Spent]:
        """The context of the work. `kind`: requests of one kind are expected to cost a client about the same.

        Raises TimeoutError if no place was free within `wait_s`.
        """
        self._number += 1
        waiter = _Waiter(self._known(client), kind, self._number, asyncio.get_running_loop().create_future())
        await self._enter(waiter, wait_s)
        began_s, spent = self._clock(), Spent()
        try:
            yield spent
        finally:
            self._leave(waiter, _Cost(self._clock() - began_s, round(spent.processor_s * 1e6)))

    async def _enter(self, waiter: _Waiter, wait_s: float) -> None:
        waiter.client.waiting.append(waiter)
        self._backlogged[waiter.client] = None
        self.waiting += 1
        self._give()
        if waiter.given.done():
            return
        try:
            async with asyncio.timeout(wait_s):
                await waiter.given
        except BaseException:
            if waiter in waiter.client.waiting:
                self._unqueue(waiter)
            elif not waiter.given.cancelled():  # it got a place at the moment when it stopped waiting
                waiter.client.finish_s -= waiter.expected.place_s
                self._free_place(waiter)
            self._give()
            raise

    def _give(self) -> None:
        while self._free:
            ready = [each for each in self._backlogged if self._may_run(each)]
            if not ready:
                return
            # Among clients with the same start, the client whose request came first is chosen.
            client = min(ready, key=lambda each: (self._start_s(each), each.waiting[0].number))
            waiter = client.waiting[0]
            self._unqueue(waiter)
            if not waiter.given.cancelled():
                self._give_to(waiter)

    def _give_to(self, waiter: _Waiter) -> None:
        client = waiter.client
        waiter.expected = self._expected(client, waiter.kind)
        self._virtual_s = self._start_s(client)
        client.finish_s = self._virtual_s + waiter.expected.place_s
        client.running += 1
        client.work_us += waiter.expected.processor_us
        self._free -= 1
        self.working += 1
        waiter.given.set_result(None)

    def _expected(self, client: _Client, kind: str) -> _Cost:
        return client.costs.get(kind) or self._costs.get(kind) or _Cost()

    def _may_run(self, client: _Client) -> bool:
        work_us = client.work_us + self._expected(client, client.waiting[0].kind).processor_us
        return client.running == 0 or work_us <= WORK_S * 1e6

    def _start_s(self, client: _Client) -> float:
        return max(self._virtual_s, client.finish_s)

    def _unqueue(self, waiter: _Waiter) -> None:
        waiter.client.waiting.remove(waiter)
        self.waiting -= 1
        if not waiter.client.waiting:
            del self._backlogged[waiter.client]

    def _leave(self, waiter: _Waiter, cost: _Cost) -> None:
        client, kind = waiter.client, waiter.kind
        client.finish_s += cost.place_s - waiter.expected.place_s
        self._last_finish_s = max(self._last_finish_s, client.finish_s)
        for costs in (client.costs, self._costs):
            costs[kind] = costs[kind].towards(cost) if kind in costs else cost
        self._free_place(waiter)
        self._give()
        if self.working == 0:
            self._virtual_s = max(self._virtual_s, self._last_finish_s)

    def _free_place(self, waiter: _Waiter) -> None:
        client = waiter.client
        self._free += 1
        self.working -= 1
        client.running -= 1
        client.work_us -= waiter.expected.processor_us

    def _known(self, client: Hashable) -> _Client:
        known = self._clients.get(client)
        if known is None:
            if len(self._clients) >= self._forget_at:
                self._forget()
            known = self._clients[client] = _Client(self._virtual_s)
        return known

    def _forget(self) -> None:
        self._clients = {
            name: each
            for name, each in self._clients.items()
            if each.running or each.waiting or each.finish_s > self._virtual_s
        }
        # Otherwise, while all clients are active, every new client would cause another pass over all of them.
        self._forget_at = max(CLIENTS_MAX, 2 * len(self._clients))
