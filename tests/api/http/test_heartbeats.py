# SPDX-License-Identifier: Apache-2.0
"""Heartbeats by HTTP, and how they are batched; the batching is tested without a database."""

import asyncio
import threading
from collections.abc import Mapping
from uuid import UUID, uuid4

import pytest
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import heartbeat_lots
from vgpumgr_api.fleet.heartbeat_lots import Heartbeats

from tests.api.http.cloud import Cloud
from vgpumgr.wire.fleet import Heartbeat
from vgpumgr.wire.problem import Code

HOSTS = [UUID(int=number) for number in range(1, 51)]


def beat(seq: int, *, agent_epoch: int = 1) -> Heartbeat:
    return Heartbeat(boot_id=UUID(int=1), agent_epoch=agent_epoch, seq=seq)


def test_an_agent_says_that_nothing_changed_and_is_told_when_that_is_not_enough(cloud: Cloud) -> None:
    host = cloud.host("h1")
    said = {"boot_id": str(host.boot_id), "agent_epoch": 1, "seq": host.seq}
    for name in ("h1", str(host.id)):
        assert host.post(f"/v1/hosts/{name}/heartbeat", said, status=200)["accepted"]
    assert host.post("/v1/hosts/h1/heartbeat", said | {"seq": 7}, status=200)["accepted"] is False
    other = cloud.host("h2")
    other.refused(Code.OBJECT_UNKNOWN, "POST", "/v1/hosts/h1/heartbeat", said)
    host.refused(Code.FIELD_INVALID, "POST", "/v1/hosts/h1/heartbeat", said | {"seq": -1})


def test_those_that_come_while_some_are_written_are_written_together() -> None:
    lots: list[int] = []
    first_is_there, go_on = threading.Event(), threading.Event()

    def note(beats: Mapping[UUID, Heartbeat]) -> set[UUID]:
        lots.append(len(beats))
        first_is_there.set()
        assert go_on.wait(20)
        return {host for host, one in beats.items() if one.seq == 1}

    async def many() -> list[bool]:
        gathered = Heartbeats(note)
        first = asyncio.create_task(gathered.say(HOSTS[0], beat(1)))
        await asyncio.to_thread(first_is_there.wait, 20)
        others = [asyncio.create_task(gathered.say(host, beat(n % 2))) for n, host in enumerate(HOSTS[1:])]
        await asyncio.sleep(0)
        go_on.set()
        return list(await asyncio.gather(first, *others))

    answers = asyncio.run(asyncio.wait_for(many(), 20))
    assert lots == [1, len(HOSTS) - 1]
    assert answers == [True, *(bool(n % 2) for n in range(len(HOSTS) - 1))]


def test_all_hear_of_a_failure_and_the_next_is_tried() -> None:
    outcomes = iter([Refusal(Code.DATABASE_BUSY, "gone"), None])

    def note(beats: Mapping[UUID, Heartbeat]) -> set[UUID]:
        if (trouble := next(outcomes)) is not None:
            raise trouble
        return set(beats)

    async def twice() -> bool:
        gathered = Heartbeats(note)
        with pytest.raises(Refusal):
            await gathered.say(HOSTS[0], beat(1))
        return await gathered.say(HOSTS[0], beat(1))

    assert asyncio.run(asyncio.wait_for(twice(), 20))


def test_of_two_of_one_host_the_later_counts_for_both() -> None:
    async def both() -> list[bool]:
        gathered = Heartbeats(lambda beats: {host for host, one in beats.items() if one.seq == 2})
        host = uuid4()
        return list(await asyncio.gather(gathered.say(host, beat(2)), gathered.say(host, beat(1))))

    assert asyncio.run(asyncio.wait_for(both(), 20)) == [True, True]


def test_an_agent_that_started_again_counts_from_the_beginning_and_is_the_later_one() -> None:
    noted: list[Heartbeat] = []

    def note(beats: Mapping[UUID, Heartbeat]) -> set[UUID]:
        noted.extend(beats.values())
        return set(beats)

    async def both() -> None:
        gathered = Heartbeats(note)
        await asyncio.gather(gathered.say(HOSTS[0], beat(1, agent_epoch=2)), gathered.say(HOSTS[0], beat(9)))

    asyncio.run(asyncio.wait_for(both(), 20))
    assert [(one.agent_epoch, one.seq) for one in noted] == [(2, 1)]


def test_a_client_that_goes_away_takes_no_answer_from_another() -> None:
    async def both() -> bool:
        gathered = Heartbeats(set)
        first, second = (asyncio.create_task(gathered.say(HOSTS[0], beat(1))) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(asyncio.wait_for(both(), 20))


def test_no_lot_is_larger_than_what_one_statement_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_lots, "AT_ONCE", 20)
    lots: list[int] = []

    def note(beats: Mapping[UUID, Heartbeat]) -> set[UUID]:
        lots.append(len(beats))
        return set(beats)

    async def many() -> list[bool]:
        gathered = Heartbeats(note)
        return list(await asyncio.gather(*(gathered.say(host, beat(1)) for host in HOSTS)))

    assert all(asyncio.run(asyncio.wait_for(many(), 20)))
    assert lots == [20, 20, 10]
