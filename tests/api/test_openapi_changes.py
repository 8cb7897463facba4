# SPDX-License-Identifier: Apache-2.0
"""Changes to the committed OpenAPI document, and which of them break a client."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.api.openapi_changes import ALWAYS_ENFORCED, COMMITTED, MATCHED_NOTHING, RELEASED, changes

DOCUMENT: dict[str, Any] = json.loads(COMMITTED.read_text())
Edit = Callable[[dict[str, Any]], object]


def operation(document: dict[str, Any], path: str, method: str) -> Any:
    return document["paths"][path][method]


def schema(document: dict[str, Any], name: str) -> Any:
    return document["components"]["schemas"][name]


def parameter(document: dict[str, Any], path: str, name: str) -> Any:
    (found,) = (each for each in operation(document, path, "get")["parameters"] if each["name"] == name)
    return found


def found(edit: Edit) -> dict[str, bool]:
    """Returns the changes in an edited document: their texts, and whether they break clients."""
    edited = copy.deepcopy(DOCUMENT)
    edit(edited)
    return {change.text: change.breaks for change in changes(DOCUMENT, edited)}


def test_the_same_is_no_change() -> None:
    assert found(lambda _: None) == {}


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda d: d["paths"].pop("/v1/gpus"), "GET /v1/gpus: gone"),
        (
            lambda d: operation(d, "/v1/gpus", "get").update(operationId="x"),
            "GET /v1/gpus: operationId is x, was list_gpus",
        ),
        (lambda d: operation(d, "/v1/gpus", "get")["parameters"].clear(), "GET /v1/gpus query.host: gone"),
        (lambda d: parameter(d, "/v1/gpus", "host").update(required=True), "GET /v1/gpus query.host: needed now"),
        (
            lambda d: parameter(d, "/v1/gpus", "page_token")["schema"].update(maxLength=9),
            "GET /v1/gpus query.page_token: maxLength 9, was 1024",
        ),
        (
            lambda d: parameter(d, "/v1/gpus", "page_size")["schema"].update(type="string"),
            "GET /v1/gpus query.page_size: of another type, string, was integer",
        ),
        (
            lambda d: operation(d, "/v1/gpus", "get")["parameters"].append(
                {"in": "query", "name": "x", "required": True, "schema": {}}
            ),
            "GET /v1/gpus query.x: new, and needed",
        ),
        (
            lambda d: operation(d, "/v1/tenants", "post")["responses"].pop("201"),
            "POST /v1/tenants: no answer 201 any more",
        ),
        (lambda d: schema(d, "Tenant")["properties"].pop("kind"), "POST /v1/tenants 200 .kind: gone"),
        (lambda d: schema(d, "Tenant")["required"].remove("kind"), "POST /v1/tenants 200 .kind: may be missing now"),
        (
            lambda d: schema(d, "TenantCreate")["required"].append("account"),
            "POST /v1/tenants body .account: needed now",
        ),
        (lambda d: schema(d, "TenantCreate")["properties"].pop("account"), "POST /v1/tenants body .account: gone"),
        (
            lambda d: schema(d, "TenantCreate")["properties"]["name"].update(pattern="x"),
            "POST /v1/tenants body .name: pattern x, was ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        ),
        (lambda d: schema(d, "TokenRole")["enum"].remove("viewer"), "POST /v1/tokens body .role: no viewer any more"),
        (
            lambda d: schema(d, "Token")["properties"]["id"].update(anyOf=[{"type": "string"}, {"type": "null"}]),
            "GET /v1/tokens 200 .items[] .id: may be null now",
        ),
        (
            lambda d: operation(d, "/v1/tenants", "post").pop("requestBody"),
            "POST /v1/tenants: no body now",
        ),
        (
            lambda d: operation(d, "/v1/tenants", "post")["responses"]["201"]["headers"].pop("Location"),
            "POST /v1/tenants 201 header.Location: gone",
        ),
        (
            lambda d: d["components"]["headers"]["ETag"].update(required=False),
            "POST /v1/tenants 201 header.ETag: may be missing now",
        ),
    ],
)
def test_what_breaks_a_client(edit: Edit, text: str) -> None:
    said = found(edit)
    assert said[text] is True, said


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda d: d["paths"].update({"/v1/x": {"get": operation(d, "/v1/gpus", "get")}}), "GET /v1/x: new"),
        (
            lambda d: operation(d, "/v1/gpus", "get")["parameters"].append({"in": "query", "name": "x", "schema": {}}),
            "GET /v1/gpus query.x: new",
        ),
        (
            lambda d: parameter(d, "/v1/gpus", "page_token")["schema"].update(maxLength=2048),
            "GET /v1/gpus query.page_token: maxLength 2048, was 1024",
        ),
        (lambda d: schema(d, "Tenant")["properties"].update(x={}), "POST /v1/tenants 200 .x: new"),
        (lambda d: schema(d, "TenantCreate")["properties"].update(x={}), "POST /v1/tenants body .x: new"),
        (lambda d: schema(d, "TokenRole")["enum"].append("guest"), "POST /v1/tokens body .role: guest is new"),
        (
            lambda d: operation(d, "/v1/gpus", "get")["responses"]["200"]["headers"].update({"X-Y": {"schema": {}}}),
            "GET /v1/gpus 200 header.X-Y: new",
        ),
    ],
)
def test_what_a_client_survives(edit: Edit, text: str) -> None:
    said = found(edit)
    assert said[text] is False, said
    assert not any(said.values())


def test_what_was_always_enforced_may_be_declared() -> None:
    """Nothing else may be declared, nor may the limit become narrower later."""
    bare = copy.deepcopy(DOCUMENT)
    for path in bare["paths"].values():
        for each in path.values():
            for sent in each.get("parameters", ()):
                if sent["in"] == "header" or sent["name"] in ("kind", "action"):
                    sent["schema"].get("anyOf", [{}])[0].pop("pattern", None)
    schema(bare, "Report")["properties"]["refusals"]["items"].pop("maxLength")
    declared = changes(bare, DOCUMENT)
    for place in ALWAYS_ENFORCED | MATCHED_NOTHING:
        assert any(f" {change.text}".partition(": ")[0].endswith(f" {place}") for change in declared), place
    assert [str(each) for each in declared if each.breaks] == []

    for wrong, former in (({"pattern": "^a$"}, bare), ({"pattern": "^a$"}, DOCUMENT), ({"maxLength": 9}, DOCUMENT)):
        narrower = copy.deepcopy(former)
        (key,) = (each for each in operation(narrower, "/v1/tenants", "post")["parameters"] if each["in"] == "header")
        key["schema"]["anyOf"][0].update(wrong)
        (change,) = changes(former, narrower)
        assert change.breaks, change


def test_a_code_that_is_new_or_gone_breaks_nobody() -> None:
    said = found(lambda d: operation(d, "/v1/gpus", "get")["responses"].pop("429"))
    assert said == {"GET /v1/gpus: refuses with rate.exceeded no more": False}
    gone = found(lambda d: d["components"]["responses"]["429-rate.exceeded"].update(content={}))
    assert gone["GET /v1/gpus: refuses with rate.exceeded no more"] is False


def test_nothing_that_was_released_is_broken() -> None:
    """BREAKING=1 does not change that: clients of the last release keep working."""
    assert [str(each) for each in changes(json.loads(RELEASED.read_text()), DOCUMENT) if each.breaks] == []


def test_text_for_people_may_change() -> None:
    assert found(lambda d: operation(d, "/v1/gpus", "get").update(description="other words")) == {}
