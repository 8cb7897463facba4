# SPDX-License-Identifier: Apache-2.0
"""The limit of a body is the size of the largest valid body of its route."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from vgpumgr_api.app import create_app
from vgpumgr_api.db.database import Database
from vgpumgr_api.edge.reader import FAULTY, SPARE, Reader
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet.reports import REFUSAL_KEPT

from vgpumgr.wire.fleet import REPORT_BYTES_MAX, CertificateRequest, Report
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import SliceBatch, TenantCreate

MARKS = ',[{":]}\\'
"""Characters from which structure-like strings can be made."""
WORDS = ("a", "0000:03:00.0", "10de:2330", "slices:read")


def models() -> Iterator[Any]:
    for route in create_app(Database("sqlite:///nowhere")).routes:
        if isinstance(route, APIRoute) and route.body_field is not None:
            yield pytest.param(route.body_field.field_info.annotation, id=route.name)


def largest(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    """Returns the largest value that a JSON schema allows."""
    match schema:
        case {"$ref": name}:
            return largest(known[name.rpartition("/")[2]], known)
        case {"anyOf": [one, {"type": "null"}]}:
            return largest(one, known)
        case {"enum": [*_, last]}:
            return last
        case {"type": "object", "properties": members}:
            return {name: largest(member, known) for name, member in members.items()}
        case {"type": "object", "patternProperties": members, "maxProperties": count}:
            [member] = members.values()
            return {f"k{number}": largest(member, known) for number in range(count)}
        case {"type": "array", "items": item, "maxItems": count}:
            return [largest(item, known)] * count
        case {"type": "string", "pattern": pattern, "maxLength": length}:
            return next(word for word in ((MARKS * length)[:length], *WORDS) if re.search(pattern, word))
        case {"type": "string", "pattern": pattern}:
            return next(word for word in WORDS if re.search(pattern, word))
        case {"type": "string", "format": "uuid"}:
            return str(UUID(int=1))
        case {"type": "string", "maxLength": length}:
            return (MARKS * length)[:length]
        case {"type": "boolean"}:
            return True
    return schema["maximum"]


def largest_of(model: type[BaseModel]) -> Any:
    schema = TypeAdapter(model).json_schema()
    if model is Report:  # each may fill a body, but not all of them together
        assert schema["properties"]["refusals"]["items"]["maxLength"] == REPORT_BYTES_MAX
        schema["properties"]["refusals"]["items"]["maxLength"] = REFUSAL_KEPT
    return largest(schema, schema.get("$defs", {}))


def values_in(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(values_in(each) for each in value.values())
    return len(value) + sum(map(values_in, value)) if isinstance(value, list) else 0


def read(model: type[BaseModel], value: Any) -> Any:
    async def reading() -> Any:
        request = Request({"type": "http", "headers": []})
        return await (await Reader(model).read(request, json.dumps(value).encode())).json()

    return asyncio.run(reading())


@pytest.mark.parametrize("model", [*models()])
def test_the_largest_valid_body_is_read(model: type[BaseModel]) -> None:
    body = largest_of(model)
    assert isinstance(read(model, body), model)
    assert Reader(model).most.values == values_in(body)


@pytest.mark.parametrize("model", [*models()])
def test_no_model_takes_what_stands_for_a_body_with_faults(model: type[BaseModel]) -> None:
    """FastAPI validates like this; it accepts any object that has the needed attributes."""
    with pytest.raises(ValidationError):
        TypeAdapter(model).validate_python(FAULTY, from_attributes=True)


@pytest.mark.parametrize("model", [TenantCreate, SliceBatch, Report])
def test_a_body_with_a_few_members_more_is_looked_at(model: type[BaseModel]) -> None:
    body = largest_of(model) | {"more": [0] * (SPARE - 1)}
    assert read(model, body) == FAULTY
    with pytest.raises(Refusal) as caught:
        read(model, body | {"more": [0] * SPARE})
    assert caught.value.code is Code.BODY_INVALID


def test_a_string_without_an_end_is_looked_at_once() -> None:
    """With its many quotes, the search would take hours if each quote started another string."""
    body = '{"csr":"' + "," * (2 * SPARE) + r"\"" * 500_000 + "\\"
    with pytest.raises(Refusal) as caught:
        asyncio.run(Reader(CertificateRequest).read(Request({"type": "http", "headers": []}), body.encode()))
    assert caught.value.code is Code.BODY_INVALID


def test_a_model_without_a_bound_takes_no_bodies() -> None:
    class Unbounded(BaseModel):
        names: list[UUID]

    class Endless(BaseModel):
        name: str

    for model, bound in ((Unbounded, "maxItems"), (Endless, "maxLength")):
        with pytest.raises(KeyError, match=bound):
            Reader(model)
