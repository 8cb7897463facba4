# SPDX-License-Identifier: Apache-2.0
"""A client that asks too often is told when to ask again, and other clients do not notice."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any
from uuid import UUID

import pytest
from starlette.requests import Request
from vgpumgr_api.actors import Actor
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge import strict
from vgpumgr_api.edge.call import authenticate
from vgpumgr_api.errors import Refusal
from vgpumgr_api.overload import turns as turns_module
from vgpumgr_api.overload.rates import BURST_S, KEYS_MAX, Limiter, Limits
from vgpumgr_api.overload.turns import LOOKUPS

from tests.api.http.cloud import Caller, Cloud
from tests.api.http.test_turns import until
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenRole


class Now:
    """A clock in seconds that a test advances."""

    def __init__(self) -> None:
        self.s = 1000

    def __call__(self) -> int:
        return self.s * 10**9


def actor(token: int, tenant: int | None = None) -> Actor:
    return Actor(
        token_id=UUID(int=token), role=TokenRole.TENANT, name="t", tenant_id=UUID(int=tenant) if tenant else None
    )


def admitted(limits: Limits, who: Actor, times: int) -> int:
    """Returns how many requests are admitted before the first refusal."""
    for count in range(times):
        try:
            limits.admit(who)
        except Refusal:
            return count
    return times


def test_a_burst_and_then_so_many_a_second() -> None:
    now = Now()
    limits = Limits(token_per_s=10, clock=now)
    assert admitted(limits, actor(1), 100) == 10 * BURST_S
    for _ in range(5):
        now.s += 1
        assert admitted(limits, actor(1), 100) == 10
    now.s += 3600
    assert admitted(limits, actor(1), 100) == 10 * BURST_S


def test_what_is_refused_costs_nothing_and_says_how_long() -> None:
    now = Now()
    limits = Limits(token_per_s=2, clock=now)
    assert admitted(limits, actor(1), 100) == 8
    for _ in range(50):
        with pytest.raises(Refusal) as caught:
            limits.admit(actor(1))
        assert (caught.value.code, caught.value.retry_after_s) == (Code.RATE_EXCEEDED, 1)
    now.s += 1
    assert admitted(limits, actor(1), 100) == 2


def test_one_token_does_not_spend_anothers_and_a_tenants_are_counted_together() -> None:
    limits = Limits(token_per_s=10, tenant_per_s=15, clock=Now())
    assert admitted(limits, actor(1, tenant=7), 100) == 40
    assert admitted(limits, actor(2, tenant=7), 100) == 20
    assert admitted(limits, actor(3, tenant=8), 100) == 40
    assert admitted(limits, actor(4), 100) == 40


def test_no_limit_is_no_limit() -> None:
    assert admitted(Limits(), actor(1, tenant=7), 10_000) == 10_000


def test_a_flood_of_tokens_is_forgotten_again() -> None:
    limiter = Limiter(10)
    for number in range(3 * KEYS_MAX):
        assert limiter.wait_ns(number, number * 10**9) == 0
    assert len(limiter) <= KEYS_MAX + 1
    now_ns = 10**15
    assert [limiter.wait_ns("greedy", now_ns) for _ in range(41)][-1] > 0
    for number in range(5 * KEYS_MAX):
        limiter.wait_ns(number, now_ns)
    assert limiter.wait_ns("greedy", now_ns) > 0


def test_over_http_it_is_a_problem_with_retry_after(database: Database) -> None:
    cloud = Cloud(database, create_app(database, limits=Limits(token_per_s=1, clock=Now())))
    with cloud.http:
        for _ in range(BURST_S):
            cloud.operator.get("/v1/tenants")
        for method, path in (("GET", "/v1/tenants"), ("POST", "/v1/tenants"), ("GET", "/v1/events/watch")):
            answer = cloud.operator(method, path)
            assert answer.status_code == 429
            assert answer.json()["code"] == "rate.exceeded"
            assert answer.headers["retry-after"] == "1"
        cloud.admin.get("/v1/tenants")
        assert cloud.nobody.get("/v1/health") == {"status": "ok"}


@pytest.fixture
def limited(database: Database) -> Iterator[Cloud]:
    """A cloud in which each token may ask `BURST_S` times, with a clock that stands still."""
    cloud = Cloud(database, create_app(database, limits=Limits(token_per_s=1, clock=Now())))
    with cloud.http:
        yield cloud


class LookUps:
    """Counts look-ups of callers, in total and at the same time. A look-up ends only while `may_end` is set, as at
    first.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most = 0
        self.may_end = Event()
        self.may_end.set()
        self._under_way = 0
        self._lock = Lock()
        monkeypatch.setattr(strict, "authenticate", self._authenticate)

    def _authenticate(self, request: Request) -> Actor:
        with self._lock:
            self.count += 1
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        try:
            assert self.may_end.wait(300)
            return authenticate(request)
        finally:
            with self._lock:
                self._under_way -= 1


SPELLED = ("Bearer {}", "bearer {}", "BEARER   {}")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/tenants"), ("POST", "/v1/slices"), ("GET", "/v1/events/watch")]
)
def test_who_asks_too_often_is_not_looked_up(
    limited: Cloud, monkeypatch: pytest.MonkeyPatch, method: str, path: str
) -> None:
    for _ in range(BURST_S):
        limited.operator.get("/v1/tenants")
    looked = LookUps(monkeypatch)
    for number in range(30):
        headers = {"Authorization": SPELLED[number % len(SPELLED)].format(limited.operator.token)}
        limited.nobody.refused(Code.RATE_EXCEEDED, method, path, headers=headers)
    assert looked.count == 0
    limited.admin.get("/v1/tenants")
    assert looked.count == 1


def test_many_requests_at_once_are_looked_up_few_at_once_and_no_more_than_may_be(
    limited: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests arrive before the first look-up ends. A later request uses a place of its token."""
    monkeypatch.setattr(turns_module, "WAIT_S", 300.0)
    application: Any = limited.http.app
    looked = LookUps(monkeypatch)
    looked.may_end.clear()
    with ThreadPoolExecutor(60) as threads:
        asked = [threads.submit(limited.operator, "GET", "/v1/tenants") for _ in range(60)]
        until(lambda: sum(share.count for share in [*application.state.turns._lookups.values()]) == 60)
        until(lambda: looked.count == LOOKUPS)
        looked.may_end.set()
        told = [each.result().status_code for each in asked]
    assert Counter(told) == {200: BURST_S, 429: 60 - BURST_S}
    assert looked.most <= LOOKUPS
    assert looked.count <= BURST_S + LOOKUPS


def test_a_revoked_token_that_asked_too_often_is_told_so_when_it_may_ask_again(database: Database) -> None:
    now = Now()
    cloud = Cloud(database, create_app(database, limits=Limits(token_per_s=1, clock=now)))
    with cloud.http:
        made = cloud.admin.post("/v1/tokens", {"role": "operator"})
        who = Caller(cloud.http, made["secret"])
        for _ in range(BURST_S):
            who.get("/v1/tenants")
        cloud.admin.ok("DELETE", f"/v1/tokens/{made['id']}", 204)
        who.refused(Code.RATE_EXCEEDED, "GET", "/v1/tenants")
        now.s += 1
        for _ in range(BURST_S):
            who.refused(Code.AUTH_INVALID, "GET", "/v1/tenants")
