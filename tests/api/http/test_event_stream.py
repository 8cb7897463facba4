# SPDX-License-Identifier: Apache-2.0
"""The event stream and the feed behind it, without a database or a socket: an in-memory log replaces them."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import pytest
from vgpumgr_api.actors import Actor, local_operator
from vgpumgr_api.edge.event_stream import CHUNK_BYTES, EventStream, parse_position
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import outbox
from vgpumgr_api.events.events import Begun, epoch_name
from vgpumgr_api.events.feed import Feed, Watcher
from vgpumgr_api.events.outbox import News, Told, Wanted

from vgpumgr.wire.problem import Code, Problem
from vgpumgr.wire.resources import TokenRole

EPOCH, NEXT_EPOCH = UUID(int=1 << 100), UUID(int=2 << 100)
BLUE, RED = UUID(int=10), UUID(int=11)
NOW = datetime(2026, 11, 22, tzinfo=UTC)
SOON_S = 20
T = TypeVar("T")


def run(work: Coroutine[None, None, T]) -> T:
    """Runs the coroutine; fails if it does not end at once."""
    return asyncio.run(asyncio.wait_for(work, SOON_S))


class Log:
    """The log in memory, in place of the database."""

    def __init__(self, count: int = 0, *, size: int = 2) -> None:
        self.epoch = EPOCH
        self.events: list[Told] = []
        self.revoked: set[UUID] = set()
        self.looks: list[int] = []
        self.lost = False
        self.add(count, size=size)

    def add(self, count: int, *, tenant: UUID = BLUE, size: int = 2) -> None:
        first = len(self.events) + 1
        self.events += [Told(seq, "slice", tenant, None, b"x" * size) for seq in range(first, first + count)]

    def look(self, after: int | None, limit: int, credentials: Collection[UUID]) -> News:
        self.looks.append(threading.get_ident())
        if self.lost:
            raise Refusal(Code.DATABASE_BUSY, "gone")
        events = list(self.events)
        last = len(events)
        begin = max(last - limit, 0) if after is None else after
        found = events[begin : begin + limit]
        return News(epoch=self.epoch, last=last, events=found, alive=frozenset(credentials) - self.revoked)

    def read(self, after: int) -> tuple[Sequence[Told], int]:
        found = self.events[after : after + 1000]
        return found, after + len(found)


class Client:
    """The client's end of a stream. `pause`: awaited before each piece is received."""

    def __init__(self, pause: Callable[[], Awaitable[object]] | None = None) -> None:
        self.sent: list[bytes] = []
        self.ended = False
        self.left = asyncio.Event()
        self._pause = pause

    async def send(self, message: Any) -> None:
        if self._pause is not None and message["type"] == "http.response.body":
            await self._pause()
        self.sent.append(message.get("body", b""))
        self.ended = message["type"] == "http.response.body" and not message["more_body"]

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def text(self) -> str:
        return b"".join(self.sent).decode()

    @property
    def seen(self) -> list[int]:
        """Returns the numbers of the received events in the order of arrival."""
        blocks = [block.splitlines() for block in self.text.split("\n\n")]
        return [
            int(lines[0].rpartition("-")[2]) for lines in blocks if len(lines) == 2 and lines[1].startswith("data: x")
        ]

    @property
    def problem(self) -> Problem:
        block = self.text.split("\n\n")[-2]
        assert block.startswith("event: problem\ndata: ")
        return Problem.model_validate_json(block.partition("data: ")[2])

    async def until(self, count: int) -> None:
        while len(self.seen) < count:
            await asyncio.sleep(0.01)


def actor(**members: Any) -> Actor:
    return Actor(token_id=UUID(int=1), role=TokenRole.TENANT, name="tenant:blue", **members)


def stream(feed: Feed, log: Log, position: int, **options: Any) -> EventStream:
    who = options.pop("actor", None) or actor()
    wanted = options.pop("wanted", Wanted(owner=None))
    told = {"catch_up": log.read, "clock": lambda: NOW, "request_id": "r"} | options
    return EventStream(feed, Begun(wanted, position, EPOCH), who, **told)


@pytest.mark.parametrize(("owner", "told"), [(BLUE, b"theirs"), (None, b"x")])
def test_tenants_get_what_is_for_tenants(owner: UUID | None, told: bytes) -> None:
    """This holds for missed events and for new ones; an event for everybody is sent unchanged."""

    def event(seq: int, to_tenants: bytes) -> Told:
        return Told(seq, "slice", BLUE, None, b"x", to_tenants)

    async def work() -> bytes:
        log = Log()
        log.events = [event(1, b"theirs"), event(2, b"")]
        feed, client = Feed(log.look, period_s=0.01), Client()
        watching = asyncio.create_task(
            stream(feed, log, 0, wanted=Wanted(owner=owner))({}, client.receive, client.send)
        )
        while b"-2\n" not in b"".join(client.sent):
            await asyncio.sleep(0.01)
        log.events += [event(3, b"theirs")]
        while b"-3\n" not in b"".join(client.sent):
            await asyncio.sleep(0.01)
        client.left.set()
        await asyncio.wait_for(watching, 5)
        return b"".join(client.sent)

    lines = [line for line in asyncio.run(work()).splitlines() if line.startswith(b"data: ")]
    assert lines == [b"data: " + each for each in (told, b"x", told)]


def test_what_was_missed_comes_first_and_then_what_happens() -> None:
    async def work() -> list[int]:
        log = Log(3)
        feed, client = Feed(log.look, period_s=0.01), Client()
        watching = asyncio.create_task(stream(feed, log, 1)({}, client.receive, client.send))
        await client.until(2)
        log.add(2)
        await client.until(4)
        assert len(feed) == 1
        client.left.set()
        await watching
        assert len(feed) == 0
        return client.seen

    assert run(work()) == [2, 3, 4, 5]


def test_a_watcher_far_behind_reads_the_database_and_then_the_feed() -> None:
    async def work() -> tuple[list[int], list[int]]:
        log = Log(5000)
        feed, client = Feed(log.look, period_s=0.01, kept=1500), Client()
        read: list[int] = []

        def catch_up(after: int) -> tuple[Sequence[Told], int]:
            read.append(after)
            return log.read(after)

        watching = asyncio.create_task(stream(feed, log, 7, catch_up=catch_up)({}, client.receive, client.send))
        await client.until(4993)
        log.add(3000)
        await client.until(7993)
        client.left.set()
        await watching
        return client.seen, read

    seen, read = run(work())
    assert seen == list(range(8, 8001))
    assert read[:5] == [7, 1007, 2007, 3007, 4007][: len(read)]
    assert len(read) >= 4


def test_a_thousand_watchers_ask_as_one() -> None:
    async def work() -> int:
        log = Log(10)
        feed = Feed(log.look, period_s=0.05)
        clients = [Client() for _ in range(1000)]
        tasks = [asyncio.create_task(stream(feed, log, 10)({}, each.receive, each.send)) for each in clients]
        await asyncio.sleep(0.1)
        log.add(3)
        for each in clients:
            await each.until(3)
        looks = len(log.looks)
        feed.stop()
        await asyncio.gather(*tasks)
        assert all(each.seen == [11, 12, 13] and each.ended for each in clients)
        return looks

    assert run(work()) < 200


def test_only_what_is_wanted_is_sent_and_the_position_moves_on_all_the_same() -> None:
    async def work() -> Client:
        log = Log(1)
        log.add(4, tenant=RED)
        feed, client = Feed(log.look, period_s=0.01), Client()
        shown = stream(feed, log, 0, wanted=Wanted(owner=BLUE), heartbeat_s=0.05)
        watching = asyncio.create_task(shown({}, client.receive, client.send))
        while f"id: {epoch_name(EPOCH)}-5\n\n" not in client.text:
            await asyncio.sleep(0.01)
        client.left.set()
        await watching
        return client

    client = run(work())
    assert client.seen == [1]
    assert ": alive\n" in client.text


def test_a_reader_that_takes_nothing_holds_up_nobody_and_its_stream_ends_when_it_is_cut_off() -> None:
    async def work() -> tuple[Client, Client]:
        log = Log(0)
        cut = asyncio.Event()
        feed, stuck, quick = Feed(log.look, period_s=0.01), Client(cut.wait), Client()
        held = asyncio.create_task(stream(feed, log, 0)({}, stuck.receive, stuck.send))
        going = asyncio.create_task(stream(feed, log, 0)({}, quick.receive, quick.send))
        log.add(500)
        await quick.until(500)
        assert stuck.sent == [b""]
        stuck.left.set()
        cut.set()  # like in a server: data for a closed connection is discarded at once
        await held
        quick.left.set()
        await going
        return stuck, quick

    stuck, quick = run(work())
    assert len(stuck.sent) == 2
    assert quick.seen == list(range(1, 501))


def test_a_reader_that_takes_nothing_holds_one_piece_of_what_was_read_for_it() -> None:
    log, taken = Log(500, size=1000), []

    async def take_one() -> None:
        taken.append("a piece")
        if len(taken) > 1:
            await asyncio.Event().wait()

    def catch_up(after: int) -> tuple[Sequence[Told], int]:
        return [replace(each) for each in log.events[after:]], len(log.events)

    async def work() -> int:
        feed, stuck = Feed(log.look, period_s=0.01, kept=10), Client(take_one)
        held = asyncio.create_task(stream(feed, log, 0, catch_up=catch_up)({}, stuck.receive, stuck.send))
        while len(taken) < 2:
            await asyncio.sleep(0.01)
        gc.collect()
        there = sum(isinstance(each, Told) for each in gc.get_objects())
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        return there - len(log.events)

    assert run(work()) <= 2 * CHUNK_BYTES / 1000


def test_a_slow_reader_gets_everything_in_pieces_that_are_bounded() -> None:
    async def work() -> Client:
        log = Log(200, size=10_000)
        feed, client = Feed(log.look, period_s=0.01), Client(lambda: asyncio.sleep(0.005))
        watching = asyncio.create_task(stream(feed, log, 0)({}, client.receive, client.send))
        await client.until(200)
        client.left.set()
        await watching
        return client

    client = run(work())
    assert client.seen == list(range(1, 201))
    assert max(len(piece) for piece in client.sent) < CHUNK_BYTES + 11_000


@pytest.mark.parametrize("kept", [10, 1000])
def test_the_feed_keeps_no_more_than_it_may(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgpumgr_api.events.feed.KEPT_BYTES", 500)

    async def work() -> int:
        log = Log(50, size=20)
        feed, client = Feed(log.look, period_s=0.01, kept=kept), Client()
        watching = asyncio.create_task(stream(feed, log, 0)({}, client.receive, client.send))
        await client.until(50)
        log.add(100, size=20)
        await client.until(150)
        client.left.set()
        await watching
        held = [position for position in range(151) if feed.after(position) is not None]
        assert held == list(range(held[0], 151))
        return 150 - held[0]

    assert run(work()) == min(kept, 25)


@pytest.mark.parametrize("how", ["revoked", "expired", "restored", "cut off"])
def test_the_stream_says_why_it_ends(how: str) -> None:
    clock = NOW

    async def work() -> Client:
        nonlocal clock
        log = Log(1)
        feed, client = Feed(log.look, period_s=0.01), Client()
        options: dict[str, Any] = {"actor": actor(expires_at=NOW + timedelta(seconds=60)), "heartbeat_s": 0.05}
        if how == "cut off":

            def gone(_: int) -> tuple[Sequence[Told], int]:
                raise outbox.expired("cut off")

            feed = Feed(log.look, period_s=0.01, kept=0)
            options["catch_up"] = gone
        watching = asyncio.create_task(
            stream(feed, log, 0, clock=lambda: clock, **options)({}, client.receive, client.send)
        )
        if how != "cut off":
            await client.until(1)
        log.add(1, tenant=RED)
        if how == "revoked":
            log.revoked.add(UUID(int=1))
        clock = NOW + timedelta(seconds=60 if how == "expired" else 59)
        log.epoch = NEXT_EPOCH if how == "restored" else EPOCH
        await watching
        assert client.ended
        return client

    codes = {
        "revoked": Code.AUTH_INVALID,
        "expired": Code.AUTH_EXPIRED,
        "restored": Code.WATCH_EXPIRED,
        "cut off": Code.WATCH_EXPIRED,
    }
    assert run(work()).problem.code == codes[how]


def test_who_has_seen_what_the_database_lost_is_told_to_begin_anew() -> None:
    """A standby without the newest events was promoted, and its epoch is the same."""

    async def work() -> tuple[Client, list[int]]:
        log = Log(10)
        feed, before, after = Feed(log.look, period_s=0.01), Client(), Client()
        watching = asyncio.create_task(stream(feed, log, 0)({}, before.receive, before.send))
        await before.until(10)
        del log.events[6:]
        await watching
        watching = asyncio.create_task(stream(feed, log, 6)({}, after.receive, after.send))
        log.add(9)
        await after.until(9)
        after.left.set()
        await watching
        return before, after.seen

    before, seen = run(work())
    assert before.problem.code == Code.WATCH_EXPIRED
    assert before.seen == list(range(1, 11))
    assert seen == list(range(7, 16))


@pytest.mark.parametrize("first", [True, False])
def test_a_watcher_of_the_epoch_before_ends_though_it_came_after_the_feed_knew(first: bool) -> None:
    """Meanwhile the watcher gets no events of the other epoch."""

    async def work() -> Client:
        log = Log(5)
        log.epoch = NEXT_EPOCH
        feed, client = Feed(log.look, period_s=0.01), Client()
        with contextlib.ExitStack() as others:
            if not first:
                others.enter_context(feed.watching(Watcher(actor(), NEXT_EPOCH)))
                while feed.epoch is None:
                    await asyncio.sleep(0.01)
            await stream(feed, log, 2)({}, client.receive, client.send)
        return client

    client = run(work())
    assert client.problem.code == Code.WATCH_EXPIRED
    assert client.seen == []


def test_a_watcher_of_the_next_epoch_waits_for_the_feed_to_get_there() -> None:
    async def work() -> list[int]:
        log, going_on = Log(5), threading.Event()

        def look(*asked: Any) -> News:
            going_on.wait()
            return log.look(*asked)

        feed, client = Feed(look, period_s=0.01), Client()
        going_on.set()
        with feed.watching(Watcher(actor(), EPOCH)):
            while feed.epoch is None:
                await asyncio.sleep(0.01)
            going_on.clear()
            begun = Begun(Wanted(owner=None), 2, NEXT_EPOCH)
            late = EventStream(feed, begun, actor(), catch_up=log.read, clock=lambda: NOW, request_id="r")
            watching = asyncio.create_task(late({}, client.receive, client.send))
            await asyncio.sleep(0.1)
            assert not client.seen
            log.epoch = NEXT_EPOCH
            going_on.set()
            await client.until(3)
            client.left.set()
            await watching
        return client.seen

    assert run(work()) == [3, 4, 5]


def test_nothing_that_happened_after_a_revocation_is_told() -> None:
    """One read of the log returns both."""

    async def work() -> list[int]:
        log = Log(1)
        feed, client = Feed(log.look, period_s=0.01), Client()
        watching = asyncio.create_task(stream(feed, log, 0)({}, client.receive, client.send))
        await client.until(1)
        log.revoked.add(UUID(int=1))
        log.add(5)
        await watching
        return client.seen

    assert run(work()) == [1]


def test_a_lost_database_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> list[int]:
        log = Log(1)
        feed, client = Feed(log.look, period_s=0.01), Client()
        watching = asyncio.create_task(stream(feed, log, 0)({}, client.receive, client.send))
        await client.until(1)
        log.lost = True
        while not caplog.records:
            await asyncio.sleep(0.01)
        looks = len(log.looks)
        while len(log.looks) < looks + 3:  # logged only once
            await asyncio.sleep(0.01)
        log.add(2)
        log.lost = False
        await client.until(3)
        client.left.set()
        await watching
        return client.seen

    assert run(work()) == [1, 2, 3]
    assert [record.message for record in caplog.records] == ["watchers wait: gone"]


def test_there_is_room_for_so_many() -> None:
    async def work() -> None:
        log = Log()
        feed, client = Feed(log.look, period_s=0.01, watchers_max=1), Client()
        watching = asyncio.create_task(stream(feed, log, 0)({}, client.receive, client.send))
        await asyncio.sleep(0.05)
        with pytest.raises(Refusal) as caught:
            await stream(feed, log, 0)({}, client.receive, client.send)
        assert caught.value.code is Code.RATE_EXCEEDED
        assert caught.value.retry_after_s
        client.left.set()
        await watching

    run(work())


def test_a_tenant_takes_no_more_than_its_share_and_who_runs_the_cloud_finds_room() -> None:
    def of(tenant: int, account: int | None = None) -> Watcher:
        own = UUID(int=account) if account else None
        actor = Actor(token_id=None, role=TokenRole.TENANT, name="t", tenant_id=UUID(int=tenant), account_id=own)
        return Watcher(actor, EPOCH)

    async def work() -> None:
        feed = Feed(Log().look, watchers_max=250)
        with contextlib.ExitStack() as watching:

            def add(watcher: Watcher, times: int) -> None:
                for _ in range(times):
                    watching.enter_context(feed.watching(Watcher(watcher.actor, EPOCH)))

            add(of(1), 60)
            add(of(2, account=1), 40)
            for one in (of(1), of(3, account=1)):
                with pytest.raises(Refusal) as caught:
                    add(one, 1)
                assert (caught.value.code, caught.value.retry_after_s) == (Code.RATE_EXCEEDED, 10)
            add(of(4), 100)
            add(of(5), 25)
            with pytest.raises(Refusal):
                add(of(6), 1)
            operator = Watcher(local_operator("test"), EPOCH)
            add(operator, 25)
            with pytest.raises(Refusal):
                add(operator, 1)
        with contextlib.ExitStack() as watching:
            for _ in range(100):
                watching.enter_context(feed.watching(of(1)))
        feed.stop()

    run(work())


def test_a_position_is_what_was_sent() -> None:
    assert parse_position(f"{epoch_name(EPOCH)}-17") == (epoch_name(EPOCH), 17)
    assert parse_position("17") == ("", 17)
    for text in ("x", "-1", "17-", "00000000000g-1", "1" * 19, "01", "a-1", "17\n"):
        with pytest.raises(Refusal) as caught:
            parse_position(text)
        assert caught.value.code is Code.FIELD_INVALID
