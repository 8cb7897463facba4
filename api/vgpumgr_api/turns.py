# SPDX-License-Identifier: Apache-2.0
"""Who may be worked at now, so that nobody takes all threads and all connections of the database from the others.

A request waits here, where it costs neither, until there is a place: one of its tenant's, and one of those for whom it
is. Agents have places of their own, of which one host gets few, and nobody's request takes what is left for
authentication, of which one credential gets few as well, health and the jobs of `housekeeping`. A tenant and its
projects, who share a quota and so its lock, count as one. Each replica counts for itself.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar
from uuid import UUID

from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenRole
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services.actors import Actor

SHARED = 16
AGENTS = 8
"""Of the database's `CONNECTIONS`, and of 40 threads."""

DOCUMENTS = 4
"""Of those of agents, for what they waited for: there are others for binding and for reports when all come at once."""

HOST = 3
"""Of one host's, which mostly wait for each other. The others wait: of its VMs ever so many may start at once."""

LOOKUPS = 4
"""Of one credential; or of those of one address that were not looked up lately."""

WAITING = 3
"""So many times as many of a tenant's as are worked at may wait for their turn."""

WAIT_S = 10.0

K = TypeVar("K", bound=Hashable)


class _Share:
    """What a tenant, a host, or a credential has under way."""

    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.count = 0


class Turns:
    """Belongs to the event loop of one server. `tenant`: how many of one tenant's are worked at; 0: no limit for it."""

    def __init__(self, *, tenant: int = 0) -> None:
        self._tenant = tenant
        self._shares: dict[UUID, _Share] = {}
        self._lookups: dict[str, _Share] = {}
        self._shared = asyncio.Semaphore(SHARED)
        self._agents = asyncio.Semaphore(AGENTS)
        self._documents = asyncio.Semaphore(DOCUMENTS)

    @asynccontextmanager
    async def turn(self, actor: Actor, *, news: bool = False) -> AsyncIterator[None]:
        """Around what takes a thread and a connection for `actor`. `news`: for something that it has waited for,
        as all hosts may at once.

        Raises Refusal: RATE_EXCEEDED if its tenant has too many under way, DATABASE_BUSY if no place came in `WAIT_S`.
        """
        of_host = actor.role is TokenRole.HOST
        lane = self._lane(of_host=of_host, news=news)
        whose = actor.host_id if of_host else actor.account_id or actor.tenant_id
        places = HOST if of_host else self._tenant
        if whose is None or places == 0:
            async with lane:
                yield
            return
        with _sharing(self._shares, whose, places) as share:
            if not of_host and share.count > places * (1 + WAITING):
                raise Refusal(
                    Code.RATE_EXCEEDED,
                    f"this tenant has {share.count - 1} requests under way; let some end before the next",
                    retry_after_s=1,
                )
            async with _place(share.places), lane:
                yield

    @asynccontextmanager
    async def lookup(self, whose: str) -> AsyncIterator[None]:
        """Around what takes a thread and a connection to find out who asks. `whose`: a credential, or an address.

        Raises Refusal(DATABASE_BUSY) if no place came in `WAIT_S`.
        """
        with _sharing(self._lookups, whose, LOOKUPS) as share:
            async with _place(share.places):
                yield

    @asynccontextmanager
    async def _lane(self, *, of_host: bool, news: bool) -> AsyncIterator[None]:
        if not of_host:
            async with _place(self._shared):
                yield
        elif not news:
            async with _place(self._agents):
                yield
        else:
            async with _place(self._documents), _place(self._agents):
                yield


@contextmanager
def _sharing(shares: dict[K, _Share], whose: K, places: int) -> Iterator[_Share]:
    """Counts one in."""
    share = shares.setdefault(whose, _Share(places))
    share.count += 1
    try:
        yield share
    finally:
        share.count -= 1
        if share.count == 0:
            del shares[whose]


@asynccontextmanager
async def _place(places: asyncio.Semaphore) -> AsyncIterator[None]:
    if places.locked():
        await _wait_for(places)
    else:
        await places.acquire()
    try:
        yield
    finally:
        places.release()


async def _wait_for(places: asyncio.Semaphore) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            await places.acquire()
    except TimeoutError:
        raise Refusal(
            Code.DATABASE_BUSY, "too many requests are under way, and nothing was done; try again in a moment"
        ) from None
