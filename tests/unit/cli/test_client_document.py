# SPDX-License-Identifier: Apache-2.0
"""The client against the committed OpenAPI document: each operation has a method with its parameters and models.

The test calls the methods with made-up arguments. It compares what they send with the document, and makes the answers
from the document.
"""

import inspect
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args, get_type_hints
from uuid import UUID

import httpx2
import pytest
from pydantic import BaseModel

from vgpumgr.client import Client

DOCUMENT = json.loads((Path(__file__).parents[3] / "api/openapi.json").read_text())
OPERATIONS = {
    operation["operationId"]: (method.upper(), path, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
PAGES = {"page_size", "page_token"}
"""Parameters that the client sets itself."""

HEADERS = {"if_match": "if-match", "idempotency_key": "idempotency-key"}
"""The names of arguments that become headers."""

UNTYPED = ("get_versions", "get_health", "get_liveness", "get_openapi")
"""Operations whose answers the client returns unchanged."""


def method_name(operation: str) -> str:
    return re.sub(r"^(list|get)_", "", operation)


def method(operation: str) -> Any:
    return getattr(Client, method_name(operation))


def schema_name(content: dict[str, Any]) -> str:
    return str(content.get("application/json", {}).get("schema", {}).get("$ref", "")).rpartition("/")[2]


def query(operation: dict[str, Any]) -> set[str]:
    return {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"} - PAGES


def path_parameters(operation: dict[str, Any]) -> list[str]:
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]


def header(operation: dict[str, Any], name: str) -> bool:
    return name in {each["name"].lower() for each in operation.get("parameters", ()) if each["in"] == "header"}


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


SAMPLES = ("a", "a1", "slices:read", "0000:00:10.0", "10de:2330")
FORMATS = {"uuid": str(UUID(int=7)), "date-time": "2026-11-22T00:00:00Z"}


def sample(schema: dict[str, Any]) -> Any:
    """Return a value that a schema allows."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return sample(schema["anyOf"][0])
    if "enum" in schema:
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    match schema.get("type"):
        case "object":
            return {name: sample(each) for name, each in schema.get("properties", {}).items()}
        case "array":
            return [sample(schema["items"])] * max(schema.get("minItems", 1), 1)
        case "integer" | "number":
            return int(schema.get("minimum", 1))
        case "boolean":
            return True
        case "null":
            return None
    return text(schema)


def text(schema: dict[str, Any]) -> str:
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    pattern = schema.get("pattern", "")
    fitting = [each for each in (*SAMPLES, *re.findall(r"[a-z]+", pattern)) if re.search(pattern, each)]
    return fitting[0] if fitting else "a"


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_has_its_method_with_its_parameters_and_models(name: str) -> None:
    operation = OPERATIONS[name][2]
    signature = inspect.signature(method(name))
    hints = get_type_hints(method(name))
    given = [each for each in signature.parameters.values() if each.name != "self"]
    named = {each.name for each in given if each.kind is each.KEYWORD_ONLY}
    ordered = [each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert len(given) == len(named) + len(ordered), "anything goes, which nobody can check"
    extra = {name for name, sent in HEADERS.items() if header(operation, sent)}
    assert named == query(operation) | extra
    body = schema_name(operation.get("requestBody", {}).get("content", {}))
    assert ordered[: len(path_parameters(operation))] == path_parameters(operation)
    assert len(ordered) == len(path_parameters(operation)) + bool(body)
    if body:
        assert hints[ordered[-1]].__name__ == body

    answers = {code: each for code, each in operation["responses"].items() if code.startswith("2")}
    answered = {schema_name(each.get("content", {})) for each in answers.values()} - {""}
    shown = hints["return"]
    if getattr(shown, "__origin__", None) is Iterator:
        (item,) = get_args(shown)
        assert answered in ({f"Page_{item.__name__}_"}, {f"{item.__name__}Page"}, set())
    elif getattr(shown, "__origin__", None) is list:
        (item,), (wrapper,) = get_args(shown), answered
        members = DOCUMENT["components"]["schemas"][wrapper]["properties"].values()
        assert [each["items"]["$ref"].rpartition("/")[2] for each in members] == [item.__name__]
    elif name not in UNTYPED:
        models = {each.__name__ for each in get_args(shown) or (shown,) if each is not type(None)}
        assert models == answered


def test_each_public_method_has_its_operation() -> None:
    assert {name for name in dir(Client) if not name.startswith("_")} - {"url", "close"} == set(
        map(method_name, OPERATIONS)
    )


class Recorder:
    """Answers each request from the document, and records the requests."""

    def __init__(self, operation: str) -> None:
        self.requests: list[httpx2.Request] = []
        self._operation = OPERATIONS[operation][2]
        self.client = Client("http://127.0.0.1", "token", transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answers = [(int(code), each) for code, each in self._operation["responses"].items() if code[0] == "2"]
        code, answer = next((each for each in answers if "content" in each[1]), answers[0])
        content = answer.get("content", {})
        if "application/json" not in content:
            return httpx2.Response(code, content=b"id: 0123456789ab-1\n\n" if content else b"")
        return httpx2.Response(code, json=sample(content["application/json"]["schema"]) | {"next_page_token": ""})


def argument(hint: Any, schema: dict[str, Any]) -> Any:
    kinds = get_args(hint) or (hint,)
    if UUID in kinds and str not in kinds:
        return UUID(FORMATS["uuid"])
    value = sample(schema)
    model = next((each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)), None)
    return value if model is None else model.model_validate_json(json.dumps(value))


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_method_sends_is_what_the_document_says(name: str) -> None:
    verb, path, operation = OPERATIONS[name]
    recorder = Recorder(name)
    hints = get_type_hints(method(name))
    schemas = {each["name"]: each["schema"] for each in operation.get("parameters", ())}
    positional = [argument(hints[each], schemas[each]) for each in path_parameters(operation)]
    content = operation.get("requestBody", {}).get("content", {})
    if content:
        body_hint = hints[
            [each for each in inspect.signature(method(name)).parameters if each != "self"][len(positional)]
        ]
        positional.append(argument(body_hint, content["application/json"]["schema"]))
    asked = {each: argument(hints[each], schemas[each]) for each in query(operation)}
    if header(operation, "if-match"):
        asked["if_match"] = 3
    if header(operation, "idempotency-key"):
        asked["idempotency_key"] = "order-4711"
    answer = getattr(recorder.client, method_name(name))(*positional, **asked)
    if name == "watch_events":
        recorder.client._api._sleep = _stop
        with pytest.raises(StopAsking):
            list(answer)
    elif isinstance(answer, Iterator):
        assert len(list(islice(answer, 9))) == 1

    request = recorder.requests[0]
    assert request.method == verb
    expected = re.sub(r"\{\w+\}", "([^/]+)", path)
    assert re.fullmatch(expected, request.url.path), request.url
    sent = set(request.url.params)
    assert sent - PAGES == query(operation)
    assert sent & PAGES <= {each["name"] for each in operation.get("parameters", ())}
    assert (request.headers.get("if-match") == '"3"') is header(operation, "if-match")
    if header(operation, "idempotency-key"):
        assert request.headers["idempotency-key"] == "order-4711"
    if content:
        assert request.headers["content-type"] in content
        assert (
            json.loads(request.content).keys() <= resolved(content["application/json"]["schema"])["properties"].keys()
        )
    else:
        assert request.content == b""


class StopAsking(Exception):  # noqa: N818  # no error
    """Ends a request that would repeat for ever."""


def _stop(_: float) -> None:
    raise StopAsking
