# SPDX-License-Identifier: Apache-2.0
"""Batches hosts' heartbeats: those that arrive while a batch is written form the next batch.

So a replica writes as often as the database allows, and not once for each heartbeat.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from vgpumgr.wire.fleet import Heartbeat

AT_ONCE = 500


K = TypeVar("K", bound=Hashable)


class Heartbeats(Generic[K]):
    """Belongs to the event loop of one server. `note` writes heartbeats and returns the valid ones; it may block.

    `K`, the key of a heartbeat: the host that it is from, and the credential that it was sent with.
    """

    def __init__(self, note: Callable[[Mapping[K, Heartbeat]], set[K]]) -> None:
        self._note = note
        self._waiting: dict[K, tuple[Heartbeat, asyncio.Future[bool]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def say(self, key: K, beat: Heartbeat) -> bool:
        """Returns whether the heartbeat is valid, once it is written. Raises what `note` raised."""
        if key in self._waiting:  # of two heartbeats that a host sends at once, the later counts
            before, done = self._waiting[key]
            beat = max(before, beat, key=lambda one: (one.agent_epoch, one.seq))
        else:
            done = asyncio.get_running_loop().create_future()
        self._waiting[key] = (beat, done)
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        # Shielded, because several clients may wait for this future, and one that disconnects must not cancel it.
        return await asyncio.shield(done)

    async def _write(self) -> None:
        try:
            while self._waiting:
                lot = {key: self._waiting.pop(key) for key in list(self._waiting)[:AT_ONCE]}
                try:
                    hold = await run_in_threadpool(self._note, {key: beat for key, (beat, _) in lot.items()})
                except Exception as error:  # the whole batch gets the exception, and the task continues
                    for _, done in lot.values():
                        done.set_exception(error)
                else:
                    for key, (_, done) in lot.items():
                        done.set_result(key in hold)
        finally:
            self._task = None
