# SPDX-License-Identifier: Apache-2.0
"""The problems that each operation of the OpenAPI document may answer: the codes of its handler, by status.

The codes are in `codes.json` beside this file. ``make openapi`` finds them in the handlers' source and writes that
file.
"""

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from importlib import resources
from typing import Any

from vgpumgr.wire.problem import MEDIA_TYPE, STATUS, Code
from vgpumgr_api.edge.openapi import headers

CODES_FILE = "codes.json"
ANY = {
    "description": "Refused with another code, which a later release may add; `code` says why",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}

Codes = Mapping[str, Iterable[str]]


def known_codes() -> Codes:
    """Returns the codes of each operation, by its operationId."""
    found: Codes = json.loads(resources.files(__package__).joinpath(CODES_FILE).read_text())
    return found


def describe(operation: dict[str, Any], codes: Iterable[str], components: dict[str, Any]) -> None:
    """Adds an answer to an operation for each problem status. Equal answers are described once."""
    answers = operation["responses"]
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(STATUS[Code(code)], []).append(code)
    for status, each in sorted(by_status.items()):
        name = "-".join([str(status), *each])
        components.setdefault("responses", {})[name] = _answer(status, each) | {
            "headers": headers.of_refusal(components, status)
        }
        answers[str(status)] = {"$ref": f"#/components/responses/{name}"}
    answers["default"] = ANY | {"headers": headers.of_refusal(components)}


def _answer(status: int, codes: list[str]) -> dict[str, Any]:
    told = " or ".join(f"`{code}`" for code in codes)
    schema = {
        "allOf": [{"$ref": "#/components/schemas/Problem"}],
        "properties": {"code": {"enum": codes}, "status": {"enum": [status]}},
    }
    return {"description": f"{HTTPStatus(status).phrase}: {told}", "content": {MEDIA_TYPE: {"schema": schema}}}
