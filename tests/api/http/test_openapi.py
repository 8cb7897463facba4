# SPDX-License-Identifier: Apache-2.0
"""The committed OpenAPI document is the one that the API serves, and states what holds for every route."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge.event_stream import POSITION
from vgpumgr_api.edge.headers import ETAG
from vgpumgr_api.edge.openapi import document, problems
from vgpumgr_api.resources.idempotency import KEY

from tests.api import refusable
from tests.api.openapi_changes import CODES, changes
from vgpumgr.wire.problem import MEDIA_TYPE, STATUS, Code

ROOT = Path(__file__).resolve().parents[3]
PUBLIC = {("/", "get"), ("/v1/health", "get"), ("/v1/health/live", "get"), ("/openapi.json", "get")}
BEARER_OF_ITS_OWN = {("/v1/enroll", "post")}


@pytest.fixture
def app() -> FastAPI:
    return create_app(Database("sqlite:///nowhere"))


def test_the_committed_document_is_up_to_date(app: FastAPI) -> None:
    committed = (ROOT / "api/openapi.json").read_text()
    if committed != document.text(app):
        found = "\n".join(map(str, changes(json.loads(committed), app.openapi()))) or "in words only"
        pytest.fail(f"run `make openapi`; what changed:\n{found}", pytrace=False)


def test_the_served_document_is_the_committed_one(app: FastAPI) -> None:
    assert TestClient(app).get("/openapi.json").json() == json.loads((ROOT / "api/openapi.json").read_text())


def test_every_operation_says_how_it_refuses_and_who_may_call_it(app: FastAPI) -> None:
    described: dict[str, Any] = app.openapi()["paths"]
    names = []
    for path, method, _ in document.operations(app):
        operation = described[path][method]
        names.append(operation["operationId"])
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert "HTTPValidationError" not in json.dumps(operation)
        assert operation["description"], f"{method} {path} does not say what it does"
        open_to_all = (path, method) in PUBLIC | BEARER_OF_ITS_OWN
        assert operation["security"] == ([] if open_to_all else [{"bearer": []}])
    assert len(set(names)) == len(names)


def test_the_codes_of_the_document_are_those_that_the_source_leads_to(app: FastAPI) -> None:
    if json.loads(CODES.read_text()) != (found := refusable.codes(app)):
        known = {name: set(each) for name, each in json.loads(CODES.read_text()).items()}
        changed = {name: known.get(name, set()) ^ set(each) for name, each in found.items()}
        pytest.fail(f"run `make openapi`; codes that are new or gone: { {k: v for k, v in changed.items() if v} }")


def test_some_codes_that_are_known_of_operations_are_found(app: FastAPI) -> None:
    """Each code is found in another way: by a helper, a long call chain, a property, an annotated variable, the kind of
    route.
    """
    found = {name: set(each) for name, each in refusable.codes(app).items()}
    for name, some in (
        ("create_slice", {"quota.exceeded", "quota.forbidden", "capacity.none", "reservation.used", "body.too_large"}),
        ("fence", {"host.online", "generation.required", "generation.stale"}),
        ("bind", {"slice.bound", "slice.releasing"}),
        ("get_host", {"auth.expired", "auth.required", "issuer.unreachable", "rate.exceeded", "database.busy"}),
        ("list_ledger", {"usage.expired"}),
        ("get_health", {"database.outdated", "api.stopping"}),
    ):
        assert found[name] >= some, name
    assert "generation.required" not in found["delete_slice"], "what a branch of another caller says"
    assert not found["get_liveness"] & {"auth.required", "database.busy"}
    of_all = set.union(*found.values())
    # These codes belong to no operation: unknown paths and methods.
    assert {code.value for code in Code} - of_all == {"route.unknown", "method.not_allowed"}


def test_an_operation_lists_its_codes_under_their_status(app: FastAPI) -> None:
    document_ = app.openapi()
    for name, codes in json.loads(CODES.read_text()).items():
        [operation] = [
            each for way in document_["paths"].values() for each in way.values() if each["operationId"] == name
        ]
        listed = {
            code: int(status)
            for status, answer in operation["responses"].items()
            if "$ref" in answer
            for code in document_["components"]["responses"][answer["$ref"].rpartition("/")[2]]["content"][MEDIA_TYPE][
                "schema"
            ]["properties"]["code"]["enum"]
        }
        assert listed == {code: STATUS[Code(code)] for code in codes}


def answers_of(document_: dict[str, Any], operation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the answers of an operation by status, each with the description of its headers."""
    known = document_["components"]
    found = {}
    for status, answer in operation["responses"].items():
        said = known["responses"][answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
        found[status] = {
            name: known["headers"][each["$ref"].rpartition("/")[2]] for name, each in said["headers"].items()
        }
    return found


def test_every_answer_declares_its_headers(app: FastAPI) -> None:
    document_ = app.openapi()
    declared: dict[str, set[str]] = {}
    for path in document_["paths"].values():
        for operation in path.values():
            for status, headers in answers_of(document_, operation).items():
                assert headers.keys() >= {"X-Request-Id", "Cache-Control"}
                for name in headers:
                    declared.setdefault(name, set()).add(f"{operation['operationId']} {status}")
                if status == "401":
                    assert headers["WWW-Authenticate"]["required"]
                if status in ("429", "503"):
                    assert headers["Retry-After"]["required"]
                if status in ("200", "404"):
                    assert headers["X-Request-Id"]["required"]
    made = {"tenant", "profile", "host", "token", "slice", "reservation"}
    asked = {"drain_host 202", "rehome_gpu 202", "move_slice 201"}
    assert declared["Location"] == {f"create_{each} 201" for each in made} | asked
    read = {"tenant", "quota", "profile", "host", "gpu", "slice", "reservation", "operation"}
    assert declared["ETag"] >= {f"get_{each} 200" for each in read}
    assert declared["ETag"] >= {f"create_{each} 201" for each in made - {"token"}}
    assert not declared["ETag"] & {"create_slice 200", "list_slices 200", "get_desired 200", "bind 200"}
    assert declared["X-Accel-Buffering"] == {"watch_events 200"}
    assert {each.split()[1] for each in declared["Allow"]} == {"default"}


def _form(schema: dict[str, Any]) -> str:
    return str(schema.get("anyOf", [schema])[0]["pattern"])


def test_if_match_is_required_where_nothing_is_done_without_it(app: FastAPI) -> None:
    codes, needed = problems.known_codes(), {}
    for path in app.openapi()["paths"].values():
        for operation in path.values():
            for each in operation.get("parameters", ()):
                if each["name"] == "If-Match":
                    needed[operation["operationId"]] = (each["required"], "anyOf" in each["schema"])
    assert needed == {name: (True, False) if "generation.required" in codes[name] else (False, True) for name in needed}
    assert len([name for name, (required, _) in needed.items() if required]) == 12


def test_headers_of_requests_have_the_form_that_is_enforced(app: FastAPI) -> None:
    forms: dict[str, set[str]] = {}
    for path in app.openapi()["paths"].values():
        for operation in path.values():
            for each in operation.get("parameters", ()):
                if each["in"] == "header":
                    forms.setdefault(each["name"], set()).add(_form(each["schema"]))
    assert forms == {
        "Idempotency-Key": {f"^{KEY.pattern}$"},
        "If-Match": {ETAG},
        "last-event-id": {f"^({POSITION})?$"},
    }


def test_every_reference_of_the_document_leads_somewhere(app: FastAPI) -> None:
    text = json.dumps(app.openapi())
    for kind in ("schemas", "headers", "responses", "examples"):
        known = app.openapi()["components"][kind]
        assert {each.split('"')[0] for each in text.split(f"#/components/{kind}/")[1:]} <= set(known)


def test_the_page_for_users_lists_every_code_with_its_status() -> None:
    page = (ROOT / "docs/rest-api.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `") and line.count("|") == 4]
    listed = {code.strip(" `"): status.strip() for code, status in rows if "." in code or "internal" in code}
    assert listed == {code.value: str(STATUS[code]) for code in Code}
