# SPDX-License-Identifier: Apache-2.0
"""The wait for a newer desired state, without a database: the test makes up its answers."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import TypeVar
from uuid import UUID

import pytest
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events.watch import DesiredWatch, Generations, rest_s

from vgpumgr.wire.problem import Code

EPOCH, NEXT_EPOCH = UUID(int=1), UUID(int=2)
A, B = UUID(int=10), UUID(int=11)
SOON_S = 10
T = TypeVar("T")


def run(work: Coroutine[None, None, T]) -> T:
    """Runs the coroutine; fails if it does not end at once."""
    return asyncio.run(asyncio.wait_for(work, SOON_S))


def unchanged() -> Generations:
    return EPOCH, {A: 1, B: 1}


def test_a_thousand_wait_with_one_thread_among_them() -> None:
    questions = []

    def count() -> Generations:
        questions.append(threading.get_ident())
        return unchanged()

    def workers() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name.startswith("AnyIO")}

    async def wait() -> int:
        others = workers()  # worker threads of earlier event loops
        watch = DesiredWatch(count, period_s=0.01)
        waits = [asyncio.create_task(watch.changed(A, (EPOCH, 1), 60)) for _ in range(1000)]
        await asyncio.sleep(0.5)
        while not questions:
            await asyncio.sleep(0.01)
        busy = len(workers() - others)
        watch.stop()
        assert await asyncio.gather(*waits) == [False] * 1000
        return busy

    assert run(wait()) <= 1
    assert len(set(questions)) == 1
    assert len(questions) < 100


@pytest.mark.parametrize(("took_s", "sleeps_s"), [(0, 0.5), (0.1, 0.5), (0.3, 1.2), (0.5, 2), (60, 2)])
def test_a_slow_answer_lets_the_database_rest_but_nobody_wait_for_long(took_s: float, sleeps_s: float) -> None:
    """Without the bound, a query that took a second made all hosts wait for four."""
    assert rest_s(0.5, took_s) == pytest.approx(sleeps_s)


def test_only_the_host_whose_state_changed_is_answered() -> None:
    current = {A: 1, B: 1}

    async def wait() -> list[bool]:
        watch = DesiredWatch(lambda: (EPOCH, current), period_s=0.01)
        waits = [asyncio.create_task(watch.changed(host, (EPOCH, 1), wait_s)) for host, wait_s in ((A, 1), (B, 60))]
        await asyncio.sleep(0.05)
        current[B] = 2
        return list(await asyncio.gather(*waits))

    assert run(wait()) == [False, True]


@pytest.mark.parametrize(
    "now", [(NEXT_EPOCH, {A: 1}), (EPOCH, {A: 0}), (EPOCH, {})], ids=["epoch", "older generation", "host is gone"]
)
def test_whatever_is_different_is_a_change(now: Generations) -> None:
    assert run(DesiredWatch(lambda: now, period_s=0.01).changed(A, (EPOCH, 1), 60)) is True


def test_waits_no_longer_than_asked() -> None:
    begun_s = time.monotonic()
    assert run(DesiredWatch(unchanged).changed(A, (EPOCH, 1), 0.1)) is False
    assert time.monotonic() - begun_s < 5


def test_after_stop_nobody_waits() -> None:
    async def wait() -> bool:
        watch = DesiredWatch(unchanged)
        watch.stop()
        return await watch.changed(A, (EPOCH, 1), 60)

    assert run(wait()) is False


@pytest.mark.parametrize("wait_s", [0.1, 60])
def test_nobody_is_asked_for_when_nobody_waits(wait_s: float) -> None:
    """No host waits any more, because all of them have waited long enough or have left."""
    questions = []

    def count() -> Generations:
        questions.append(1)
        return unchanged()

    async def wait() -> tuple[int, int]:
        watch = DesiredWatch(count, period_s=0.01)
        waiting = asyncio.create_task(watch.changed(A, (EPOCH, 1), wait_s))
        while not questions or (wait_s < 1 and not waiting.done()):
            await asyncio.sleep(0.01)
        waiting.cancel()
        while watch._task is not None:
            await asyncio.sleep(0.01)
        after = len(questions)
        await asyncio.sleep(0.2)
        return after, len(questions)

    after, later = run(wait())
    assert after == later > 0


def test_a_lost_database_is_told_to_all_and_survived() -> None:
    lost = True

    def sometimes() -> Generations:
        if lost:
            raise Refusal(Code.DATABASE_BUSY, "gone")
        return EPOCH, {A: 2, B: 2}

    async def wait() -> list[bool]:
        nonlocal lost
        watch = DesiredWatch(sometimes, period_s=0.01)
        waits = [watch.changed(host, (EPOCH, 1), 60) for host in (A, B)]
        for outcome in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(outcome, Refusal)
        lost = False
        return list(await asyncio.gather(*(watch.changed(host, (EPOCH, 1), 60) for host in (A, B))))

    assert run(wait()) == [True, True]
