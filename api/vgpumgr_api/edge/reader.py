# SPDX-License-Identifier: Apache-2.0
"""Reads the body of a request with bounded work: one parse and one validation.

A model's schema determines how many members and elements its largest valid body has. A body with far more is recognized
by counting characters of its text, and refused before any object is built from it. The model validates every other
body. More than `FAULTS_MAX` errors are not described, because describing errors costs many times more than finding
them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from vgpumgr.wire.problem import Code
from vgpumgr_api.edge.faults import with_members
from vgpumgr_api.errors import Refusal

SPARE = 1024
"""So many excess values still reach validation, so that a client with a misspelt member gets a precise error."""

FAULTS_MAX = 300
"""The maximum number of errors described. A batch may have one in each claim."""

LONG_BYTES = 64 << 10
"""Longer bodies are read in a thread."""

FAULTY = ""
"""FastAPI gets this instead of an invalid body. FastAPI reads an object's attributes, so a model without required
members would accept any object. No model accepts a text, so no endpoint is called.
"""

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


class Faulty:
    """A body with errors: `faults` are pydantic's descriptions of them. `schema`: that of a valid body."""

    def __init__(self, error: ValidationError, schema: Mapping[str, Any]) -> None:
        found = error.errors(include_url=False)
        self.faults = [{**with_members(each, schema), "loc": ("body", *each["loc"])} for each in found]


class ReadRequest(Request):
    """A request whose body was read, so that FastAPI need not read it."""

    def __init__(self, request: Request, body: bytes, value: object) -> None:
        super().__init__(request.scope, request.receive)
        self._read_body = body
        self._value = value

    def with_faults(self, found: RequestValidationError) -> RequestValidationError:
        """Returns FastAPI's errors together with those of the body, which were found earlier."""
        if not isinstance(self._value, Faulty):
            return found
        others = [each for each in found.errors() if each["loc"][0] != "body"]
        return RequestValidationError([*others, *self._value.faults])

    async def body(self) -> bytes:
        return self._read_body

    async def json(self) -> Any:
        return FAULTY if isinstance(self._value, Faulty) else self._value


@dataclass(frozen=True)
class Extent:
    """The maximum size of a valid body. `values`: the members and elements of all its objects and arrays.

    `text`: the characters of strings that may contain JSON's punctuation. Those are strings with a maximum length;
    other strings have patterns that exclude punctuation.
    """

    values: int = 0
    text: int = 0

    def times(self, count: int) -> "Extent":
        """Returns the extent of `count` members or elements like this one."""
        return Extent(count * (1 + self.values), count * self.text)


class Reader:
    """Reads the bodies of one route, which must match `model`."""

    def __init__(self, model: Any) -> None:
        self._model: TypeAdapter[Any] = TypeAdapter(model)
        self._schema = self._model.json_schema()
        self.most = _extent(self._schema, self._schema.get("$defs", {}))

    async def read(self, request: Request, body: bytes) -> ReadRequest:
        """Returns the request with its body as an instance of the model, or as Faulty if invalid. Raises Refusal."""
        value = await run_in_threadpool(self._read, body) if len(body) > LONG_BYTES else self._read(body)
        return ReadRequest(request, body, value)

    def _read(self, body: bytes) -> Any:
        try:
            text = body.decode(json.detect_encoding(body))
            self._refuse_too_many(text)
            value = json.loads(text, object_pairs_hook=_once)
            _refuse_unstorable(text, value)
        except UnicodeDecodeError:
            raise Refusal(Code.BODY_INVALID, "the body is not JSON in UTF-8") from None
        except json.JSONDecodeError as error:
            where = f"line {error.lineno} column {error.colno}"
            raise Refusal(Code.BODY_INVALID, f"the body is not JSON: {error.msg}, {where}") from None
        except (ValueError, RecursionError):
            detail = "the body is nested too deeply, or has a number of too many digits"
            raise Refusal(Code.BODY_INVALID, detail) from None
        if not isinstance(value, dict):
            raise Refusal(Code.BODY_INVALID, "the body is JSON and no object; send one JSON object")
        try:
            return self._model.validate_python(value)
        except ValidationError as error:
            if (faults := error.error_count()) > FAULTS_MAX:
                raise Refusal(
                    Code.FIELD_INVALID, f"{faults} fields are not acceptable, too many to name them"
                ) from None
            return Faulty(error, self._schema)

    def _refuse_too_many(self, text: str) -> None:
        most = self.most.values + SPARE
        if (found := _marks(text)) <= most:
            return
        if found > most + self.most.text or _marks(_STRING.sub("", text)) > most:
            raise Refusal(
                Code.BODY_INVALID,
                f"the body has far more members and elements than a valid one, which has {self.most.values} at most",
            )


def _marks(text: str) -> int:
    """Returns a lower bound of the number of members and elements: each follows one of these characters."""
    return text.count(",") + text.count("{") + text.count("[")


def _extent(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Extent:
    """Returns the extent of a JSON schema. `known`: the schemas it refers to. Raises KeyError if it is unbounded."""
    if "$ref" in schema:
        return _extent(known[schema["$ref"].rpartition("/")[2]], known)
    if "anyOf" in schema:
        each = [_extent(one, known) for one in schema["anyOf"]]
        return Extent(max(one.values for one in each), max(one.text for one in each))
    match schema.get("type"):
        case "object" if "properties" in schema:
            return _sum(_extent(member, known).times(1) for member in schema["properties"].values())
        case "object":
            [member] = schema["patternProperties"].values()
            return _extent(member, known).times(schema["maxProperties"])
        case "array":
            return _extent(schema["items"], known).times(schema["maxItems"])
        case "string" if "maxLength" in schema or not schema.keys() & {"pattern", "format", "enum", "const"}:
            return Extent(text=schema["maxLength"])
    return Extent()


def _sum(parts: Iterable[Extent]) -> Extent:
    each = [*parts]
    return Extent(sum(part.values for part in each), sum(part.text for part in each))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuses a repeated member: JSON permits it, and parsers differ in which of the values they use."""
    members = dict(pairs)
    if len(members) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        said = json.dumps(name[:100])
        raise Refusal(Code.BODY_INVALID, f"the body has the member {said} more than once in one object")
    return members


def _refuse_unstorable(text: str, value: object) -> None:
    """Refuses characters that JSON can express, but UTF-8 or PostgreSQL cannot: lone surrogates and NUL."""
    if "\\u" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refusal(Code.BODY_INVALID, "the body has half a surrogate pair in a string") from None
    if "\\u0000" in text and _has_nul(value):
        raise Refusal(Code.BODY_INVALID, "the body has a NUL character in a string")


def _has_nul(value: object) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_has_nul(each) for pair in value.items() for each in pair)
    return isinstance(value, list) and any(_has_nul(each) for each in value)
