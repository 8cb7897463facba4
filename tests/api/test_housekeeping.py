# SPDX-License-Identifier: Apache-2.0
"""The API's periodic jobs, without a database: the test makes up the jobs."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from vgpumgr_api.background.housekeeping import Housekeeping, Job
from vgpumgr_api.errors import Refusal

from vgpumgr.wire.problem import Code

SOON_S = 10


class Nowhere:
    """Calls a transaction's function without a database."""

    def run(self, work: Callable[[Any], bool], *, patient: bool) -> bool:
        assert patient
        return work(None)


def run(*jobs: Job, until: Callable[[], bool]) -> None:
    """Runs the jobs until the condition is true."""

    async def work() -> None:
        nowhere: Any = Nowhere()
        running = Housekeeping(nowhere, jobs)
        running.start()
        while not until():
            await asyncio.sleep(0.005)
        await running.stop()

    asyncio.run(asyncio.wait_for(work(), SOON_S))


def test_a_job_with_more_to_do_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's next regular turn would not come during this test."""
    monkeypatch.setattr("random.uniform", lambda low, _: low)
    left = [3, 2, 1, 0]
    run(Job("all", 3600, lambda _: left.pop(0) > 0), until=lambda: not left)


def test_what_fails_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    turns: list[int] = []

    def fail(_: object) -> bool:
        turns.append(1)
        if len(turns) == 1:
            raise Refusal(Code.DATABASE_BUSY, "gone for now")
        if len(turns) == 2:
            raise ZeroDivisionError
        return False

    run(Job("fails", 0.01, fail), until=lambda: len(turns) > 3)
    assert [record.message for record in caplog.records] == ["fails: gone for now", "fails: unexpected"]


def test_one_that_fails_keeps_no_other_from_its_turn() -> None:
    done: list[int] = []

    def fail(_: object) -> bool:
        raise ZeroDivisionError

    def work(_: object) -> bool:
        done.append(1)
        return False

    run(Job("fails", 0.02, fail), Job("works", 0.02, work), until=lambda: len(done) > 5)


def test_stop_waits_for_the_transaction_under_way() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def slow(_: object) -> bool:
        import time

        begun.append(1)
        time.sleep(0.2)
        ended.append(1)
        return False

    run(Job("slow", 0.001, slow), until=lambda: bool(begun))
    assert len(begun) == len(ended)
