# SPDX-License-Identifier: Apache-2.0
"""Periodic jobs of the API. Every replica runs each job; a job whose work another replica has done finds nothing to do.

A job is a function that takes a session, runs in one transaction, and returns whether there is more to do. A failure is
logged, and the job runs again at its next turn.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from vgpumgr_api.db.database import Database
from vgpumgr_api.errors import Refusal

PAUSE_S = 0.05
"""The pause between two steps of a job that has more to do, so that requests can run in between."""

log = logging.getLogger("vgpumgr_api.background.housekeeping")


@dataclass(frozen=True)
class Job:
    """`work` returns True if there is more to do at once; otherwise it is called again after about `period_s`."""

    name: str
    period_s: float
    work: Callable[[Session], bool]


class Housekeeping:
    """Belongs to the event loop of one server."""

    def __init__(self, database: Database, jobs: Sequence[Job]) -> None:
        self._database = database
        self._jobs = tuple(jobs)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Starts the jobs. Their first turns are spread, so that replicas that start together do not work together."""
        self._tasks = [asyncio.create_task(self._keep(job)) for job in self._jobs]

    async def stop(self) -> None:
        """Returns when no job is in a transaction any more."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def _keep(self, job: Job) -> None:
        wait_s = random.uniform(0, job.period_s)
        while not self._stopping.is_set() and not await self._stopped_within(wait_s):
            more = False
            try:
                more = await run_in_threadpool(self._database.run, job.work, patient=True)
            except Refusal as refusal:
                log.warning("%s: %s", job.name, refusal.detail)
            except Exception:
                log.exception("%s: unexpected", job.name)
            wait_s = PAUSE_S if more else job.period_s * random.uniform(0.9, 1.1)

    async def _stopped_within(self, wait_s: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), wait_s)
        except TimeoutError:
            return False
        return True
