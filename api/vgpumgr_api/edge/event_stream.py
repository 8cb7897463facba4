# SPDX-License-Identifier: Apache-2.0
"""Events as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

Each event's `id` is its position, which the client sends back as Last-Event-ID when it reconnects. A heartbeat is a
comment with a position and no data: it dispatches no event, and moves the client's position past events that it does
not get. The API ends a stream with an event of the type ``problem``.

A client that does not read occupies at most one chunk here: no chunk is made before the client has taken the previous
one. The server cuts the connection of a client that does not take a chunk in time
(`vgpumgr_api.edge.transport.protocol`).
"""

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vgpumgr_api.actors import Actor
from vgpumgr_api.edge.headers import field_refusal
from vgpumgr_api.edge.problems import problem_text
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events.events import Begun, epoch_name
from vgpumgr_api.events.feed import Feed, Watcher
from vgpumgr_api.events.outbox import Told

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_S = 15.0
CHUNK_BYTES = 64 << 10
CATCH_UP = 250
"""How many events are read at once for one watcher: about as many as fit in a chunk."""

RETRY_MS = 1000
"""How long clients are asked to wait before they reconnect."""

POSITION = r"(?:([0-9a-f]{12})-)?(0|[1-9][0-9]{0,17})"
"""The format of Last-Event-ID."""

CatchUp = Callable[[int], tuple[Sequence[Told], int]]
"""Reads the events after a position, and returns them with the number up to which they are complete. Blocks; raises
Refusal.
"""

Turn = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for a turn to work for this watcher. Raises Refusal."""


def parse_position(text: str) -> tuple[str, int]:
    """Returns (epoch or "", number) of a Last-Event-ID."""
    match = re.fullmatch(POSITION, text)
    if match is None:
        raise field_refusal("header.last-event-id", "not an id of this stream; send the last one as it came")
    return match[1] or "", int(match[2])


class EventStream(Response):
    """Streams events until the client disconnects, its token ends, the server stops, or needed events were trimmed."""

    media_type = MEDIA_TYPE

    def __init__(
        self,
        feed: Feed,
        begun: Begun,
        actor: Actor,
        *,
        catch_up: CatchUp,
        turn: Turn = nullcontext,
        clock: Callable[[], datetime],
        request_id: str,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """`turn` surrounds each call of `catch_up`. `clock`: the time, to notice that the actor's token has expired."""
        super().__init__(headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._watcher = Watcher(actor, begun.epoch)
        self._wanted = begun.wanted
        self._position = begun.position
        self._epoch = epoch_name(begun.epoch)
        self._catch_up = catch_up
        self._turn = turn
        self._clock = clock
        self._request_id = request_id
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        with self._feed.watching(self._watcher):
            gone = asyncio.create_task(_gone(receive))
            try:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await self._tell(send, gone)
            finally:
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)

    async def _tell(self, send: Send, gone: "asyncio.Task[None]") -> None:
        """Sends events until the stream ends or the client has gone."""
        await self._say(send, f"retry: {RETRY_MS}\n{self._heartbeat()}")
        beat_s = time.monotonic() + self._heartbeat_s
        while not gone.done():
            self._watcher.check(self._clock())
            if self._watcher.why is not None or self._feed.stopped:
                await self._end(send)
                return
            look = self._feed.look()
            events = self._news()
            if events is None and self._feed.head is not None:
                if not await self._read(send):
                    return
            elif events:
                await self._pass_on(send, events)
            else:
                await asyncio.wait({gone, look}, timeout=self._patience_s(beat_s), return_when=asyncio.FIRST_COMPLETED)
            if time.monotonic() >= beat_s:
                await self._say(send, self._heartbeat())
                beat_s = time.monotonic() + self._heartbeat_s

    def _news(self) -> Sequence[Told] | None:
        """Like `Feed.after`, but empty while the feed has another epoch; the feed's next look shows which one ended."""
        return self._feed.after(self._position) if self._feed.epoch == self._watcher.epoch else ()

    def _patience_s(self, beat_s: float) -> float:
        """Returns the time until the next heartbeat or the end of the token, whichever comes first."""
        wait_s = max(beat_s - time.monotonic(), 0.0)
        ends = self._watcher.actor.expires_at
        return wait_s if ends is None else max(min(wait_s, (ends - self._clock()).total_seconds()), 0.01)

    async def _read(self, send: Send) -> bool:
        """Sends events from the database that are no longer in memory. Returns False if that ended the stream."""
        try:
            async with self._turn():
                events, complete_to = await run_in_threadpool(self._catch_up, self._position)
        except Refusal as refusal:
            self._watcher.why = refusal
            await self._end(send)
            return False
        first = _within_a_chunk(events)
        if len(first) < len(events):
            complete_to = first[-1].seq
        del events  # otherwise each stream to a slow client would keep all of them in memory
        await self._pass_on(send, first)
        self._position = complete_to
        return True

    async def _pass_on(self, send: Send, events: Sequence[Told]) -> None:
        """Sends events in pieces of limited size. The position moves after a piece was taken."""
        piece: list[bytes] = []
        size = 0
        for event in events:
            if self._wanted.matches(event):
                data = self._wanted.data_of(event)
                piece.append(b"id: %s-%d\ndata: %s\n\n" % (self._epoch.encode(), event.seq, data))
                size += len(data)
            if size >= CHUNK_BYTES:
                await self._say(send, b"".join(piece))
                piece, size = [], 0
        if piece:
            await self._say(send, b"".join(piece))
        if events:
            self._position = events[-1].seq

    async def _end(self, send: Send) -> None:
        last = f"retry: {RETRY_MS}\n\n"
        if (why := self._watcher.why) is not None:
            last = f"event: problem\ndata: {problem_text(why, self._request_id)}\n\n"
        await self._say(send, last, more=False)

    async def _say(self, send: Send, body: str | bytes, *, more: bool = True) -> None:
        message = {"type": "http.response.body", "body": body.encode() if isinstance(body, str) else body}
        await send(message | {"more_body": more})

    def _heartbeat(self) -> str:
        return f": alive\nid: {self._epoch}-{self._position}\n\n"


def _within_a_chunk(events: Sequence[Told]) -> Sequence[Told]:
    """Returns the first events, up to the size of a chunk."""
    size = 0
    for count, event in enumerate(events, 1):
        size += event.size
        if size >= CHUNK_BYTES:
            return events[:count]
    return events


async def _gone(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
