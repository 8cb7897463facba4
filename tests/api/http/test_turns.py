# SPDX-License-Identifier: Apache-2.0
"""However much one tenant asks for at once, threads and connections remain for the others."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from httpx2 import Response
from sqlalchemy import text
from vgpumgr_api.actors import Actor
from vgpumgr_api.app import create_app
from vgpumgr_api.db import database as database_module
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge import readiness as readiness_module
from vgpumgr_api.edge import strict as strict_module
from vgpumgr_api.edge.readiness import Readiness
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events.outbox import NUMBERING_LOCK
from vgpumgr_api.overload import turns as turns_module
from vgpumgr_api.overload.fair_places import WORK_S
from vgpumgr_api.overload.turns import SHARED, WAITING, Turns, metered

from tests.api.cluster import Cluster
from tests.api.http.cloud import Caller, Cloud
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenRole

AT_ONCE = 8
UNDER_WAY = AT_ONCE * (1 + WAITING)
CLAIMS = 45
GPUS = [f"0000:{bus:02x}:00.0" for bus in range(3, 9)]
ENOUGH = {"slices": 1000, "share_permille": 1000, "mem_bytes": 1 << 40}
LOCKED_QUOTA = text(
    "SELECT 1 FROM quotas JOIN tenants ON tenants.id = quotas.tenant_id WHERE tenants.name = 'noisy' FOR UPDATE"
)
LOCKED_NUMBERS = text(f"SELECT pg_advisory_xact_lock({NUMBERING_LOCK})")
LOCKED_OPERATIONS = text("SELECT 1 FROM hosts FOR UPDATE")
LOCKED_SLICES = text("LOCK TABLE slices IN ACCESS EXCLUSIVE MODE")
WAIT_FOR_LOCKS = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")


@pytest.fixture
def patient(postgresql: Cluster, postgresql_template: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """On a busy machine, no wait may end by its time limit."""
    for module, name in (
        (database_module, "WAIT_S"),
        (database_module, "LOCK_S"),
        (turns_module, "WAIT_S"),
        (readiness_module, "PATIENCE_S"),
    ):
        monkeypatch.setattr(module, name, 300.0)
    opened = Database(postgresql.create("turns", template=postgresql_template), serving=True)
    yield opened
    opened.close()
    postgresql.drop("turns")


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def waiting(database: Database) -> int:
    """Returns how many transactions wait for a lock. It uses a new transaction, because an old one would see the same
    result again.
    """
    with database.engine.connect() as looking:
        found: int = looking.execute(WAIT_FOR_LOCKS).scalar_one()
        return found


def is_ready(cloud: Cloud) -> bool:
    """Returns whether the API is ready now, without the cached answer."""
    application: Any = cloud.http.app
    application.state.readiness = Readiness()
    return bool(cloud.nobody.get("/v1/health") == {"status": "ok"})


def claim(who: Caller) -> Response:
    return who("POST", "/v1/slices", {"tenant": "noisy", "profile": "small"})


def test_claims_that_wait_for_a_quota_keep_nobody_elses_request_waiting(patient: Database) -> None:
    cloud = Cloud(patient, create_app(patient, turns=Turns(tenant=AT_ONCE)))
    with cloud.http, ThreadPoolExecutor(CLAIMS) as threads:
        host = cloud.host("h1", gpus=GPUS)
        cloud.profile("small", 1)
        noisy, quiet = cloud.tenant("noisy", **ENOUGH), cloud.tenant("quiet")
        with patient.engine.begin() as holder:
            holder.execute(LOCKED_QUOTA)
            asked: list[Future[Response]] = [threads.submit(claim, noisy) for _ in range(CLAIMS)]
            until(lambda: sum(each.done() for each in asked) == CLAIMS - UNDER_WAY)
            until(lambda: waiting(patient) == AT_ONCE)
            for each in asked:
                if each.done():
                    refused = each.result()
                    assert (refused.status_code, refused.json()["code"]) == (429, "rate.exceeded")
                    assert refused.headers["retry-after"] == "1"
            assert quiet.get("/v1/quotas/quiet")["tenant"] == "quiet"
            assert is_ready(cloud)
            assert host.report(gpus=GPUS)
            assert sum(not each.done() for each in asked) == UNDER_WAY
        assert Counter(each.result().status_code for each in asked) == {201: UNDER_WAY, 429: CLAIMS - UNDER_WAY}


@pytest.mark.parametrize("what", ["watches of a tenant", "questions about an operation"])
def test_who_waits_for_news_takes_no_more_places_than_others(patient: Database, what: str) -> None:
    cloud = Cloud(patient, create_app(patient, turns=Turns(tenant=AT_ONCE)))
    with cloud.http, ThreadPoolExecutor(CLAIMS) as threads:
        application: Any = cloud.http.app
        application.state.feed.stop()  # event streams end at once
        cloud.host("h1")
        cloud.profile("small", 1)
        noisy, quiet = cloud.tenant("noisy", **ENOUGH), cloud.tenant("quiet")
        claim(noisy)
        etag = {"If-Match": cloud.operator("GET", "/v1/hosts/h1").headers["etag"]}
        drained = cloud.operator.ok("POST", "/v1/hosts/h1:drain", 202, {}, headers=etag)
        who, path, lock, at_once, refused = {
            "watches of a tenant": (noisy, "/v1/events/watch", LOCKED_NUMBERS, AT_ONCE, CLAIMS - UNDER_WAY),
            "questions about an operation": (
                cloud.operator,
                f"/v1/operations/{drained['id']}",
                LOCKED_OPERATIONS,
                SHARED,
                0,
            ),
        }[what]
        with patient.engine.begin() as holder:
            holder.execute(lock)
            asked = [threads.submit(who, "GET", path) for _ in range(CLAIMS)]
            until(lambda: sum(each.done() for each in asked) == refused)
            until(lambda: waiting(patient) == at_once)
            if refused:
                assert quiet.get("/v1/quotas/quiet")["tenant"] == "quiet"
            assert is_ready(cloud)
            assert sum(not each.done() for each in asked) == CLAIMS - refused
        outcomes = Counter(each.result().status_code for each in asked)
        assert outcomes == Counter([200] * (CLAIMS - refused) + [429] * refused)


@pytest.mark.parametrize("seen", [False, True])
def test_hosts_that_ask_for_documents_take_few_places(patient: Database, seen: bool) -> None:
    cloud = Cloud(patient)
    with cloud.http, ThreadPoolExecutor(2 * CLAIMS) as threads:
        hosts = cloud.host("h1"), cloud.host("h2")
        epoch = hosts[0].desired().epoch
        asked: list[Future[Response]] = []
        with patient.engine.begin() as holder:
            holder.execute(LOCKED_SLICES)
            for host, taken in zip(hosts, (turns_module.HOST, turns_module.DOCUMENTS), strict=True):
                path = f"/v1/hosts/{host.name}/desired" + (f"?epoch={epoch}&generation=1000" if seen else "")
                asked += [threads.submit(host, "GET", path) for _ in range(CLAIMS)]
                until(lambda expected=taken: waiting(patient) == expected)  # type: ignore[misc]
                assert is_ready(cloud)
                assert waiting(patient) == taken
        assert {each.result().status_code for each in asked} == {200}


def test_a_claim_that_gets_no_lock_is_refused_and_can_be_repeated(
    postgresql: Cluster, postgresql_template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "LOCK_S", 0.05)
    monkeypatch.setattr(database_module, "ATTEMPTS", 2)
    database = Database(postgresql.create("locked", template=postgresql_template), serving=True)
    cloud = Cloud(database)
    with cloud.http:
        cloud.host("h1")
        cloud.profile("small", 1)
        noisy = cloud.tenant("noisy", **ENOUGH)
        wanted, key = {"tenant": "noisy", "profile": "small"}, {"Idempotency-Key": "k"}
        with database.engine.begin() as holder:
            holder.execute(LOCKED_QUOTA)
            refused = noisy("POST", "/v1/slices", wanted, headers=key)
            assert (refused.status_code, refused.json()["code"]) == (503, "database.busy")
            assert refused.headers["retry-after"] == "1"
        first = noisy.post("/v1/slices", wanted, headers=key)
        assert noisy.post("/v1/slices", wanted, headers=key)["id"] == first["id"]
        assert noisy.get("/v1/quotas/noisy")["used_slices"] == 1
    database.close()
    postgresql.drop("locked")


def actor(
    tenant: int | None = None,
    *,
    account: int | None = None,
    host: int | None = None,
    role: TokenRole = TokenRole.TENANT,
) -> Actor:
    return Actor(
        token_id=UUID(int=1),
        role=role,
        name="t",
        tenant_id=None if tenant is None else UUID(int=tenant),
        account_id=None if account is None else UUID(int=account),
        host_id=None if host is None else UUID(int=host),
    )


async def _enter(
    turns: Turns, who: Actor, times: int, stack: AsyncExitStack, *, kind: str = "", news: bool = False
) -> None:
    for _ in range(times):
        await stack.enter_async_context(turns.turn(who, kind, news=news))


def test_projects_count_with_their_account_and_agents_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "WAIT_S", 0)

    async def fill() -> None:
        turns = Turns(tenant=3)
        async with AsyncExitStack() as stack:
            await _enter(turns, actor(7), 1, stack)
            await _enter(turns, actor(8, account=7), 2, stack)
            for who in (actor(7), actor(9, account=7)):
                with pytest.raises(Refusal) as caught:
                    await _enter(turns, who, 1, stack)
                assert caught.value.code == Code.DATABASE_BUSY
            await _enter(turns, actor(role=TokenRole.OPERATOR), SHARED - 3, stack)
            with pytest.raises(Refusal):
                await _enter(turns, actor(5), 1, stack)
            await _enter(turns, actor(role=TokenRole.HOST), turns_module.AGENTS, stack)
            with pytest.raises(Refusal):
                await _enter(turns, actor(role=TokenRole.HOST), 1, stack)
        async with AsyncExitStack() as stack:
            await _enter(turns, actor(5), 3, stack)
            await _enter(turns, actor(role=TokenRole.OPERATOR), SHARED - 3, stack)

    asyncio.run(fill())


def test_one_host_takes_no_other_hosts_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "WAIT_S", 0)

    async def fill() -> None:
        turns = Turns()
        async with AsyncExitStack() as stack:
            await _enter(turns, actor(host=1, role=TokenRole.HOST), turns_module.HOST, stack)
            with pytest.raises(Refusal) as caught:
                await _enter(turns, actor(host=1, role=TokenRole.HOST), 1, stack)
            assert caught.value.code == Code.DATABASE_BUSY
            await _enter(turns, actor(host=2, role=TokenRole.HOST), 1, stack)
        async with AsyncExitStack() as stack:
            await _enter(turns, actor(host=1, role=TokenRole.HOST), turns_module.HOST, stack)

    asyncio.run(fill())


def test_a_fleet_that_comes_for_news_leaves_places_for_what_hosts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "WAIT_S", 0)

    async def fill() -> None:
        turns, hosts = Turns(), [actor(host=number, role=TokenRole.HOST) for number in range(turns_module.AGENTS)]
        async with AsyncExitStack() as stack:
            for host in hosts[: turns_module.DOCUMENTS]:
                await _enter(turns, host, 1, stack, news=True)
            with pytest.raises(Refusal) as caught:
                await _enter(turns, hosts[-1], 1, stack, news=True)
            assert caught.value.code == Code.DATABASE_BUSY
            for host in hosts[turns_module.DOCUMENTS :]:
                await _enter(turns, host, 1, stack)
            with pytest.raises(Refusal):
                await _enter(turns, hosts[0], 1, stack)
        async with AsyncExitStack() as stack:
            for host in hosts:
                await _enter(turns, host, 1, stack)

    asyncio.run(fill())


def test_a_token_may_have_so_many_waiting_and_others_still_come_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "HELD_S", 0)

    async def fill() -> None:
        turns, greedy = Turns(token_waiting=2), actor(role=TokenRole.OPERATOR)
        other = replace(greedy, token_id=UUID(int=2))
        async with AsyncExitStack() as stack:
            await _enter(turns, greedy, SHARED, stack)
            waiting = [asyncio.create_task(_enter(turns, greedy, 1, AsyncExitStack())) for _ in range(2)]
            await asyncio.sleep(0)
            assert (turns.working, turns.waiting) == (SHARED, 2)
            monkeypatch.setattr(turns_module, "WAIT_S", 0)
            with pytest.raises(Refusal) as caught:
                await _enter(turns, greedy, 1, stack)
            assert (caught.value.code, caught.value.retry_after_s) == (Code.RATE_EXCEEDED, 1)
            with pytest.raises(Refusal):
                await turns.require_room(greedy)
            await turns.require_room(other)
            with pytest.raises(Refusal) as caught:
                await _enter(turns, other, 1, stack)
            assert caught.value.code == Code.DATABASE_BUSY
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert turns.waiting == 0
            await turns.require_room(greedy)

    asyncio.run(fill())


def test_a_place_that_gets_free_goes_to_another_token_of_the_tenant_first() -> None:
    async def fill() -> None:
        turns, begun = Turns(tenant=1), []
        first = actor(7)
        second = replace(first, token_id=UUID(int=2))

        async def work(who: Actor, name: str) -> None:
            async with turns.turn(who, "GET /v1/slices"):
                begun.append(name)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            for name in ("first 0", "first 1", "first 2"):
                tasks.create_task(work(first, name))
            tasks.create_task(work(second, "second 0"))
        assert begun == ["first 0", "second 0", "first 1", "first 2"]

    asyncio.run(fill())


def test_processor_time_of_threads_is_charged_to_the_turn_alone() -> None:
    async def charge() -> None:
        turns, busy = Turns(), actor(role=TokenRole.OPERATOR)

        def burn() -> None:
            end_s = time.thread_time() + 2 * WORK_S
            while time.thread_time() < end_s:
                pass

        async with turns.turn(busy, "costly"):
            await asyncio.to_thread(metered, burn)
        async with AsyncExitStack() as stack:
            await _enter(turns, busy, 1, stack, kind="costly")
            more = asyncio.create_task(_enter(turns, busy, 1, AsyncExitStack(), kind="costly"))
            await asyncio.sleep(0)
            assert (turns.working, turns.waiting) == (1, 1)
            await _enter(turns, replace(busy, token_id=UUID(int=2)), 1, stack, kind="cheap")
            more.cancel()
            await asyncio.gather(more, return_exceptions=True)

    asyncio.run(charge())


def test_a_token_with_too_many_waiting_is_refused_before_it_is_looked_up(patient: Database) -> None:
    cloud = Cloud(patient, create_app(patient, turns=Turns(token_waiting=1)))
    looked: list[object] = []
    with cloud.http, ThreadPoolExecutor(SHARED + 1) as threads:
        cloud.host("h1")
        cloud.profile("small", 1)
        claim(cloud.tenant("noisy", **ENOUGH))
        etag = {"If-Match": cloud.operator("GET", "/v1/hosts/h1").headers["etag"]}
        drained = cloud.operator.ok("POST", "/v1/hosts/h1:drain", 202, {}, headers=etag)
        with patient.engine.begin() as holder:
            holder.execute(LOCKED_OPERATIONS)
            path = f"/v1/operations/{drained['id']}"
            asked = [threads.submit(cloud.operator, "GET", path) for _ in range(SHARED)]
            until(lambda: waiting(patient) == SHARED)
            asked.append(threads.submit(cloud.operator, "GET", path))
            application: Any = cloud.http.app
            until(lambda: application.state.turns.waiting == 1)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(strict_module, "authenticate", looked.append)
                refused = cloud.operator("GET", "/v1/tenants")
            assert (refused.status_code, refused.json()["code"]) == (429, "rate.exceeded")
            assert refused.headers["retry-after"] == "1"
            assert looked == []
            assert is_ready(cloud)
        assert {each.result().status_code for each in asked} == {200}


def test_no_thread_and_no_connection_is_wanted_that_is_not_there() -> None:
    threads = 40  # the limit of anyio
    assert min(threads, database_module.CONNECTIONS) > SHARED + turns_module.AGENTS
