# SPDX-License-Identifier: Apache-2.0
"""Every error is answered with a problem document. The test makes up the database's outcomes."""

import gzip
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from httpx2 import Response
from sqlalchemy import create_engine
from starlette.testclient import TestClient
from vgpumgr_api.actors import Actor, new_secret
from vgpumgr_api.app import create_app
from vgpumgr_api.db.clock import machine_clock
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.trouble import Condition
from vgpumgr_api.edge.envelope import BODY_MAX, ENROLL_MAX

from tests.api.http.cloud import GIB, Cloud
from vgpumgr.wire.fleet import REPORT_BYTES_MAX, ReportedSlice
from vgpumgr.wire.problem import STATUS, Code, Problem
from vgpumgr.wire.resources import TokenRole

JSON = {"Content-Type": "application/json"}
TOKEN = "Zm9v.secret-of-a-caller"
AUTH = {"Authorization": f"Bearer {TOKEN}"}


class MadeUp:
    """A database whose transactions end like `outcome`; every caller is an operator. Its engine is never used."""

    def __init__(self, outcome: Callable[[], object]) -> None:
        self.outcome = outcome
        self.engine = create_engine("sqlite://")
        self.server_clock = None
        self.clock = machine_clock
        self.condition = Condition()

    def run(self, *_: object, **__: object) -> object:
        return self.outcome()

    def require_usable(self) -> None:
        pass


def operator() -> Actor:
    return Actor(token_id=UUID(int=1), role=TokenRole.OPERATOR, name="operator")


def client_of(outcome: Callable[[], object] = operator) -> TestClient:
    database: Any = MadeUp(outcome)
    return TestClient(create_app(database))


@pytest.fixture
def client() -> TestClient:
    return client_of()


def problem(response: Response, code: Code) -> Problem:
    """Checks what all problems have in common."""
    assert response.headers["content-type"] == "application/problem+json"
    said = Problem.model_validate_json(response.content)
    assert said.code == code, response.text
    assert said.status == response.status_code == STATUS[code]
    assert said.request_id == response.headers["x-request-id"]
    assert said.detail
    assert "\n" not in said.detail
    assert "Traceback" not in response.text
    return said


@pytest.mark.parametrize("path", ["/nope", "/v1", "/v1/", "/v1/tenants/", "/v2/tenants", "/v1/hosts/a/b", "/docs"])
def test_unknown_path(client: TestClient, path: str) -> None:
    problem(client.get(path, headers=AUTH), Code.ROUTE_UNKNOWN)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/tenants", "GET, HEAD, OPTIONS, POST"),
        ("PUT", "/v1/hosts/h1", "DELETE, GET, HEAD, OPTIONS, PATCH"),
        ("POST", "/v1/health", "GET, HEAD, OPTIONS"),
        ("HEAD", "/v1/events/watch", "GET, OPTIONS"),
        ("GET", "/v1/enroll", "OPTIONS, POST"),
        ("HEAD", "/v1/enroll", "OPTIONS, POST"),
        ("BREW", "/v1/quotas/t1", "GET, HEAD, OPTIONS, PATCH"),
        ("GET", "/v1/hosts/h1:drain", "OPTIONS, POST"),
        ("PATCH", "/v1/hosts/h1:cordon", "OPTIONS, POST"),
        ("DELETE", "/v1/hosts/h1%3Afence", "OPTIONS, POST"),
        ("GET", "/v1/slices:batch", "OPTIONS, POST"),
    ],
)
def test_wrong_method_names_all_right_ones(client: TestClient, method: str, path: str, allowed: str) -> None:
    response = client.request(method, path, headers=AUTH)
    assert response.headers["allow"] == allowed
    if method != "HEAD":
        problem(response, Code.METHOD_NOT_ALLOWED)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/hosts/h1:drian"),
        ("POST", "/v1/hosts/h1%3Adrian"),
        ("POST", "/v1/hosts/h1:"),
        ("PUT", "/v1/hosts/h1:drian"),
        ("POST", f"/v1/operations/{UUID(int=1)}:cancle"),
        ("POST", "/v1/slices:batsh"),
        ("POST", f"/v1/hosts/h1/slices/{UUID(int=1)}:bnid"),
        ("POST", "/v1/tenants/a:delete"),
    ],
)
def test_a_mistyped_action_is_an_unknown_path(client: TestClient, method: str, path: str) -> None:
    response = client.request(method, path, headers=AUTH)
    problem(response, Code.ROUTE_UNKNOWN)
    assert "allow" not in response.headers


def test_an_action_that_there_is_says_how_it_is_asked_for(client: TestClient) -> None:
    response = client.put("/v1/hosts/h1:drain", headers=AUTH)
    problem(response, Code.METHOD_NOT_ALLOWED)
    assert response.headers["allow"] == "OPTIONS, POST"
    problem(client.post("/v1/hosts/h1", headers=AUTH), Code.METHOD_NOT_ALLOWED)
    problem(client.post("/v1/hosts/a:b/report:x/usage", headers=AUTH), Code.ROUTE_UNKNOWN)


def test_no_token_is_told_how_before_anything_else_is_looked_at(client: TestClient) -> None:
    response = client.post("/v1/slices?nonsense=1", content=b"{", headers={"Content-Type": "text/plain"})
    problem(response, Code.AUTH_REQUIRED)
    assert response.headers["www-authenticate"] == 'Bearer realm="vgpumgr"'


@pytest.mark.parametrize("value", ["Basic YTpi", "Bearer", "Bearer a b", "Bearer \xe9", "Bearer " + "x" * 513, "x"])
def test_what_is_not_a_bearer_token_is_refused(client: TestClient, value: str) -> None:
    response = client.get("/v1/tenants", headers=[(b"Authorization", value.encode("latin-1"))])
    problem(response, Code.AUTH_INVALID)
    assert response.headers["www-authenticate"] == 'Bearer realm="vgpumgr", error="invalid_token"'


def test_two_tokens_are_refused(client: TestClient) -> None:
    problem(client.get("/v1/tenants", headers=[("Authorization", "Bearer a")] * 2), Code.AUTH_INVALID)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"7",
        b"\xff\xfe\xfd",
        b'{"name": "\xff"}',
        b"[" * 100_000,
        b'{"a":' * 50_000 + b'"\\u0041"',
        b'{"name": ' + b"9" * 5000 + b"}",
        b'{"name": "a\\u0000b"}',
        b'{"name": "\\ud800"}',
        '{"name": "\\ud800"}'.encode("utf-16"),
        b'{"\\udc00": 1}',
        b"name=x",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_malformed_body(client: TestClient, body: bytes) -> None:
    problem(client.post("/v1/tenants", content=body, headers=AUTH | JSON), Code.BODY_INVALID)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "this request needs a body; send one JSON object"),
        (b"[]", "the body is JSON and no object; send one JSON object"),
        (b"null", "the body is JSON and no object; send one JSON object"),
        (b'{"name": }', "the body is not JSON: Expecting value, line 1 column 10"),
        (b'{"name": "\xff"}', "the body is not JSON in UTF-8"),
        (b'{"name": ' + b"9" * 5000 + b"}", "the body is nested too deeply, or has a number of too many digits"),
    ],
)
def test_of_a_malformed_body_it_is_said_what_is_wrong(client: TestClient, body: bytes, said: str) -> None:
    assert problem(client.post("/v1/tenants", content=body, headers=AUTH | JSON), Code.BODY_INVALID).detail == said


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "application/merge-patch+json", ""]
)
def test_wrong_media_type(client: TestClient, kind: str) -> None:
    headers = AUTH | ({"Content-Type": kind} if kind else {})
    said = problem(client.post("/v1/tenants", content=b"{}", headers=headers), Code.MEDIA_TYPE_UNSUPPORTED)
    assert "application/json" in said.detail


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "identity, gzip", "br", "x"])
def test_a_body_that_is_compressed_is_not_taken_for_json_that_is_damaged(client: TestClient, coding: str) -> None:
    headers = AUTH | JSON | {"Content-Encoding": coding}
    response = client.post("/v1/tenants", content=gzip.compress(b'{"name": "acme"}'), headers=headers)
    assert "without Content-Encoding" in problem(response, Code.MEDIA_TYPE_UNSUPPORTED).detail
    assert response.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("coding", ["", "identity", "Identity"])
def test_a_body_that_says_that_it_is_not_compressed_is_read(client: TestClient, coding: str) -> None:
    headers = AUTH | JSON | {"Content-Encoding": coding}
    problem(client.post("/v1/tenants", content=b"{", headers=headers), Code.BODY_INVALID)


def test_a_patch_is_asked_for_as_a_merge_patch(client: TestClient) -> None:
    response = client.patch("/v1/quotas/t1", content=b"{}", headers=AUTH | {"Content-Type": "text/json"})
    assert "application/merge-patch+json" in problem(response, Code.MEDIA_TYPE_UNSUPPORTED).detail


def test_a_body_that_says_it_is_too_large_is_not_read(client: TestClient) -> None:
    response = client.post("/v1/tenants", content=b" " * (BODY_MAX + 1), headers=AUTH | JSON)
    problem(response, Code.BODY_TOO_LARGE)
    assert response.headers["connection"] == "close"


def test_a_report_may_be_as_long_as_what_it_names(client: TestClient) -> None:
    longest = ReportedSlice(
        id=UUID(int=1),
        generation=(1 << 63) - 1,
        present=True,
        open=True,
        vm_uuid=UUID(int=1),
        applied_permille=1000,
        run_ns=(1 << 63) - 1,
        items=(1 << 63) - 1,
        error="x" * 200,
    )
    assert 10_000 * (len(longest.model_dump_json()) + 2) < REPORT_BYTES_MAX
    path = "/v1/hosts/h1/report"
    problem(client.post(path, content=b"{}".rjust(REPORT_BYTES_MAX), headers=AUTH | JSON), Code.FIELD_INVALID)
    response = client.post(path, content=b"{}".rjust(REPORT_BYTES_MAX + 1), headers=AUTH | JSON)
    assert "8 MiB" in problem(response, Code.BODY_TOO_LARGE).detail
    problem(client.post(f"{path}s", content=b"{}".rjust(BODY_MAX + 1), headers=AUTH | JSON), Code.BODY_TOO_LARGE)


def test_an_enrolment_is_short(client: TestClient) -> None:
    longest = {"agent_version": "x" * 64, "boot_id": str(UUID(int=1)), "claims_of": str(UUID(int=1)), "csr": "-" * 8192}
    assert len(json.dumps(longest).replace("-", "\\ud83d\\ude0d")) < ENROLL_MAX
    problem(client.post("/v1/enroll", content=b"{}".rjust(ENROLL_MAX), headers=AUTH | JSON), Code.FIELD_INVALID)
    response = client.post("/v1/enroll", content=b"{}".rjust(ENROLL_MAX + 1), headers=AUTH | JSON)
    assert "128 KiB" in problem(response, Code.BODY_TOO_LARGE).detail


def test_a_body_that_turns_out_too_large_is_refused(client: TestClient) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(BODY_MAX // 65536 + 1):
            yield b" " * 65536

    problem(client.post("/v1/tenants", content=pieces(), headers=AUTH | JSON), Code.BODY_TOO_LARGE)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/slices?tennant=a", "query.tennant"),
        ("/v1/slices?tenant=a&tenant=b", "query.tenant"),
        ("/v1/slices?tenant=A", "query.tenant"),
        ("/v1/slices?tenant=", "query.tenant"),
        ("/v1/slices?vm_uuid=x", "query.vm_uuid"),
        ("/v1/slices?state=gone", "query.state"),
        ("/v1/slices?page_size=0", "query.page_size"),
        ("/v1/slices?page_size=many", "query.page_size"),
        ("/v1/slices?page_size=" + "9" * 5000, "query.page_size"),
        ("/v1/events?after=-1", "query.after"),
        ("/v1/events?after=9223372036854775808", "query.after"),
        ("/v1/hosts/h1/desired?wait_s=61&generation=1", "query.wait_s"),
        ("/v1/hosts/h1/desired?generation=1", "query.epoch"),
        ("/v1/hosts/h%20/desired", "path.host"),
        ("/v1/hosts/" + "h" * 64, "path.name"),
        ("/v1/tenants/A", "path.name"),
        ("/v1/tenants/a%00", "path.name"),
        ("/v1/tenants/a%0a", "path.name"),
        ("/v1/slices/x", "path.slice_id"),
        ("/v1/health?x=1", "query.x"),
    ],
)
def test_parameters_are_as_strict_as_bodies(client: TestClient, path: str, field: str) -> None:
    said = problem(client.get(path, headers=AUTH), Code.FIELD_INVALID)
    assert field in [reason.field for reason in said.reasons]
    assert field in said.detail


def test_a_flag_is_true_or_false_as_the_document_says(cloud: Cloud) -> None:
    asked = set()
    for path, item in cloud.nobody.get("/openapi.json")["paths"].items():
        for method, operation in item.items():
            for flag in operation.get("parameters", ()):
                if "boolean" not in json.dumps(flag["schema"]):
                    continue
                asked.add(flag["name"])
                body = {} if "requestBody" in operation else None
                for value in ("yes", "on", "1", "t", "True", "TRUE", "0", ""):
                    url = f"{path}?{flag['name']}={value}"
                    said = cloud.operator.refused(Code.FIELD_INVALID, method.upper(), url, body)
                    told = {reason.field: reason.detail for reason in said.reasons}
                    assert told[f"query.{flag['name']}"] == "neither true nor false"
    assert asked == {"validate_only", "online", "enrolled", "fenced", "epoch_confirmed", "present", "expired"}


@pytest.mark.parametrize(
    "value",
    ["3", '"x"', '"-1"', 'W/"3"', "*", '"1", "2"', '"01"', '"' + "9" * 30 + '"', '"3-5F0C8E21B7D94A36"', '"3-5f"', ""],
)
def test_if_match_is_one_etag(client: TestClient, value: str) -> None:
    said = problem(client.delete("/v1/profiles/p1", headers=AUTH | {"If-Match": value}), Code.FIELD_INVALID)
    assert [reason.field for reason in said.reasons] == ["header.if-match"]


@pytest.mark.parametrize("query", ["", "?validate_only=true"])
@pytest.mark.parametrize("value", ["", "a b", "x" * 256, "\xe9"])
def test_an_idempotency_key_is_named_that_is_none(client: TestClient, value: str, query: str) -> None:
    headers = [(name.encode(), text.encode("latin-1")) for name, text in (AUTH | {"Idempotency-Key": value}).items()]
    for path in ("/v1/tenants", "/v1/slices"):
        body = {"name": "t1"} if path == "/v1/tenants" else {"tenant": "t1", "profile": "p1"}
        said = problem(client.post(path + query, json=body, headers=headers), Code.FIELD_INVALID)
        assert [reason.field for reason in said.reasons] == ["header.idempotency-key"]


def test_an_idempotency_key_may_be_any_visible_ascii(cloud: Cloud) -> None:
    first = cloud.operator.post("/v1/tenants", {"name": "t1"}, headers={"Idempotency-Key": "~" * 255})
    assert cloud.operator.post("/v1/tenants", {"name": "t1"}, headers={"Idempotency-Key": "~" * 255}) == first


@pytest.mark.parametrize("name", ["Content-Type", "Idempotency-Key", "Last-Event-ID"])
def test_of_two_headers_not_one_is_chosen(client: TestClient, name: str) -> None:
    value = "application/json" if name == "Content-Type" else "1"
    headers = [("Authorization", AUTH["Authorization"]), ("Content-Type", "application/json"), (name, value)]
    headers += [] if name == "Content-Type" else [(name, value)]
    said = problem(client.post("/v1/tenants", content=b'{"name": "t1"}', headers=headers), Code.FIELD_INVALID)
    assert [(reason.field, reason.detail) for reason in said.reasons] == [
        (f"header.{name.lower()}", "given more than once")
    ]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/hosts/h1:cordon"),
        ("POST", "/v1/hosts/h1:confirm-epoch"),
        ("POST", "/v1/hosts/h1:reenroll"),
        ("DELETE", "/v1/tenants/t1"),
        ("DELETE", "/v1/slices/00000000-0000-0000-0000-000000000001"),
        ("GET", "/v1/slices"),
        ("GET", "/v1/health"),
    ],
)
def test_a_body_where_none_is_read_is_refused(client: TestClient, method: str, path: str) -> None:
    for body in (b'{"validate_only": true}', b"[]", b"x", b"null"):
        said = problem(client.request(method, path, content=body, headers=AUTH | JSON), Code.BODY_INVALID)
        assert "takes no body" in said.detail


def test_an_object_of_nothing_says_nothing_where_no_body_is_read(cloud: Cloud) -> None:
    for body in (b"{}", b" {}\n"):
        answer = cloud.operator("GET", "/v1/tenants", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200, answer.text


def test_to_a_patch_an_idempotency_key_means_nothing(cloud: Cloud) -> None:
    cloud.tenant("acme")
    for slices in (1, 2):
        etag = cloud.operator("GET", "/v1/quotas/acme").headers["etag"]
        sent = {"If-Match": etag, "Idempotency-Key": "k-1"}
        assert cloud.operator.ok("PATCH", "/v1/quotas/acme", 200, {"slices": slices}, headers=sent)["slices"] == slices
        cloud.operator.refused(Code.GENERATION_STALE, "PATCH", "/v1/quotas/acme", {"slices": slices}, headers=sent)


@pytest.mark.parametrize("path", ["/v1/events", "/v1/events/watch"])
def test_an_epoch_that_is_of_no_page_is_told_as_that(client: TestClient, path: str) -> None:
    said = problem(client.get(f"{path}?epoch={UUID(int=1)}", headers=AUTH), Code.FIELD_INVALID)
    assert said.detail == "query.epoch: not the `epoch` of a page of events, which is 12 hexadecimal digits"


def test_an_unexpected_exception_is_logged_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    def outcome() -> object:
        raise ZeroDivisionError("a secret of the house")

    response = client_of(outcome).get("/v1/health", headers={"X-Request-Id": "r-17"})
    problem(response, Code.INTERNAL)
    assert "secret" not in response.text
    assert "ZeroDivisionError" not in response.text
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in logged] == ["request r-17: unexpected"]
    assert logged[0].exc_info is not None


@pytest.mark.parametrize("path", ["/v1/health", "/v1/tenants"])
def test_a_lost_database_is_worth_another_try(path: str, tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/no-such-directory/vgpumgr.db")
    response = TestClient(create_app(database)).get(path, headers={"Authorization": f"Bearer {new_secret()}"})
    problem(response, Code.DATABASE_BUSY)
    assert response.headers["retry-after"] == "1"
    assert str(tmp_path) not in response.text


@pytest.mark.parametrize(("given", "kept"), [("a.B-c_9", True), ("a b", False), ("", False), ("x" * 65, False)])
def test_a_sane_request_id_of_the_client_is_kept(client: TestClient, given: str, kept: bool) -> None:
    response = client.get("/", headers={"X-Request-Id": given})
    assert (response.headers["x-request-id"] == given) is kept
    assert response.headers["x-request-id"]


def test_one_line_of_log_per_request_without_secrets(caplog: pytest.LogCaptureFixture, client: TestClient) -> None:
    caplog.set_level(logging.INFO, logger="vgpumgr_api.access")
    client.get("/v1/nope%0aFORGED%1b?page_token=confidential", headers=AUTH)
    client.get("/v1/slices/x", headers=AUTH)
    lines = [record.getMessage() for record in caplog.records if record.name == "vgpumgr_api.access"]
    assert len(lines) == 2
    assert "GET /v1/nope%0aFORGED%1b 404" in lines[0]
    assert "caller=operator" in lines[1]
    assert not any(word in line for line in lines for word in ("\n", "\x1b", TOKEN, "confidential"))


def test_nothing_may_be_cached(client: TestClient) -> None:
    assert client.get("/").headers["cache-control"] == "no-store"


def test_a_member_that_is_there_twice_is_refused_however_deep(cloud: Cloud) -> None:
    cloud.tenant("acme")
    typed = {"Content-Type": "application/json"}
    for body in (
        '{"name": "a", "name": "b"}',
        '{"name": "a", "x": [{"y": 1, "y": 1}]}',
        '{"name": "a", "\\u006eame": "b"}',
    ):
        answer = cloud.operator("POST", "/v1/tenants", content=body, headers=typed)
        said = Problem.model_validate_json(answer.content)
        assert (answer.status_code, said.code) == (400, Code.BODY_INVALID)
        assert '"y"' in said.detail or '"name"' in said.detail
    assert [each["name"] for each in cloud.operator.get("/v1/tenants")["items"]] == ["acme"]


def test_a_member_is_not_taken_for_the_key_that_it_quotes(cloud: Cloud) -> None:
    said = cloud.operator.refused(Code.FIELD_INVALID, "POST", "/v1/tenants", {"name": "a", "[key]": "body"})
    assert [(each.code, each.field) for each in said.reasons] == [("field.unknown", '$["[key]"]')]
    assert said.reasons[0].detail == "no such member; there are account, external_id, name"


@pytest.mark.parametrize("verb", ["cordon", "drain"])
@pytest.mark.parametrize("body", ["", " \n"])
def test_where_no_body_is_needed_the_type_of_nothing_does_not_matter(cloud: Cloud, verb: str, body: str) -> None:
    cloud.host("h1")
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    sent = form | {"If-Match": cloud.operator("GET", "/v1/hosts/h1").headers["etag"]}
    answer = cloud.operator("POST", f"/v1/hosts/h1:{verb}", content=body, headers=sent)
    assert answer.status_code < 300, answer.text
    if verb == "drain":
        cloud.operator.refused(Code.MEDIA_TYPE_UNSUPPORTED, "POST", f"/v1/hosts/h1:{verb}", content="a=b", headers=sent)


def test_words_that_a_filter_does_not_know_are_answered_with_those_that_it_knows(cloud: Cloud) -> None:
    for about in ("slicee", "slice,", "slice,slice,wombat"):
        said = cloud.operator.refused(Code.FIELD_INVALID, "GET", f"/v1/events?about={about}")
        assert said.detail.startswith("query.about: not one or more of epoch, gpu, host,"), said.detail
    assert cloud.operator.get("/v1/events?about=slice,host")["items"] == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/tenants", {"name": "web", "account": "nope"}, "$.account"),
        ("/v1/tokens", {"role": "tenant", "subject": "nope"}, "$.subject"),
        ("/v1/slices", {"profile": "nope"}, "$.profile"),
        ("/v1/slices", {"tenant": "nope"}, "$.tenant"),
        ("/v1/slices", {"host": "nope"}, "$.host"),
        ("/v1/slices:explain", {"tenant": "nope"}, "$.tenant"),
        ("/v1/slices:explain", {"profile": "nope"}, "$.profile"),
        ("/v1/slices:explain", {"host": "nope"}, "$.host"),
        ("/v1/slices:batch", {"tenant": "nope"}, "$.slices[0].tenant"),
        ("/v1/slices:batch", {"profile": "nope"}, "$.slices[1].profile"),
        ("/v1/slices:batch", {"reservation": str(UUID(int=1))}, "$.slices[1].reservation"),
        ("/v1/reservations", {"tenant": "nope"}, "$.tenant"),
        ("/v1/reservations", {"profile": "nope"}, "$.profile"),
        ("/v1/reservations", {"host": "nope"}, "$.host"),
    ],
)
def test_what_a_body_names_and_is_not_there_is_told_with_its_path(
    cloud: Cloud, path: str, body: dict[str, Any], field: str
) -> None:
    cloud.tenant("acme", share_permille=1000, mem_bytes=GIB, slices=9)
    cloud.profile("half", 500)
    cloud.host("h1")
    good = {"tenant": "acme", "profile": "half"}
    if path == "/v1/slices:batch":
        first = body if "tenant" in body else {}
        body = {"slices": [good | first, good | body]}
    elif path.startswith("/v1/slices"):
        body = good | body
    elif path == "/v1/reservations":
        body = good | {"places": 1, "expires_in_s": 60} | body
    said = cloud.operator.refused(Code.OBJECT_UNKNOWN, "POST", path, body)
    assert [(reason.code, reason.field) for reason in said.reasons] == [(Code.OBJECT_UNKNOWN, field)]


def test_a_claim_with_a_reservation_that_is_over_is_told_that_it_may_be(cloud: Cloud) -> None:
    acme = cloud.tenant("acme", share_permille=1000, mem_bytes=GIB, slices=9)
    cloud.profile("half", 500)
    for path in ("/v1/slices", "/v1/slices:explain"):
        claim = {"tenant": "acme", "profile": "half", "reservation": str(UUID(int=1))}
        said = acme.refused(Code.OBJECT_UNKNOWN, "POST", path, claim)
        assert "it may have expired" in said.detail
        assert [reason.field for reason in said.reasons] == ["$.reservation"]
