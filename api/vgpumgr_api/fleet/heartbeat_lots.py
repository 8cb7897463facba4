# SPDX-License-Identifier: Apache-2.0
"""Hosts' signs of life, gathered: while some are being written those that come meanwhile make up the next lot.

So a replica writes to the database as often as that can, and not once for each host.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from vgpumgr.wire.fleet import Heartbeat

AT_ONCE = 500


K = TypeVar("K", bound=Hashable)


class Heartbeats(Generic[K]):
    """Belongs to the event loop of one server. `note`: writes them, returns which hold; may block.

    A key says of which host a heartbeat is, and with which credential it came.
    """

    def __init__(self, note: Callable[[Mapping[K, Heartbeat]], set[K]]) -> None:
        self._note = note
        self._waiting: dict[K, tuple[Heartbeat, asyncio.Future[bool]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def say(self, key: K, beat: Heartbeat) -> bool:
        """Returns whether it holds, once it is written. Raises what `note` raised."""
        if key in self._waiting:  # of two that a host sends at once the later counts
            before, done = self._waiting[key]
            beat = max(before, beat, key=lambda one: (one.agent_epoch, one.seq))
        else:
            done = asyncio.get_running_loop().create_future()
        self._waiting[key] = (beat, done)
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        # Shielded: a client that goes away takes nothing from another that waits for the same.
        return await asyncio.shield(done)

    async def _write(self) -> None:
        try:
            while self._waiting:
                lot = {key: self._waiting.pop(key) for key in list(self._waiting)[:AT_ONCE]}
                try:
                    hold = await run_in_threadpool(self._note, {key: beat for key, (beat, _) in lot.items()})
                except Exception as error:  # all of the lot hear of it, and the task lives on
                    for _, done in lot.values():
                        done.set_exception(error)
                else:
                    for key, (_, done) in lot.items():
                        done.set_result(key in hold)
        finally:
            self._task = None
