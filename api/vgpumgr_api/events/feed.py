# SPDX-License-Identifier: Apache-2.0
"""The newest events in memory, for any number of watchers at once.

While there are watchers, one task reads the log, and checks in the same thread whether the watchers' credentials still
exist. Watchers are woken and take their events from memory, so a thousand watchers cost the database as much as one.
The memory is bounded and shared: a watcher that needs older events reads the database itself. The feed sees the events
of all replicas of the API. If the database is gone, the task keeps trying; meanwhile watchers get no events.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from uuid import UUID

from starlette.concurrency import run_in_threadpool

from vgpumgr.wire.problem import Code
from vgpumgr_api.actors import Actor, revoked
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import outbox
from vgpumgr_api.events.outbox import News, Told
from vgpumgr_api.events.watch import rest_s

PERIOD_S = 0.25

KEPT, KEPT_BYTES = 10_000, 16 << 20
LOOK = 1000
"""The maximum number of events that one look returns."""

WATCHERS_MAX = 5000
SHARE_MAX = 100
"""The maximum number of watchers of one tenant and its projects."""

RESERVED = 10
"""One in so many of the permitted watchers is reserved for actors that see the whole cloud."""

RESTORED = "the database was restored"
LOST = "the database has lost the newest events"

log = logging.getLogger("vgpumgr_api.events.feed")

Ask = Callable[[int | None, int, Collection[UUID]], News]
"""Returns the new events after a number, at most so many, and which of these credentials still exist. May block."""


class Watcher:
    """A watcher. `epoch`: the epoch in which it began. `why`: the refusal that ends it; None while it may continue."""

    def __init__(self, actor: Actor, epoch: UUID) -> None:
        self.actor = actor
        self.epoch = epoch
        self.why: Refusal | None = None

    def check(self, moment: datetime) -> None:
        """Ends the watch if its token has expired."""
        ends = self.actor.expires_at
        if ends is not None and ends <= moment:
            self.why = self.why or Refusal(Code.AUTH_EXPIRED, "this token has expired; ask for a new one")


class Feed:
    """Belongs to the event loop of one server. ``len()`` is the number of watchers."""

    def __init__(
        self, ask: Ask, *, period_s: float = PERIOD_S, watchers_max: int = WATCHERS_MAX, kept: int = KEPT
    ) -> None:
        self._ask = ask
        self._period_s = period_s
        self._watchers_max = watchers_max
        self._shares: Counter[UUID] = Counter()
        self._kept = kept
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._woken: asyncio.Future[None] | None = None
        self._forget()
        self.stopped = False

    def __len__(self) -> int:
        return len(self._watchers)

    @contextmanager
    def watching(self, watcher: Watcher) -> Iterator[None]:
        """Registers a watcher for the duration of the block. Raises Refusal(RATE_EXCEEDED) if there are too many."""
        share = self._share(watcher.actor)
        self._watchers.add(watcher)
        if share is not None:
            self._shares[share] += 1
        if self._task is None and not self.stopped:
            self._forget()
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._watchers.discard(watcher)
            if share is not None:
                self._shares -= Counter([share])

    def _share(self, actor: Actor) -> UUID | None:
        """Returns the owner whose watchers are counted; None for an actor that sees all. Raises Refusal if full."""
        share = None if actor.sees_the_cloud else actor.account_id or actor.tenant_id
        room = self._watchers_max - (0 if actor.sees_the_cloud else self._watchers_max // RESERVED)
        if len(self._watchers) >= room:
            raise _full(f"this replica has {len(self._watchers)} watchers already; try another replica, or later")
        if share is not None and self._shares[share] >= SHARE_MAX:
            raise _full(f"this tenant has {SHARE_MAX} watchers at this replica already; end one of them")
        return share

    def after(self, position: int) -> Sequence[Told] | None:
        """Returns at most `LOOK` events after a position; None if some of the events after it are not in memory."""
        if self.head is None or position < self._floor:
            return None
        begin = position - self._floor
        return self._events[begin : begin + LOOK]

    def look(self) -> "asyncio.Future[None]":
        """Returns a future that is done at the next change. It must be awaited with a timeout and never cancelled."""
        if self._woken is None:
            self._woken = asyncio.get_running_loop().create_future()
        return self._woken

    def stop(self) -> None:
        """Ends all watchers. Must be called in the event loop."""
        self.stopped = True
        self._wake()

    def _forget(self) -> None:
        """Empties the memory. `_events` are numbered without gaps from `_floor` + 1 to `head`."""
        self.head: int | None = None
        self.epoch: UUID | None = None
        self._floor = 0
        self._events: list[Told] = []
        self._bytes = 0

    async def _look(self) -> None:
        lost = False
        try:
            while self._watchers and not self.stopped:
                begun_s = time.monotonic()
                full = False
                try:
                    watchers = frozenset(self._watchers)
                    asked = _credentials(watchers)
                    full = self._take(await run_in_threadpool(self._ask, self.head, LOOK, asked), watchers)
                except Refusal as refusal:  # the database is busy or gone
                    if not lost:
                        log.warning("watchers wait: %s", refusal.detail)
                    lost = True
                except Exception:
                    log.exception("watchers wait")
                else:
                    lost = False
                if not full:
                    await asyncio.sleep(rest_s(self._period_s, time.monotonic() - begun_s))
        finally:
            self._task = None

    def _take(self, news: News, watchers: Collection[Watcher]) -> bool:
        """Stores new events and wakes watchers. Returns True if there were more than fitted.

        `watchers`: those that existed before the look. The epoch of each is compared, because a watcher may have begun
        after a change of the epoch that the feed has not noticed before.
        """
        self._end({each for each in watchers if each.epoch != news.epoch}, outbox.expired(RESTORED))
        if self.epoch not in (None, news.epoch):
            self._forget()
            return True
        if self.head is not None and news.last < self.head:
            # A standby that lacked the newest events took over. It assigns numbers that watchers have already seen.
            self._end(self._watchers, outbox.expired(LOST))
            self._forget()
            return True
        self.epoch = news.epoch
        gone = _credentials(watchers) - news.alive
        self._end({each for each in self._watchers if each.actor.token_id in gone}, revoked())
        before = self.head
        for event in news.events:
            if self.head is None or event.seq != self.head + 1:
                # This is the first event, or the log was trimmed before it was read.
                self._events, self._bytes, self._floor = [], 0, event.seq - 1
            self._events.append(event)
            self._bytes += event.size
            self.head = event.seq
        if self.head is None:
            self.head = self._floor = news.last
        self._shorten()
        if self.head != before:
            self._wake()
        return self.head < news.last

    def _shorten(self) -> None:
        surplus = max(len(self._events) - self._kept, 0)
        size = self._bytes - sum(each.size for each in islice(self._events, surplus))
        while size > KEPT_BYTES:
            size -= self._events[surplus].size
            surplus += 1
        if surplus:
            del self._events[:surplus]
            self._bytes, self._floor = size, self._floor + surplus

    def _end(self, watchers: Collection[Watcher], why: Refusal) -> None:
        for watcher in watchers:
            watcher.why = watcher.why or why
        if watchers:
            self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
        self._woken = None


def _credentials(watchers: Iterable[Watcher]) -> set[UUID]:
    return {each.actor.token_id for each in watchers if each.actor.token_id}


def _full(why: str) -> Refusal:
    return Refusal(Code.RATE_EXCEEDED, why, retry_after_s=10)
