# SPDX-License-Identifier: Apache-2.0
"""A revoked credential is void at once. This also holds for claims and heartbeats, whose callers come from a cache, and
for requests whose caller was looked up before their bodies arrived.
"""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from vgpumgr_api.actors import hash_of, local_operator
from vgpumgr_api.auth import tokens
from vgpumgr_api.auth.remembered import CREDENTIALS_MAX, LIFE_S, Remembered
from vgpumgr_api.edge.call import remembered_of
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.fleet import hosts

from tests.api.conftest import Clock
from tests.api.http.cloud import Caller, Cloud
from tests.api.http.test_roles import ROUTES, cast_of
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenRole

# Credentials are looked up again above the database layer; services/test_authority revokes on both engines.
pytestmark = pytest.mark.sqlite_long

AGENTS = "/v1/hosts/{host}/"
"""Agents use the paths below this prefix."""

PLENTY = {"share_permille": 1000, "mem_bytes": 1 << 40, "slices": 100}
WANTED = {"tenant": "acme", "profile": "small"}
KEY = {"Idempotency-Key": "k"}

REQUESTS: dict[str, Callable[[Caller, Code], object]] = {
    "a claim": lambda who, code: who.refused(code, "POST", "/v1/slices", WANTED),
    "several claims": lambda who, code: who.refused(code, "POST", "/v1/slices:batch", {"slices": [WANTED]}),
    "a trial": lambda who, code: who.refused(code, "POST", "/v1/slices?validate_only=true", WANTED),
    "the answer to a claim": lambda who, code: who.refused(code, "POST", "/v1/slices", WANTED, headers=KEY),
    "what is wrong with a claim": lambda who, code: who.refused(code, "POST", "/v1/slices", {"tenant": "acme"}),
    "what is wrong with its text": lambda who, code: who.refused(code, "POST", "/v1/slices", content=b"{"),
    "which profiles there are": lambda who, code: who.refused(code, "POST", "/v1/slices", WANTED | {"profile": "x"}),
    "whether a key was used": lambda who, code: who.refused(
        code, "POST", "/v1/slices", WANTED | {"profile": "x"}, headers=KEY
    ),
}


@pytest.fixture
def tenant(cloud: Cloud) -> Caller:
    """A tenant that has claimed before."""
    cloud.host("h1")
    cloud.profile("small", 10)
    who = cloud.tenant("acme", **PLENTY)
    who.post("/v1/slices", WANTED, headers=KEY)
    return who


def revoke(cloud: Cloud, **subject: str) -> None:
    for each in cloud.operator.get("/v1/tokens")["items"]:
        if each.items() >= subject.items():
            cloud.operator.ok("DELETE", f"/v1/tokens/{each['id']}", 204)


def is_remembered(who: Caller) -> bool:
    remembered = remembered_of(SimpleNamespace(app=who.http.app))  # type: ignore[arg-type]
    return remembered.find(hash_of(str(who.token))) is not None


@pytest.mark.parametrize("what", REQUESTS)
def test_nobody_with_a_revoked_token_gets(cloud: Cloud, tenant: Caller, what: str) -> None:
    assert is_remembered(tenant)
    revoke(cloud, subject="acme")
    REQUESTS[what](tenant, Code.AUTH_INVALID)
    assert not is_remembered(tenant)
    assert len(cloud.operator.get("/v1/slices")["items"]) == 1
    assert cloud.operator.get("/v1/quotas/acme")["used_slices"] == 1


def test_a_host_whose_token_was_revoked_is_told(cloud: Cloud) -> None:
    host = cloud.host("h1")
    said: dict[str, Any] = {"boot_id": str(host.boot_id), "agent_epoch": 1, "seq": host.seq}
    assert host.post("/v1/hosts/h1/heartbeat", said, status=200)["accepted"]
    revoke(cloud, subject="h1")
    host.refused(Code.AUTH_INVALID, "POST", "/v1/hosts/h1/heartbeat", said)


def test_a_fenced_host_is_told_that_it_was(cloud: Cloud) -> None:
    host = cloud.host("h1")
    said: dict[str, Any] = {"boot_id": str(host.boot_id), "agent_epoch": 1, "seq": host.seq}
    host.post("/v1/hosts/h1/heartbeat", said, status=200)
    etag = {"If-Match": cloud.operator("GET", "/v1/hosts/h1").headers["etag"]}
    cloud.operator.ok("POST", "/v1/hosts/h1:fence", 200, {"confirm": "h1", "force": True}, headers=etag)
    host.refused(Code.HOST_FENCED, "POST", "/v1/hosts/h1/heartbeat", said)


def test_a_token_that_has_ended_is_void_at_once_though_it_was_remembered(
    cloud: Cloud, tenant: Caller, clock: Clock
) -> None:
    program = cloud.token(role="tenant", subject="acme", expires_in_s=60)
    program.post("/v1/slices", WANTED)
    clock.advance(59)
    program.post("/v1/slices", WANTED)
    clock.advance(1)
    program.refused(Code.AUTH_EXPIRED, "POST", "/v1/slices", WANTED)
    tenant.post("/v1/slices", WANTED)


def slowly(body: object, meanwhile: Callable[[], None]) -> Iterator[bytes]:
    """A body; `meanwhile` runs after the API has read the head of the request."""
    meanwhile()
    yield json.dumps({} if body is None else body).encode()


def ask_slowly(cloud: Cloud, code: Code, caller: Callable[[], tuple[Caller, str]], end: Callable[[str], None]) -> None:
    """On every route with a body, ends the caller's credential during the request, which is then refused.

    `caller`: makes a caller with all permissions and returns it with its credential's id.
    """
    names = cast_of(cloud).names
    routes: Any = cloud.http.app
    known = {route.path_format for route in routes.routes if isinstance(route, Route)}
    for (method, path), row in ROUTES.items():
        if path not in known or path.startswith(AGENTS):
            continue
        who, credential = caller()
        content = slowly(row.body(), lambda credential=credential: end(credential))
        headers = {"Content-Type": "application/json"} | row.headers
        who.refused(code, method, row.path.format(**names), content=content, headers=headers)


def test_a_token_that_is_revoked_before_the_body_came_does_nothing(cloud: Cloud) -> None:
    local = local_operator("tests", TokenRole.ADMIN)

    def caller() -> tuple[Caller, str]:
        made = cloud.admin.post("/v1/tokens", {"role": "admin"})
        return Caller(cloud.http, made["secret"]), made["id"]

    def end(credential: str) -> None:
        cloud.database.run(lambda session: tokens.delete_token(session, local, UUID(credential)))

    ask_slowly(cloud, Code.AUTH_INVALID, caller, end)


def test_a_token_that_expires_before_the_body_came_does_nothing(cloud: Cloud, clock: Clock) -> None:
    def caller() -> tuple[Caller, str]:
        made = cloud.admin.post("/v1/tokens", {"role": "admin", "expires_in_s": 60})
        return Caller(cloud.http, made["secret"]), made["id"]

    ask_slowly(cloud, Code.AUTH_EXPIRED, caller, lambda _: clock.advance(60))


def test_a_hosts_credential_that_is_replaced_before_the_body_came_does_nothing(cloud: Cloud) -> None:
    names = cast_of(cloud).names
    for number, ((method, path), row) in enumerate(ROUTES.items()):
        if not path.startswith(AGENTS):
            continue
        host = cloud.host(f"slow{number}")

        def end(name: str = host.name) -> None:
            local = local_operator("tests")
            cloud.database.run(lambda session: hosts.reenroll(session, local, name))

        where = row.path.format(**names | {"host": host.name}).replace("h1", host.name)
        host.refused(
            Code.AUTH_INVALID,
            method,
            where,
            content=slowly(row.body(), end),
            headers={"Content-Type": "application/json"},
        )


def test_what_was_refused_for_itself_is_refused_for_that(tenant: Caller) -> None:
    tenant.refused(Code.FIELD_INVALID, "POST", "/v1/slices", {"tenant": "acme"})
    tenant.refused(Code.OBJECT_UNKNOWN, "POST", "/v1/slices", WANTED | {"profile": "x"})
    tenant.refused(Code.IDEMPOTENCY_MISMATCH, "POST", "/v1/slices", WANTED | {"profile": "x"}, headers=KEY)


def test_credentials_are_remembered_for_a_while_and_not_without_bound() -> None:
    clock = SimpleNamespace(s=0.0)
    several = Remembered(lambda: clock.s)
    who = local_operator("somebody")
    several.keep("one", who)
    clock.s = LIFE_S - 1
    assert several.find("one") == who
    several.keep("two", who)
    clock.s = LIFE_S
    assert several.find("one") is None
    assert several.find("two") == who
    for number in range(CREDENTIALS_MAX):
        several.keep(str(number), who)
    assert several.find("two") is None
    assert len(several) == CREDENTIALS_MAX
