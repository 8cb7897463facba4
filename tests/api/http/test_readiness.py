# SPDX-License-Identifier: Apache-2.0
"""However many clients ask for readiness, the database is asked once a second; one that hangs counts as busy."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from vgpumgr_api.edge import readiness
from vgpumgr_api.edge.readiness import FRESH_S, Readiness
from vgpumgr_api.errors import Refusal
from vgpumgr_api.installation import health

from tests.api.http.cloud import Cloud
from vgpumgr.wire.problem import Code

T = TypeVar("T")
LONG_S = 3600.0


def run(work: Coroutine[None, None, T]) -> T:
    """Runs the coroutine; fails if it hangs."""
    return asyncio.run(asyncio.wait_for(work, 60))


async def answers(ready: Readiness, check: Callable[[], None], count: int) -> set[Code | None]:
    """Returns the answers that this many simultaneous requests get."""

    async def ask() -> Code | None:
        try:
            await ready.require(check)
        except Refusal as refusal:
            return refusal.code
        return None

    return set(await asyncio.gather(*(ask() for _ in range(count))))


def test_many_who_ask_at_once_and_within_a_second_are_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = SimpleNamespace(s=0.0), []
    refusal = Refusal(Code.DATABASE_OUTDATED, "no")

    def check() -> None:
        asked.append(clock.s)
        if clock.s >= LONG_S:
            raise refusal

    monkeypatch.setattr(readiness, "FRESH_S", LONG_S)

    async def work() -> list[set[Code | None]]:
        ready, told = Readiness(lambda: clock.s), []
        for moment in (0, 1, LONG_S - 1, LONG_S, LONG_S + 1):
            clock.s = moment
            told.append(await answers(ready, check, 1000))
        return told

    assert run(work()) == [{None}] * 3 + [{Code.DATABASE_OUTDATED}] * 2
    assert asked == [0, LONG_S]


def test_a_database_that_hangs_is_busy_and_is_asked_once_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PATIENCE_S", 0.05)
    clock, asked = SimpleNamespace(s=0.0), []
    begun, free = threading.Event(), threading.Event()

    def check() -> None:
        asked.append(clock.s)
        begun.set()
        assert free.wait(60)

    async def work() -> None:
        ready = Readiness(lambda: clock.s)
        for moment in (0, 100, 200):
            clock.s = moment
            assert await answers(ready, check, 100) == {Code.DATABASE_BUSY}
            assert begun.wait(60)
        assert asked == [0]
        free.set()
        monkeypatch.setattr(readiness, "FRESH_S", LONG_S)
        monkeypatch.setattr(readiness, "PATIENCE_S", LONG_S)
        while await answers(ready, check, 1) != {None}:
            await asyncio.sleep(0.01)
        clock.s += LONG_S
        assert await answers(ready, check, 100) == {None}

    try:
        run(work())
    finally:
        free.set()
    assert asked == [0, 200 + LONG_S]


def test_what_anybody_may_ask_costs_the_database_one_look(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FRESH_S <= 1
    monkeypatch.setattr(readiness, "FRESH_S", LONG_S)
    looks, check = [], health.check

    def count(session: Any) -> None:
        looks.append(1)
        check(session)

    monkeypatch.setattr(health, "check", count)
    with ThreadPoolExecutor(16) as threads:
        told = list(threads.map(lambda _: cloud.nobody.get("/v1/health"), range(200)))
    assert told == [{"status": "ok"}] * 200
    assert len(looks) == 1
    application: Any = cloud.http.app
    application.state.lifecycle.stop()
    cloud.nobody.refused(Code.API_STOPPING, "GET", "/v1/health")
