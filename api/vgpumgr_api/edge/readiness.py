# SPDX-License-Identifier: Apache-2.0
"""Whether the database can be used, for any number of unauthenticated clients.

One check answers all requests that arrive during it and within a second of its beginning. So these requests cost one
thread and one transaction a second, however many there are. A database that does not answer within `PATIENCE_S` counts
as busy until it answers; meanwhile no further check begins.
"""

import asyncio
import time
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal

FRESH_S = 1.0
PATIENCE_S = 10.0


class Readiness:
    """Belongs to the event loop of one server. `clock` counts seconds from any start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._look: asyncio.Task[None] | None = None
        self._begun_s = 0.0

    async def require(self, check: Callable[[], None]) -> None:
        """Raises what the last `check` raised. Runs it first if that was more than `FRESH_S` ago. `check` may block.

        Raises Refusal(DATABASE_BUSY) if `check` takes longer than `PATIENCE_S`.
        """
        look = self._look
        if look is None or (look.done() and self._left_s(FRESH_S) == 0):
            look = self._begin(check)
        if not look.done():
            await asyncio.wait({look}, timeout=self._left_s(PATIENCE_S))
        if not look.done():
            raise Refusal(
                Code.DATABASE_BUSY, f"the database has not answered within {PATIENCE_S:g} s; try again in a moment"
            )
        look.result()

    def _begin(self, check: Callable[[], None]) -> "asyncio.Task[None]":
        self._begun_s = self._clock()
        self._look = asyncio.create_task(run_in_threadpool(check))
        self._look.add_done_callback(_take_note)
        return self._look

    def _left_s(self, lasts_s: float) -> float:
        return max(self._begun_s + lasts_s - self._clock(), 0)


def _take_note(look: "asyncio.Task[None]") -> None:
    """Retrieves the exception of a check that no request waits for any more; otherwise asyncio would log it."""
    if not look.cancelled():
        look.exception()
