# SPDX-License-Identifier: Apache-2.0
"""The committed OpenAPI document is the one that the API serves, and says what holds for every route."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from vgpumgr_api import document
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database

from tests.api.openapi_changes import changes
from vgpumgr.wire.problem import STATUS, Code

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
        assert "422" not in operation["responses"]
        assert operation["description"], f"{method} {path} does not say what it does"
        open_to_all = (path, method) in PUBLIC | BEARER_OF_ITS_OWN
        assert operation["security"] == ([] if open_to_all else [{"bearer": []}])
    assert len(set(names)) == len(names)


def test_every_reference_of_the_document_leads_somewhere(app: FastAPI) -> None:
    text = json.dumps(app.openapi())
    schemas = app.openapi()["components"]["schemas"]
    assert {each.split('"')[0] for each in text.split("#/components/schemas/")[1:]} <= set(schemas)


def test_the_page_for_users_lists_every_code_with_its_status() -> None:
    page = (ROOT / "docs/rest-api.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `") and line.count("|") == 4]
    listed = {code.strip(" `"): status.strip() for code, status in rows if "." in code or "internal" in code}
    assert listed == {code.value: str(STATUS[code]) for code in Code}
