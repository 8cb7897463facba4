# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the routes and completed with what applies to all of them.

`api/openapi.json` is the output of `text`; a test compares the two.
"""

import json
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from vgpumgr.wire.problem import Code, Problem
from vgpumgr_api.edge.headers import JSON, MERGE_PATCH
from vgpumgr_api.edge.openapi import examples, headers
from vgpumgr_api.edge.openapi.problems import Codes, describe, known_codes
from vgpumgr_api.edge.strict import Route

TITLE = "vgpumgr"
VERSION = "v1"


def install(app: FastAPI) -> None:
    """Makes ``app.openapi()`` return this document."""
    app.openapi = lambda: _cached(app)  # type: ignore[method-assign]  # FastAPI's documented way


def text(app: FastAPI) -> str:
    """Returns the document as it is committed: in a stable order, one member per line."""
    return json.dumps(app.openapi(), indent=2, sort_keys=True) + "\n"


def _cached(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = document(app, known_codes())
    return app.openapi_schema


def document(app: FastAPI, codes: Codes) -> dict[str, Any]:
    """Returns a new document. `codes`: the error codes of each operation, by its operationId."""
    made = get_openapi(title=app.title, version=app.version, routes=app.routes, separate_input_output_schemas=False)
    schemas = made["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs"))
    schemas["Problem"] = problem
    made["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    for path, method, route in operations(app):
        operation = made["paths"][path][method]
        operation["operationId"] = route.name
        if Code.GENERATION_REQUIRED.value in codes.get(route.name, ()):
            _require_if_match(operation)
        _complete(operation, method, authenticated=isinstance(route, Route))
        examples.add(operation, path, made["components"])
        headers.add(operation, method, made["components"])
        describe(operation, codes.get(route.name, ()), made["components"])
    return made


def _require_if_match(operation: dict[str, Any]) -> None:
    """Marks If-Match as required. It is optional for FastAPI, so that the handler can answer 428 with a reason."""
    for each in operation["parameters"]:
        if each["name"] == "If-Match":
            each["required"] = True
            said = each["schema"].pop("anyOf")
            each["schema"] |= next(choice for choice in said if choice["type"] != "null")


def operations(app: FastAPI) -> list[tuple[str, str, APIRoute]]:
    """Returns every path, lower-case method and route of the application."""
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    return [(route.path_format, method.lower(), route) for route in routes for method in sorted(route.methods or ())]


def _complete(operation: dict[str, Any], method: str, *, authenticated: bool) -> None:
    operation["responses"].pop("422", None)
    operation["security"] = [{"bearer": []}] if authenticated else []
    if method == "patch":
        content = operation["requestBody"]["content"]
        content[MERGE_PATCH] = content[JSON]
