# SPDX-License-Identifier: Apache-2.0
"""Waiting for a host's desired state to change, for any number of hosts at once.

Waiters hold no thread. While there are any, one task asks the database for the generations of all of them, in one
transaction in one thread, and then sleeps; the longer the question took, the longer it sleeps. It sees changes made
by every replica of the API. `stop` lets all waiters go, so that a stopping server does not sit out their time.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from vgpumgr_api.errors import Refusal

PERIOD_S = 0.5
SHARE_OF_TIME = 4
"""The database is asked during at most a fourth of the time."""

Generation = tuple[UUID, int]
Question = Callable[[Session], Generation]
Answers = list[Generation | Exception]


@dataclass(frozen=True, eq=False)
class _Waiter:
    question: Question
    seen: Generation
    done: asyncio.Future[bool]


class DesiredWatch:
    """Belongs to the event loop of one server. `run`: Database.run for reading."""

    def __init__(self, run: Callable[[Callable[[Session], Answers]], Answers], *, period_s: float = PERIOD_S) -> None:
        self._run = run
        self._period_s = period_s
        self._waiters: set[_Waiter] = set()
        self._asker: asyncio.Task[None] | None = None
        self._stopped = False

    async def changed(self, question: Question, seen: Generation, wait_s: float) -> bool:
        """True as soon as `question` has another answer than `seen`, False after `wait_s` or `stop`.

        Raises what the question raised.
        """
        if self._stopped or wait_s <= 0:
            return False
        waiter = _Waiter(question, seen, asyncio.get_running_loop().create_future())
        self._waiters.add(waiter)
        if self._asker is None:
            self._asker = asyncio.create_task(self._ask())
        try:
            return await asyncio.wait_for(waiter.done, wait_s)
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)

    def stop(self) -> None:
        """From now on nobody waits. To be called in the event loop."""
        self._stopped = True
        for waiter in self._waiters:
            if not waiter.done.done():
                waiter.done.set_result(False)

    async def _ask(self) -> None:
        try:
            while self._waiters:
                begun_s = time.monotonic()
                waiters = list(self._waiters)
                self._tell(waiters, await self._answers(waiters))
                await asyncio.sleep(max(self._period_s, SHARE_OF_TIME * (time.monotonic() - begun_s)))
        finally:
            self._asker = None

    async def _answers(self, waiters: Sequence[_Waiter]) -> Answers:
        def ask(session: Session) -> Answers:
            return [_asked(waiter.question, session) for waiter in waiters]

        try:
            return await run_in_threadpool(self._run, ask)
        except Exception as error:  # the database is gone: every waiter hears so, the task lives on
            return [error] * len(waiters)

    def _tell(self, waiters: Sequence[_Waiter], answers: Answers) -> None:
        for waiter, answer in zip(waiters, answers, strict=True):
            if waiter.done.done():
                continue
            if isinstance(answer, Exception):
                waiter.done.set_exception(answer)
            elif answer != waiter.seen:
                waiter.done.set_result(True)


def _asked(question: Question, session: Session) -> Generation | Exception:
    """A refusal is for one waiter; anything else ends the transaction, and Database.run knows what to do."""
    try:
        return question(session)
    except Refusal as refusal:
        return refusal
