# SPDX-License-Identifier: Apache-2.0
"""Limits concurrent work, so that no client takes all threads and all database connections from the others.

A request waits here, without a thread or connection, until it gets one of its tenant's places and one of the shared
places. Agents have separate places, of which each host gets few. The remaining threads and connections are left to
authentication, health and the jobs of `housekeeping`. Each credential gets few of them for its authentication. A tenant
and its projects count as one, because they share a quota and its lock. Each replica counts separately.

Places that are not for agents go to the client that has used them least, see `fair_places`. For a tenant's places the
clients are its tokens; for the shared places they are the tenants, and tokens without a tenant.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from time import thread_time
from typing import ParamSpec, TypeVar
from uuid import UUID

from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenRole
from vgpumgr_api.actors import Actor
from vgpumgr_api.errors import Refusal
from vgpumgr_api.overload.fair_places import FairPlaces, Spent

SHARED = 16
AGENTS = 8
"""The number of places for agents, out of the database's `CONNECTIONS` and out of 40 threads."""

DOCUMENTS = 4
"""The agents' places for work after a wait. The agents' other places stay free for bindings and reports if all waits
end at once.
"""

HOST = 3
"""The number of places for one host, whose requests mostly wait for each other's locks. Any number of its VMs may start
at once, so further requests wait for a place.
"""

LOOKUPS = 4
"""The number of concurrent lookups of one credential, or of the credentials of one address that were not looked up
recently.
"""

WAITING = 3
"""How many requests of a tenant may wait, as a multiple of those that run."""

WAIT_S = 10.0

HELD_S = 1.0
"""The delay of a refusal for too many requests. Without it, a client that retries at once would keep the API busy with
refusals. A waiting connection costs almost nothing.
"""

NEWS = "news"
"""The kind of the work after a wait for news."""

K = TypeVar("K", bound=Hashable)
P = ParamSpec("P")
T = TypeVar("T")

_spent: ContextVar[tuple[Spent, ...]] = ContextVar("spent", default=())


def metered(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls `work` and charges this thread's processor time to the turn that `work` is part of."""
    began_s = thread_time()
    try:
        return work(*args, **kwargs)
    finally:
        for each in _spent.get():
            each.processor_s += thread_time() - began_s


class _Share:
    """The running and waiting requests of a host, or lookups of a credential."""

    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.count = 0


class _TenantShare:
    """The running and waiting requests of a tenant."""

    def __init__(self, places: int) -> None:
        self.places = FairPlaces(places)
        self.count = 0


S = TypeVar("S", _Share, _TenantShare)


class Turns:
    """Belongs to the event loop of one server. `tenant`: how many requests of one tenant run at once; 0: no limit.

    `token_waiting`: how many requests of one token may wait for a place; 0: no limit.
    """

    def __init__(self, *, tenant: int = 0, token_waiting: int = 0) -> None:
        self._tenant = tenant
        self._token_waiting = token_waiting
        self._waiting: Counter[Hashable] = Counter()
        self._tenants: dict[UUID, _TenantShare] = {}
        self._hosts: dict[UUID, _Share] = {}
        self._lookups: dict[str, _Share] = {}
        self._shared = FairPlaces(SHARED)
        self._agents = asyncio.Semaphore(AGENTS)
        self._documents = asyncio.Semaphore(DOCUMENTS)

    @property
    def working(self) -> int:
        """The number of requests with a place, without those of agents."""
        return self._shared.working

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a place, without those of agents."""
        return self._waiting.total()

    async def require_room(self, actor: Actor) -> None:
        """Raises Refusal(RATE_EXCEEDED), after `HELD_S`, if the token or tenant has too many requests under way."""
        try:
            self._require_room(actor)
        except Refusal:
            await asyncio.sleep(HELD_S)
            raise

    def _require_room(self, actor: Actor) -> None:
        if actor.role is TokenRole.HOST:
            return
        waiting = self._waiting[_token(actor)]
        if self._token_waiting and waiting >= self._token_waiting:
            raise _too_many(f"{waiting} requests of this token wait for their turn; wait until some have ended")
        share = self._tenants.get(_tenant(actor)) if self._tenant else None  # type: ignore[arg-type]  # None is no key
        if share is not None and share.count >= self._tenant * (1 + WAITING):
            raise _too_many(f"this tenant has {share.count} requests under way; wait until some have ended")

    @asynccontextmanager
    async def turn(self, actor: Actor, kind: str = NEWS, *, news: bool = False) -> AsyncIterator[None]:
        """The context of work that takes a thread and a connection. `kind`: the request's kind, to estimate its cost.

        `news`: for work after a wait for a change, which all hosts may do at once. Raises Refusal: RATE_EXCEEDED if the
        token or tenant has too many requests under way, DATABASE_BUSY if no place was free within `WAIT_S`.
        """
        if actor.role is TokenRole.HOST:
            async with self._turn_of_host(actor, news=news):
                yield
            return
        await self.require_room(actor)
        tenant = _tenant(actor)
        if tenant is None or self._tenant == 0:
            async with self._fair(self._shared, _token(actor) if tenant is None else tenant, actor, kind):
                yield
            return
        with _sharing(self._tenants, tenant, lambda: _TenantShare(self._tenant)) as share:
            async with (
                self._fair(share.places, _token(actor), actor, kind),
                self._fair(self._shared, tenant, actor, kind),
            ):
                yield

    @asynccontextmanager
    async def _fair(self, places: FairPlaces, client: Hashable, actor: Actor, kind: str) -> AsyncIterator[None]:
        token = _token(actor)
        self._waiting[token] += 1
        counted = True
        try:
            async with places.place(client, kind, wait_s=WAIT_S) as spent:
                self._no_longer_waits(token)
                counted = False
                before = _spent.get()
                _spent.set((*before, spent))
                try:
                    yield
                finally:
                    _spent.set(before)
        except TimeoutError:
            if not counted:  # raised by the work
                raise
            raise _busy() from None
        finally:
            if counted:
                self._no_longer_waits(token)

    def _no_longer_waits(self, token: Hashable) -> None:
        self._waiting[token] -= 1
        if self._waiting[token] == 0:
            del self._waiting[token]

    @asynccontextmanager
    async def _turn_of_host(self, actor: Actor, *, news: bool) -> AsyncIterator[None]:
        lane = self._lane(news=news)
        if actor.host_id is None:
            async with lane:
                yield
            return
        with _sharing(self._hosts, actor.host_id, lambda: _Share(HOST)) as share:
            async with _place(share.places), lane:
                yield

    @asynccontextmanager
    async def lookup(self, whose: str) -> AsyncIterator[None]:
        """The context of a credential's lookup. `whose`: the credential, or the address of an unknown client.

        Raises Refusal(DATABASE_BUSY) if no place was free within `WAIT_S`.
        """
        with _sharing(self._lookups, whose, lambda: _Share(LOOKUPS)) as share:
            async with _place(share.places):
                yield

    @asynccontextmanager
    async def _lane(self, *, news: bool) -> AsyncIterator[None]:
        if not news:
            async with _place(self._agents):
                yield
        else:
            async with _place(self._documents), _place(self._agents):
                yield


def _tenant(actor: Actor) -> UUID | None:
    return actor.account_id or actor.tenant_id


def _token(actor: Actor) -> Hashable:
    return actor.token_id or actor.scope or actor.name


def _too_many(why: str) -> Refusal:
    return Refusal(Code.RATE_EXCEEDED, why, retry_after_s=1)


def _busy() -> Refusal:
    return Refusal(Code.DATABASE_BUSY, "too many requests are under way, and nothing was done; try again in a moment")


@contextmanager
def _sharing(shares: dict[K, S], whose: K, make: Callable[[], S]) -> Iterator[S]:
    """Counts a request as a user of a share for the duration of the block."""
    share = shares.get(whose) or shares.setdefault(whose, make())
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
        raise _busy() from None
