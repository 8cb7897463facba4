# SPDX-License-Identifier: Apache-2.0
"""Clients with bad credentials are soon refused without a look-up, and other clients do not notice."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from starlette.testclient import TestClient
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database
from vgpumgr_api.errors import Refusal
from vgpumgr_api.overload.failed_logins import ADDRESSES_MAX, KNOWN_MAX, FailedLogins
from vgpumgr_api.overload.rates import BURST_S
from vgpumgr_api.overload.turns import LOOKUPS

from tests.api.http.cloud import Caller, Cloud
from tests.api.http.listening import listening, problem, run
from tests.api.http.process import serving
from tests.api.http.test_limits import LookUps, Now
from vgpumgr.wire.problem import Code


def comes(
    logins: FailedLogins, source: str, credential: str, *, answer: Code | None = Code.AUTH_INVALID
) -> Code | None:
    """Returns the answer to a client whose credential gets `answer` if it is looked up."""
    told = None
    try:
        with logins.counting(source, credential):
            if answer is not None:
                raise Refusal(answer, "no")
    except Refusal as refusal:
        told = refusal
    if told is None:
        return None
    assert (told.retry_after_s in range(1, BURST_S + 1)) == (told.code is Code.RATE_EXCEEDED)
    return told.code


def looked_at(logins: FailedLogins, source: str, times: int) -> int:
    return [comes(logins, source, f"wrong-{number}") for number in range(times)].count(Code.AUTH_INVALID)


def test_so_many_at_once_and_then_so_many_a_second() -> None:
    now = Now()
    logins = FailedLogins(10, clock=now)
    assert looked_at(logins, "a", 500) == 10 * BURST_S + 1
    for _ in range(3):
        now.s += 1
        assert looked_at(logins, "a", 500) == 10
    now.s += 3600
    assert looked_at(logins, "a", 500) == 10 * BURST_S + 1


@pytest.mark.parametrize("source", ["", "a"])
def test_no_limit_and_no_address_are_no_limit(source: str) -> None:
    assert looked_at(FailedLogins(0 if source else 10, clock=Now()), source, 5000) == 5000
    assert [comes(FailedLogins(1, clock=Now()), "a", "") for _ in range(50)] == [Code.AUTH_INVALID] * 50


def test_what_counts_passes_from_an_address_that_is_refused_and_from_all_others() -> None:
    logins = FailedLogins(10, clock=Now())
    assert comes(logins, "a", "good", answer=None) is None
    assert comes(logins, "b", "fenced", answer=Code.HOST_FENCED) == Code.HOST_FENCED
    looked_at(logins, "a", 500)
    assert comes(logins, "a", "new", answer=None) == Code.RATE_EXCEEDED
    assert comes(logins, "a", "good", answer=None) is None
    assert comes(logins, "a", "fenced", answer=Code.HOST_FENCED) == Code.HOST_FENCED
    assert comes(logins, "b", "new", answer=None) is None
    # An expired credential counts as a failure too.
    assert comes(logins, "a", "good", answer=Code.AUTH_EXPIRED) == Code.AUTH_EXPIRED
    assert comes(logins, "a", "good", answer=None) == Code.RATE_EXCEEDED


@pytest.mark.parametrize("answer", [None, Code.PERMISSION_DENIED, Code.ISSUER_UNREACHABLE, Code.HOST_FENCED])
def test_other_refusals_are_no_failures(answer: Code | None) -> None:
    logins = FailedLogins(1, clock=Now())
    assert [comes(logins, "a", f"c{n}", answer=answer) for n in range(200)] == [answer] * 200


def test_a_flood_of_addresses_and_credentials_is_forgotten_and_locks_nobody_out() -> None:
    logins = FailedLogins(10, clock=Now())
    for number in range(2 * ADDRESSES_MAX):
        assert comes(logins, f"a{number}", "wrong") == Code.AUTH_INVALID
    for number in range(KNOWN_MAX + 1000):
        assert comes(logins, "b", f"good-{number}", answer=None) is None
    assert len(logins._spent_until_ns) == ADDRESSES_MAX
    assert len(logins._known) == KNOWN_MAX
    assert comes(logins, "c", "new", answer=None) is None


def test_over_http_it_is_a_problem_and_costs_no_statement(database: Database) -> None:
    app = create_app(database, failed_logins=FailedLogins(1, clock=Now()))
    cloud = Cloud(database, app)
    stranger = TestClient(app, client=("192.0.2.1", 1))
    spare = cloud.operator.post("/v1/hosts", {"name": "h1"})["enroll_token"]
    enrol = {"agent_version": "1", "boot_id": str(uuid4())}
    with cloud.http, stranger:
        for number in range(BURST_S + 1):
            wrong = Caller(stranger, f"vgpu_{number:043}")
            if number % 2:
                wrong.refused(Code.AUTH_INVALID, "POST", "/v1/enroll", enrol)
            else:
                wrong.refused(Code.AUTH_INVALID, "GET", "/v1/tenants")
        for method, path, body in (("GET", "/v1/tenants", None), ("POST", "/v1/enroll", enrol)):
            # Any client can write X-Forwarded-For.
            answer = Caller(stranger, spare)(method, path, body, headers={"X-Forwarded-For": "192.0.2.9"})
            assert (answer.status_code, answer.json()["code"]) == (429, "rate.exceeded")
            assert answer.headers["retry-after"] == "1"
        Caller(stranger, None).refused(Code.AUTH_REQUIRED, "GET", "/v1/tenants")
        assert Caller(stranger, None).get("/v1/health") == {"status": "ok"}
        cloud.operator.get("/v1/tenants")
        Caller(cloud.http, spare).post("/v1/enroll", enrol, status=200)


def test_many_that_come_at_once_are_looked_up_few_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = LookUps(monkeypatch)
    app = create_app(database, failed_logins=FailedLogins(1, clock=Now()))
    with TestClient(app, client=("192.0.2.1", 1)) as stranger, ThreadPoolExecutor(60) as threads:
        told = list(
            threads.map(
                lambda number: Caller(stranger, f"vgpu_{number:043}")("GET", "/v1/tenants").status_code, range(60)
            )
        )
    assert looked.most <= LOOKUPS
    assert told.count(401) == looked.count <= BURST_S + LOOKUPS
    assert told.count(429) == 60 - looked.count


def test_a_network_of_ipv6_counts_as_one_address(database: Database) -> None:
    app = create_app(database, failed_logins=FailedLogins(1, clock=Now()))

    def ask(address: str, number: int) -> str:
        stranger = Caller(TestClient(app, client=(address, 1)), f"vgpu_{number:043}")
        answer = stranger("POST", "/v1/enroll", []) if number % 2 else stranger("GET", "/v1/tenants")
        return str(answer.json()["code"])

    told = [ask(f"2001:db8::{number:x}", number) for number in range(BURST_S + 2)]
    assert told == ["auth.invalid"] * (BURST_S + 1) + ["rate.exceeded"]
    assert ask("2001:db8:0:1::1", 0) == "auth.invalid"


def test_who_enrols_with_a_token_that_does_not_count_counts_whatever_comes_with_it(database: Database) -> None:
    app = create_app(database, failed_logins=FailedLogins(1, clock=Now()))
    with TestClient(app, client=("192.0.2.1", 1)) as stranger:
        told = [Caller(stranger, f"vgpu_{number:043}")("POST", "/v1/enroll", []) for number in range(BURST_S + 2)]
    assert [answer.json()["code"] for answer in told] == ["auth.invalid"] * (BURST_S + 1) + ["rate.exceeded"]


@pytest.mark.parametrize(
    ("shown", "code"), [(b"", "auth.required"), (b"Authorization: Bearer vgpu_no\r\n", "auth.invalid")]
)
def test_who_enrols_without_a_token_that_counts_is_told_before_the_body_is_there(
    shown: bytes, code: str, database: Database
) -> None:
    head = b"POST /v1/enroll HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 999\r\n"

    async def talk() -> bytes:
        async with listening(create_app(database)) as server:
            client = await server.open(head + shown + b"\r\n")
            answer = await client.reader.readuntil(b'"limits": {}}')
            client.writer.transport.abort()
            await server.empty()
            return answer

    assert problem(run(talk()))[:2] == (401, code)


def test_a_served_api_tells_addresses_apart(tmp_path: Path) -> None:
    with serving(tmp_path, failed_logins_per_s=1) as server:

        def ask(address: str, token: str) -> int:
            transport = httpx2.HTTPTransport(local_address=address)
            with httpx2.Client(transport=transport, base_url=server.url, trust_env=False, timeout=60) as http:
                return http.get("/v1/tenants", headers={"Authorization": f"Bearer {token}"}).status_code

        answers = (ask("127.0.0.2", f"vgpu_{number:043}") for number in range(1000))
        assert {next(answers) for _ in range(BURST_S)} == {401}
        assert 429 in answers
        assert ask("127.0.0.3", server.token) == 200
        assert ask("127.0.0.2", server.token) == 200
