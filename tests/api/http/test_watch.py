# SPDX-License-Identifier: Apache-2.0
"""The wait for a newer desired state, without a database: a question is a function of nothing."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from vgpumgr_api.errors import Refusal
from vgpumgr_api.watch import Answers, DesiredWatch, Generation

from vgpumgr.wire.problem import Code

EPOCH = UUID(int=1)
SESSION: Any = None


def run(ask: Callable[[Any], Answers]) -> Answers:
    return ask(SESSION)


def unchanged(_: object) -> Generation:
    return EPOCH, 1


def test_a_thousand_wait_with_one_thread_among_them() -> None:
    threads = set()

    def count(ask: Callable[[Any], Answers]) -> Answers:
        threads.add(threading.get_ident())
        return ask(SESSION)

    async def wait() -> int:
        watch = DesiredWatch(count, period_s=0.01)
        waits = [asyncio.create_task(watch.changed(unchanged, (EPOCH, 1), 30)) for _ in range(1000)]
        await asyncio.sleep(0.2)
        busy = sum(each.name.startswith("AnyIO") for each in threading.enumerate())
        watch.stop()
        assert await asyncio.gather(*waits) == [False] * 1000
        return busy

    assert asyncio.run(wait()) <= 1
    assert len(threads) == 1


def test_only_the_host_whose_state_changed_is_answered() -> None:
    current = {"a": 1, "b": 1}

    async def wait() -> list[bool]:
        watch = DesiredWatch(run, period_s=0.01)
        waits = [
            asyncio.create_task(watch.changed(lambda _, host=host: (EPOCH, current[host]), (EPOCH, 1), 1))
            for host in current
        ]
        await asyncio.sleep(0.05)
        current["b"] = 2
        return list(await asyncio.gather(*waits))

    assert asyncio.run(wait()) == [False, True]


def test_another_epoch_is_a_change() -> None:
    watch = DesiredWatch(run, period_s=0.01)
    assert asyncio.run(watch.changed(unchanged, (UUID(int=2), 1), 5)) is True


def test_waits_no_longer_than_asked() -> None:
    begun_s = time.monotonic()
    assert asyncio.run(DesiredWatch(run).changed(unchanged, (EPOCH, 1), 0.1)) is False
    assert time.monotonic() - begun_s < 5


def test_after_stop_nobody_waits() -> None:
    async def wait() -> bool:
        watch = DesiredWatch(run)
        watch.stop()
        return await watch.changed(unchanged, (EPOCH, 1), 30)

    assert asyncio.run(asyncio.wait_for(wait(), 5)) is False


def test_a_refusal_reaches_the_one_it_is_for() -> None:
    def refuse(_: object) -> Generation:
        raise Refusal(Code.OBJECT_UNKNOWN, "gone")

    async def wait() -> list[bool | BaseException]:
        watch = DesiredWatch(run, period_s=0.01)
        return list(
            await asyncio.gather(
                watch.changed(refuse, (EPOCH, 1), 5),
                watch.changed(unchanged, (EPOCH, 1), 0.1),
                return_exceptions=True,
            )
        )

    refused, waited = asyncio.run(wait())
    assert isinstance(refused, Refusal)
    assert waited is False


def test_a_lost_database_is_told_to_all_and_survived() -> None:
    lost = True

    def sometimes(ask: Callable[[Any], Answers]) -> Answers:
        if lost:
            raise Refusal(Code.DATABASE_BUSY, "gone")
        return ask(SESSION)

    async def wait() -> bool:
        nonlocal lost
        watch = DesiredWatch(sometimes, period_s=0.01)
        with pytest.raises(Refusal):
            await watch.changed(unchanged, (EPOCH, 0), 5)
        lost = False
        return await watch.changed(unchanged, (EPOCH, 0), 5)

    assert asyncio.run(wait()) is True
