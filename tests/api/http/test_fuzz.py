# SPDX-License-Identifier: Apache-2.0
"""Requests made from the OpenAPI document, half of them valid. No request makes the API itself fail."""

import json
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.http.cloud import GIB, Caller, Cloud

# PostgreSQL rejects values that SQLite accepts. So most failures can show on PostgreSQL only, and hardly any on SQLite
# only.
pytestmark = pytest.mark.sqlite_long

EXAMPLES = 250
KNOWN = ("acme", "web", "h1", "p1", "0000:03:00.0", "vgpumgr-1g", str(uuid4()))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.text(max_size=70),
    st.sampled_from(KNOWN),
)
JUNK = st.recursive(
    SCALARS, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=9), each, max_size=3)
)


class Requests:
    """Strategies for the operations of one document."""

    def __init__(self, document: dict[str, Any], known: tuple[str, ...]) -> None:
        self.schemas = document["components"]["schemas"]
        self.known = known
        self.operations = [
            (method.upper(), path, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]

    def value(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        """Mostly values that fit `schema`."""
        right = self._right(schema)
        return st.integers(0, 9).flatmap(lambda chance: JUNK if chance == 0 else right)

    def _right(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "$ref" in schema:
            return self._right(self.schemas[schema["$ref"].rpartition("/")[2]])
        if "anyOf" in schema:
            return st.one_of([self.value(each) for each in schema["anyOf"]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "const" in schema:
            return st.just(schema["const"])
        match schema.get("type"):
            case "integer":
                return st.integers(schema.get("minimum", 0), schema.get("maximum", 1 << 40))
            case "boolean":
                return st.booleans()
            case "null":
                return st.none()
            case "array":
                return st.lists(self.value(schema["items"]), max_size=3)
            case "object":
                return self._object(schema)
            case _:
                return self._text(schema)

    def _text(self, schema: dict[str, Any]) -> st.SearchStrategy[str]:
        if schema.get("format") == "uuid":
            return st.uuids().map(str) | st.sampled_from(self.known)
        if "pattern" in schema:
            return st.sampled_from(self.known) | st.from_regex(schema["pattern"], fullmatch=True)
        return st.text(max_size=schema.get("maxLength", 70)) | st.sampled_from(self.known)

    def _object(self, schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        members = {name: self.value(each) for name, each in schema.get("properties", {}).items()}
        required = {name: each for name, each in members.items() if name in schema.get("required", ())}
        optional = {name: each for name, each in members.items() if name not in required}
        return st.fixed_dictionaries(required, optional=optional)

    def body(self, operation: dict[str, Any]) -> st.SearchStrategy[bytes | None]:
        content = operation.get("requestBody", {}).get("content")
        if content is None:
            return st.none()
        right = self.value(content["application/json"]["schema"]).map(lambda value: json.dumps(value).encode())
        return st.integers(0, 9).flatmap(lambda chance: st.binary(max_size=60) if chance == 0 else right)

    @st.composite
    @staticmethod
    def one(draw: st.DrawFn, self: "Requests") -> tuple[str, str, dict[str, str], bytes | None]:
        method, path, operation = draw(st.sampled_from(self.operations))
        query, headers = [], {}
        for parameter in operation.get("parameters", ()):
            wanted = self.value(parameter["schema"])
            name = parameter["name"]
            if parameter["in"] == "path":
                path = path.replace("{" + name + "}", quote(_shown(draw(wanted)), safe=""))
            elif draw(st.booleans()) and parameter["in"] == "query" and name != "wait_s":
                query.append(f"{quote(name)}={quote(_shown(draw(wanted)), safe='')}")
            elif parameter["in"] == "header" and draw(st.booleans()):
                etag = st.integers(0, 9).map(lambda number: f'"{number}"')
                headers[name] = draw(etag | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20))
        patch = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers["Content-Type"] = draw(st.sampled_from([patch] * 9 + ["text/plain"]))
        return method, path + "?" * bool(query) + "&".join(query), headers, draw(self.body(operation))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace").decode()


def test_no_request_makes_the_api_fail(cloud: Cloud) -> None:
    host = cloud.host("h1")
    cloud.operator.post("/v1/profiles", {"name": "p1", "share_permille": 10, "mem_bytes": GIB})
    plenty = {"share_permille": 9000, "mem_bytes": 99 * GIB, "slices": 99}
    acme = cloud.tenant("acme", **plenty)
    cloud.tenant("web", account="acme", **plenty)
    claimed = acme.post("/v1/slices", {"tenant": "web", "profile": "p1"})
    application: Any = cloud.http.app
    application.state.feed.stop()  # event streams end at once
    callers: list[Caller] = [cloud.operator, cloud.operator, acme, host, cloud.nobody]
    requests = Requests(cloud.nobody.get("/openapi.json"), (*KNOWN, claimed["id"], str(host.id)))
    statuses = set()

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(request=Requests.one(requests), caller=st.sampled_from(callers))
    def never_fails(request: tuple[str, str, dict[str, str], bytes | None], caller: Caller) -> None:
        method, path, headers, body = request
        response = caller(method, path, content=body, headers=headers)
        statuses.add(response.status_code)
        assert response.status_code < 500, response.text

    never_fails()
    # Otherwise almost every request got the same refusal.
    assert {200, 401, 403, 404, 422} <= statuses
