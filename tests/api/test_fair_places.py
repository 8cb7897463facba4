# SPDX-License-Identifier: Apache-2.0
"""A free place goes to the client with the least use; tested in order and in virtual time, never in real time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from vgpumgr_api.overload import fair_places
from vgpumgr_api.overload.fair_places import FIRST_S, WORK_S, FairPlaces

FOR_EVER_S = 3600.0
LIST, CLAIM = "GET /v1/slices", "POST /v1/slices"


class Office:
    """Requests that end when the test says so, after as much virtual time as it says."""

    def __init__(self, places: int) -> None:
        self.now_s = 0.0
        self.places = FairPlaces(places, clock=lambda: self.now_s)
        self.begun: list[str] = []
        self._ends: dict[str, tuple[asyncio.Event, list[float]]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def ask(self, name: str, kind: str = LIST, *, wait_s: float = FOR_EVER_S) -> None:
        """`name`: the client, and a number that identifies the request."""
        self._ends[name] = (asyncio.Event(), [])
        self._tasks[name] = asyncio.create_task(self._work(name, kind, wait_s))
        await settled()

    async def _work(self, name: str, kind: str, wait_s: float) -> None:
        end, used = self._ends[name]
        async with self.places.place(name[0], kind, wait_s=wait_s) as spent:
            self.begun.append(name)
            await end.wait()
            spent.processor_s += used[0]

    async def end(self, name: str, after_s: float, *, processor_s: float = 0.0) -> None:
        assert name in self.begun
        self.now_s += after_s
        end, used = self._ends[name]
        used.append(processor_s)
        end.set()
        await self._tasks[name]
        await settled()

    async def give_up(self, name: str) -> None:
        self._tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._tasks[name]
        await settled()

    async def outcome(self, name: str) -> None:
        await self._tasks[name]


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_the_newcomer_goes_before_all_that_a_greedy_client_has_queued() -> None:
    async def test() -> None:
        office = Office(1)
        for number in range(20):
            await office.ask(f"g{number}")
        await office.ask("b0")
        await office.end("g0", 1.0)
        assert office.begun == ["g0", "b0"]
        await office.end("b0", 0.1)
        assert office.begun == ["g0", "b0", "g1"]

    run(test)


def test_clients_get_equal_time_not_equally_many_requests() -> None:
    async def test() -> None:
        office = Office(1)
        for number in range(30):
            await office.ask(f"g{number}", LIST)
            await office.ask(f"b{number}", CLAIM)
        for _ in range(22):
            name = office.begun[-1]
            await office.end(name, 1.0 if name[0] == "g" else 0.1)
        # each client uses at most 4 s: g 1 s per request, b a tenth of that
        assert [name[0] for name in office.begun].count("b") >= 9 * [name[0] for name in office.begun[2:]].count("g")

    run(test)


def test_a_client_that_was_idle_has_saved_nothing_up() -> None:
    async def test() -> None:
        office = Office(1)
        await office.ask("b0")
        await office.end("b0", 0.001)
        for number in range(3):
            await office.ask(f"g{number}")
        for number in range(2):
            await office.end(f"g{number}", 100.0)
        for number in range(1, 6):
            await office.ask(f"b{number}")
        await office.ask("g3")
        served = []
        for _ in range(4):
            await office.end(office.begun[-1], 50.0)
            served.append(office.begun[-1][0])
        assert served.count("g") >= 1  # b does not get everything first because g had 200 s alone

    run(test)


def test_a_client_that_used_all_alone_owes_nothing_afterwards() -> None:
    async def test() -> None:
        office = Office(1)
        await office.ask("g0")
        await office.end("g0", 1000.0)
        for name in ("b0", "g1", "b1", "g2"):
            await office.ask(name)
        for name in ("b0", "g1", "b1"):
            await office.end(name, 1.0)
        assert office.begun == ["g0", "b0", "g1", "b1", "g2"]

    run(test)


def test_costly_requests_of_one_client_run_one_at_a_time_and_cheap_ones_together() -> None:
    async def test() -> None:
        office = Office(8)
        await office.ask("g0", LIST)
        await office.end("g0", 0.1, processor_s=WORK_S)
        await office.ask("g1", CLAIM)
        await office.end("g1", 0.1, processor_s=WORK_S / 4)
        office.begun.clear()
        for number in range(2, 6):
            await office.ask(f"g{number}", LIST)
        await office.ask("b0", CLAIM)
        assert office.begun == ["g2", "b0"]
        await office.end("g2", 0.1, processor_s=WORK_S)
        assert office.begun == ["g2", "b0", "g3"]
        for number in range(1, 8):
            await office.ask(f"c{number}", CLAIM)
        assert [name for name in office.begun if name[0] == "c"] == ["c1", "c2", "c3", "c4"]

    run(test)


def test_what_waits_is_judged_by_what_was_learned_meanwhile() -> None:
    async def test() -> None:
        office = Office(2)
        for number in range(5):
            await office.ask(f"g{number}", LIST)
        assert office.begun == ["g0", "g1"]
        await office.end("g0", 0.1, processor_s=2 * WORK_S)
        assert office.begun == ["g0", "g1"]
        await office.end("g1", 0.1, processor_s=2 * WORK_S)
        assert office.begun == ["g0", "g1", "g2"]

    run(test)


def test_requests_that_nobody_has_made_yet_fill_all_places_of_the_api() -> None:
    assert WORK_S >= 16 * FIRST_S


def test_a_request_that_waits_too_long_ends_and_leaves_its_place_to_others() -> None:
    async def test() -> None:
        office = Office(1)
        await office.ask("g0")
        await office.ask("b0", wait_s=0)
        with pytest.raises(TimeoutError):
            await office.outcome("b0")
        await office.ask("b1")
        assert (office.places.working, office.places.waiting) == (1, 1)
        await office.end("g0", 1.0)
        assert office.begun == ["g0", "b1"]

    run(test)


def test_a_request_given_up_before_or_after_it_got_a_place_keeps_none() -> None:
    async def test() -> None:
        office = Office(1)
        for name in ("g0", "b0", "b1", "c0"):
            await office.ask(name)
        await office.give_up("b0")
        await office.give_up("g0")
        assert office.begun == ["g0", "b1"]
        await office.give_up("b1")
        assert office.begun == ["g0", "b1", "c0"]
        await office.end("c0", 1.0)
        assert (office.places.working, office.places.waiting) == (0, 0)

    run(test)


def test_a_place_given_at_the_moment_of_giving_up_goes_to_the_next() -> None:
    async def test() -> None:
        office = Office(1)
        for name in ("g0", "b0", "c0"):
            await office.ask(name)
        office._ends["g0"][1].append(0.0)
        office._ends["g0"][0].set()
        await asyncio.sleep(0)  # g0 has ended and b0 has its place, but b0 does not know yet
        assert office.places.waiting == 1
        await office.give_up("b0")
        assert office.begun == ["g0", "c0"]
        await office.end("c0", 1.0)
        assert (office.places.working, office.places.waiting) == (0, 0)

    run(test)


def test_a_request_given_up_just_before_its_place_gets_free_does_not_get_it() -> None:
    async def test() -> None:
        office = Office(1)
        for name in ("g0", "b0", "c0"):
            await office.ask(name)
        office._ends["g0"][1].append(0.0)
        office._ends["g0"][0].set()  # g0 wakes up before b0
        await office.give_up("b0")
        assert office.begun == ["g0", "c0"]
        await office.end("c0", 1.0)
        assert (office.places.working, office.places.waiting) == (0, 0)

    run(test)


def test_idle_clients_are_forgotten_once_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_places, "CLIENTS_MAX", 10)

    async def test() -> None:
        places = FairPlaces(1)
        for number in range(100):
            async with places.place(number, LIST, wait_s=0):
                pass
        assert len(places) <= 10

    run(test)
