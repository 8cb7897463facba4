# SPDX-License-Identifier: Apache-2.0
"""Waiting for changes of hosts' desired states, for any number of hosts at once.

Waiters hold no thread. While there are waiters, one task queries the generations of all hosts in one transaction in one
thread, and then sleeps. The longer the query took, the longer the task sleeps, up to a maximum. It sees the changes of
all replicas of the API. `stop` ends all waits, so that a stopping server does not wait for them.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from starlette.concurrency import run_in_threadpool

PERIOD_S = 0.5
REST = 4
"""The task sleeps this many times as long as the database took to answer, up to `REST_MAX_S`."""
REST_MAX_S = 2.0
"""The maximum of that sleep. Otherwise one slow query, for example while a thousand hosts connect, would delay all
hosts.
"""

NO_EPOCH = UUID(int=0)
RUNNING = (NO_EPOCH, 0)
"""The value of a running operation, for clients that wait for its end."""

Generations = tuple[UUID, Mapping[UUID, int]]


@dataclass(frozen=True, eq=False)
class _Waiter:
    host_id: UUID
    seen: tuple[UUID, int]
    done: asyncio.Future[bool]


def rest_s(period_s: float, took_s: float) -> float:
    """Returns how long to sleep after a query that took `took_s`."""
    return max(period_s, min(REST * took_s, REST_MAX_S))


class DesiredWatch:
    """Belongs to the event loop of one server. `ask` returns the epoch and every host's generation; it may block.

    Clients wait in the same way for the ends of operations: a running operation has the value `RUNNING`, others are
    absent.
    """

    def __init__(self, ask: Callable[[], Generations], *, period_s: float = PERIOD_S) -> None:
        self._ask = ask
        self._period_s = period_s
        self._waiters: set[_Waiter] = set()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def changed(self, host_id: UUID, seen: tuple[UUID, int], wait_s: float) -> bool:
        """Returns True as soon as the host's (epoch, generation) differs from `seen` or the host is gone.

        Returns False after `wait_s`. Raises what `ask` raised.
        """
        if self._stopped or wait_s <= 0:
            return False
        waiter = _Waiter(host_id, seen, asyncio.get_running_loop().create_future())
        self._waiters.add(waiter)
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            return await asyncio.wait_for(waiter.done, wait_s)
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self._waiters)

    def stop(self) -> None:
        """Ends all waits, now and later. Must be called in the event loop."""
        self._stopped = True
        for waiter in self._waiters:
            if not waiter.done.done():
                waiter.done.set_result(False)

    async def _look(self) -> None:
        try:
            while self._waiters:
                begun_s = time.monotonic()
                try:
                    epoch, generations = await run_in_threadpool(self._ask)
                except Exception as error:  # every waiter gets the exception, and the task continues
                    self._fail(error)
                else:
                    self._tell(epoch, generations)
                await asyncio.sleep(rest_s(self._period_s, time.monotonic() - begun_s))
        finally:
            self._task = None

    def _tell(self, epoch: UUID, generations: Mapping[UUID, int]) -> None:
        for waiter in self._waiters:
            if not waiter.done.done() and (epoch, generations.get(waiter.host_id)) != waiter.seen:
                waiter.done.set_result(True)

    def _fail(self, error: Exception) -> None:
        for waiter in self._waiters:
            if not waiter.done.done():
                waiter.done.set_exception(error)
