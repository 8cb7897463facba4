# SPDX-License-Identifier: Apache-2.0
"""Answers about wrong members and parameters: they name the member and say what is valid."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from vgpumgr_api.edge.faults import WORDS

from tests.api.http.test_problems import AUTH, client_of, problem
from vgpumgr.wire.common import Request
from vgpumgr.wire.problem import Code


@pytest.fixture
def client() -> TestClient:
    return client_of()


def test_every_wrong_member_is_named_with_its_path(client: TestClient) -> None:
    gpu = {"address": "nowhere", "types": [{"id": "ok", "mem_bytes": 1}, {"id": "ok", "mem_bytes": "1"}]}
    said = problem(client.post("/v1/hosts/h1/report", json={"gpus": [gpu], "a b": 1}, headers=AUTH), Code.FIELD_INVALID)
    found = {reason.field: reason.code for reason in said.reasons}
    assert found["$.gpus[0].address"] == "field.invalid"
    assert found["$.gpus[0].types[1].mem_bytes"] == "field.invalid"
    assert found["$.seq"] == "field.missing"
    assert found['$["a b"]'] == "field.unknown"


@pytest.mark.parametrize(
    ("method", "path", "body", "member"),
    [
        ("PATCH", "/v1/hosts/h1", {"labels": {"zone": "a", "Bad Key": "x"}}, '$.labels["Bad Key"]'),
        ("POST", "/v1/slices", {"tenant": "t1", "profile": "p1", "selector": {"Zone": "a"}}, "$.selector.Zone"),
    ],
)
def test_a_wrong_key_is_named_by_the_path_of_its_member(
    client: TestClient, method: str, path: str, body: object, member: str
) -> None:
    said = problem(client.request(method, path, json=body, headers=AUTH), Code.FIELD_INVALID)
    assert [reason.field for reason in said.reasons] == [member]
    assert said.detail.startswith(f"{member}: the key is not a label's key: 1 to 63 characters ")


@pytest.mark.parametrize(
    ("method", "path", "body", "detail"),
    [
        ("POST", "/v1/slices", {"vm": "x"}, "$.vm: no such member; there are affinity, anti_affinity, host, placem"),
        ("POST", "/v1/slices", {"affinity": {"kye": "a"}}, "$.affinity.kye: no such member; there are key, level"),
        ("POST", "/v1/slices:batch", {"slices": [{"hots": "a"}]}, "$.slices[0].hots: no such member; there are affin"),
        ("PATCH", "/v1/quotas/t1", {"share": 5}, "$.share: no such member; there are band, mem_bytes, mode, profiles,"),
        ("POST", "/v1/hosts/h1/report", {"gpus": [{"adress": "a"}]}, "$.gpus[0].adress: no such member; there are ad"),
    ],
)
def test_a_member_that_there_is_not_is_answered_with_those_that_there_are(
    client: TestClient, method: str, path: str, body: object, detail: str
) -> None:
    said = problem(client.request(method, path, json=body, headers=AUTH), Code.FIELD_INVALID)
    told = [f"{reason.field}: {reason.detail}" for reason in said.reasons if reason.code == "field.unknown"]
    assert [each[: len(detail)] for each in told] == [detail]


@pytest.mark.parametrize(
    ("method", "path", "body", "detail"),
    [
        ("GET", "/v1/audit?action=claimed", None, "query.action: not as in slice.claimed: one of epoch, gpu, host, op"),
        ("GET", "/v1/operations?kind=drain", None, "query.kind: not as in slice.claimed: one of epoch, gpu, host, op"),
        ("GET", "/v1/hosts?selector=zone", None, "query.selector: not labels as in zone=a,rack=7, 16 at most"),
        ("GET", "/v1/tenants/Acme", None, "path.name: not a name: 1 to 63 characters a-z, 0-9 and '-', '-' not first"),
        ("GET", "/v1/hosts/a_b/desired", None, "path.host: neither a UUID nor a name: 1 to 63 letters, digits and"),
        ("POST", "/v1/tokens", {"role": "viewer", "scopes": ["slice:read"]}, "$.scopes[0]: not a scope as in slices:r"),
        ("PATCH", "/v1/tenants/t1", {"external_id": "a\n"}, "$.external_id: not an external id: 1 to 255 printable"),
        ("PATCH", "/v1/hosts/h1", {"labels": {"zone": "a b"}}, "$.labels.zone: not a label's value: 1 to 63 letters,"),
    ],
)
def test_what_a_text_should_be_is_said_in_words(
    client: TestClient, method: str, path: str, body: object, detail: str
) -> None:
    said = problem(client.request(method, path, json=body, headers=AUTH), Code.FIELD_INVALID)
    assert said.detail.startswith(detail)


def test_for_each_pattern_of_a_body_there_are_words() -> None:
    found = {pattern for model in _bodies(Request) for pattern in _patterns(model.model_json_schema())}
    assert len(found) > 3
    assert found <= set(WORDS)


def _bodies(model: type[Request]) -> Iterator[type[Request]]:
    for each in model.__subclasses__():
        yield each
        yield from _bodies(each)


def _patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for each in schema:
            yield from _patterns(each)
    elif isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        yield from schema.get("patternProperties", ())
        for each in schema.values():
            yield from _patterns(each)


def test_no_parameter_is_answered_with_a_pattern(client: TestClient) -> None:
    asked = 0
    for path, item in client.get("/openapi.json").json()["paths"].items():
        for method, operation in item.items():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "query" and [*_patterns(parameter["schema"])]:
                    response = client.request(method, f"{path}?{parameter['name']}=%0A", headers=AUTH)
                    assert "pattern" not in problem(response, Code.FIELD_INVALID).detail
                    asked += 1
    assert asked > 5


@pytest.mark.parametrize("state", ["maintenance", "draining", "gone", 5])
def test_a_host_state_that_no_patch_makes_is_refused_with_how_it_comes(client: TestClient, state: object) -> None:
    said = problem(client.patch("/v1/hosts/h1", json={"state": state}, headers=AUTH), Code.FIELD_INVALID)
    assert said.detail == "$.state: not ready or cordoned; for other states, POST to the host's :maintenance or :drain"


def test_a_thousand_wrong_members_make_a_short_answer(client: TestClient) -> None:
    response = client.post("/v1/tenants", json={"x" * 300 + str(n): n for n in range(1000)}, headers=AUTH)
    said = problem(response, Code.FIELD_INVALID)
    assert "1001 fields" in said.detail
    assert len(response.content) < 10_000
