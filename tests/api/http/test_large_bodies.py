# SPDX-License-Identifier: Apache-2.0
"""A body far above a route's limit costs no more than noticing that; the largest valid body is accepted."""

import json
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.testclient import TestClient
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge.reader import LONG_BYTES

from tests.api.http.cloud import MERGE_PATCH
from tests.api.http.test_problems import AUTH, JSON, client_of, problem
from vgpumgr.wire.problem import Code, Problem
from vgpumgr.wire.resources import BATCH_MAX

NAMES = {"name": "n1", "host": "n1", "tenant": "n1"}
IDS = dict.fromkeys(("slice_id", "gpu_id", "operation_id"), UUID(int=1))
CLAIM = {"tenant": "t1", "profile": "p1"}


def taking() -> Iterator[Any]:
    """The method and path of each route that takes a body."""
    for route in create_app(Database("sqlite:///nowhere")).routes:
        if isinstance(route, APIRoute) and route.body_field is not None:
            path = route.path_format.format(**NAMES, **IDS)
            yield from (pytest.param(method, path, id=route.name) for method in route.methods or ())


def members(count: int) -> bytes:
    return b"{" + b",".join(b'"%x":0' % number for number in range(count)) + b"}"


class Made:
    """Counts how often bodies are parsed and validated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parsed = self.validated = 0
        loads, validate = json.loads, TypeAdapter.validate_python

        def parse(*args: Any, **options: Any) -> Any:
            self.parsed += 1
            return loads(*args, **options)

        def compare(*args: Any, **options: Any) -> Any:
            self.validated += 1
            return validate(*args, **options)

        monkeypatch.setattr(json, "loads", parse)
        monkeypatch.setattr(TypeAdapter, "validate_python", compare)


@pytest.fixture
def client() -> TestClient:
    return client_of()


@pytest.mark.parametrize(("method", "path"), [*taking()])
def test_nothing_is_made_of_a_body_with_far_too_many_members(
    method: str, path: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = members({"/v1/enroll": 7_000, "/v1/hosts/n1/report": 750_000}.get(path, 105_000))
    headers = AUTH | (MERGE_PATCH if method == "PATCH" else JSON)
    made = Made(monkeypatch)
    response = client.request(method, path, content=body, headers=headers)
    assert (made.parsed, made.validated) == (0, 0)
    monkeypatch.undo()
    assert "far more members" in problem(response, Code.BODY_INVALID).detail


@pytest.mark.parametrize("body", [b"[" * 65_000, b"[" + b"0," * 32_000 + b"0]", b'{"a":[' + b"{}," * 20_000 + b"{}]}"])
def test_elements_count_as_members_do(body: bytes, client: TestClient) -> None:
    for encoded in (body, body.decode().encode("utf-16")):
        said = problem(client.post("/v1/tenants", content=encoded, headers=AUTH | JSON), Code.BODY_INVALID)
        assert "far more members" in said.detail


def test_a_body_is_parsed_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(monkeypatch)
    client.post("/v1/slices", content=json.dumps(CLAIM | {"vm_uuid": "\u00e4"}), headers=AUTH | JSON)
    assert made.parsed == 1


def test_faults_are_named_unless_there_are_very_many() -> None:
    """Each claim of a batch may have a fault."""

    def told(faults: int) -> Problem:
        body = {"slices": [CLAIM | {f"m{number}": 0 for number in range(faults)}] * BATCH_MAX}
        return problem(client_of().post("/v1/slices:batch", json=body, headers=AUTH), Code.FIELD_INVALID)

    some, many = told(1), told(25)
    assert some.detail.startswith(f"{BATCH_MAX} fields are not acceptable, the first is $.slices[0].m0: ")
    assert [reason.field for reason in some.reasons[:2]] == ["$.slices[0].m0", "$.slices[1].m0"]
    assert many.detail.startswith(f"{25 * BATCH_MAX} fields are not acceptable")
    assert many.reasons == []


LONG_FAULTS = {"slices": [CLAIM | {"colour": "x" * 400}] * BATCH_MAX}


def test_a_long_body_is_looked_at_once_and_never_in_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    validate = TypeAdapter.validate_python

    def look(adapter: TypeAdapter[Any], value: Any, *args: Any, **options: Any) -> Any:
        if isinstance(value, dict):  # other values cost nothing
            looks.append(threading.current_thread().name)
        return validate(adapter, value, *args, **options)

    monkeypatch.setattr(TypeAdapter, "validate_python", look)
    body = json.dumps(LONG_FAULTS)
    assert len(body) > LONG_BYTES
    said = problem(client.post("/v1/slices:batch", content=body, headers=AUTH | JSON), Code.FIELD_INVALID)
    assert said.reasons[0].field == "$.slices[0].colour"
    [thread] = looks
    assert thread.startswith("AnyIO worker")


@pytest.mark.parametrize("body", [{"slices": [CLAIM | {"colour": 1}]}, LONG_FAULTS], ids=["short", "long"])
def test_faults_of_a_body_come_after_those_of_the_rest(client: TestClient, body: Any) -> None:
    path = "/v1/slices:batch?validate_only=maybe"
    said = problem(client.post(path, json=body, headers=AUTH | {"Idempotency-Key": " "}), Code.FIELD_INVALID)
    fields = [reason.field for reason in said.reasons[:3]]
    assert fields == ["query.validate_only", "header.idempotency-key", "$.slices[0].colour"]
