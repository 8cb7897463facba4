# SPDX-License-Identifier: Apache-2.0
"""Of what the OpenAPI document bounds, the values that are just outside, and what it does not bound."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
Place = tuple[str | int, ...]

BEYOND = {"minimum": -1, "maximum": 1}
LONGEST = 200
"""Patterns take nothing that is so long, unless they take all."""
INSTANT, UUID = "2026-11-21T12:00:00Z", "51ce0000-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class Wrong:
    """A `value` that is refused at `place`. `field`: the member that is to be named, or in a map the key at fault."""

    place: Place
    value: Any
    field: Place


class Bounds:
    """Those of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._known = document["components"]["schemas"]

    def resolved(self, schema: Schema) -> Schema:
        """What a schema says of values that are not null."""
        if "$ref" in schema:
            return self.resolved(self._known[schema["$ref"].rpartition("/")[2]])
        [*rest] = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
        return self.resolved(rest[0]) if len(rest) == 1 else schema

    def unbounded(self, schema: Schema, place: Place = ()) -> Iterator[Place]:
        """Where there is none, upwards at least for what is counted."""
        schema = self.resolved(schema)
        for step, child in self._children(schema):
            yield from self.unbounded(child, (*place, step))
        if _needed(schema) - schema.keys():
            yield place

    def wrong(self, schema: Schema, good: Any, place: Place = ()) -> Iterator[Wrong]:
        """Everything just outside of a value's bounds and of those of its members, which `good` has all of."""
        schema = self.resolved(schema)
        for step, child in self._children(schema):
            step = next(iter(good)) if step == "*" else step
            yield from self.wrong(child, good[step], (*place, step))
        yield from (Wrong(place, value, place) for value in _outside(schema, good))
        for pattern in schema.get("patternProperties", ()):
            [value] = good.values()
            yield from (Wrong(place, {key: value}, (*place, key)) for key in _unlike(pattern, next(iter(good))))

    def _children(self, schema: Schema) -> Iterator[tuple[str | int, Schema]]:
        yield from schema.get("properties", {}).items()
        yield from (("*", each) for each in schema.get("patternProperties", {}).values())
        if "items" in schema:
            yield 0, schema["items"]


def _needed(schema: Schema) -> set[str]:
    """The keywords without which a value has no end."""
    match schema:
        case {"type": "integer"}:
            return {"minimum", "maximum"}
        case {"type": "array"}:
            return {"maxItems"}
        case {"type": "object"} if schema.get("additionalProperties") is not False:
            return {"maxProperties"}
        case {"type": "string"} if not schema.keys() & {"enum", "pattern", "format"}:
            return {"maxLength"}
    return set()


def _outside(schema: Schema, good: Any) -> Iterator[Any]:
    match schema:
        case {"enum": [first, *_]}:
            yield from (f"{first}x", first.upper(), "")
        case {"pattern": pattern}:
            yield from _unlike(pattern, good)
            yield from ("x" * (length + 1) for length in _of(schema, "maxLength"))
        case {"format": "uuid"}:
            yield from (UUID[:-1], f"{UUID}0", "")
        case {"format": "date-time"}:  # without a zone, and in a year that there is not in every zone
            yield from (INSTANT[:-1], f"9999{INSTANT[4:]}", "")
        case {"type": "boolean"}:
            yield "maybe"
        case {"type": "integer"}:
            yield from (round(schema[bound]) + step for bound, step in BEYOND.items() if bound in schema)
        case {"type": "string"}:
            yield from ("x" * (length + 1) for length in _of(schema, "maxLength"))
            yield from ("x" * (length - 1) for length in _of(schema, "minLength"))
        case {"type": "array"}:
            yield from ([good[0]] * (length + 1) for length in _of(schema, "maxItems"))
            yield from ([good[0]] * (length - 1) for length in _of(schema, "minItems"))
        case {"type": "object"}:
            most = _of(schema, "maxProperties")
            yield from ({f"k{number}": next(iter(good.values())) for number in range(length + 1)} for length in most)


def _of(schema: Schema, bound: str) -> list[int]:
    """A bound as an iterable, of nothing if there is none."""
    return [schema[bound]] if bound in schema else []


def _unlike(pattern: str, good: str) -> Iterator[str]:
    """The shortest text, a text with a line's end, and one that is a character too long."""
    longer = (good + (good[-1:] or "x") * number for number in range(1, LONGEST))
    too_long = next((text for text in longer if not re.fullmatch(pattern, text)), "")
    yield from (text for text in ("", f"{good}\n", too_long) if not re.fullmatch(pattern, text))


def put(body: Any, place: Place, value: Any) -> Any:
    """A copy with another value there."""
    if not place:
        return value
    copied = list(body) if isinstance(body, list) else dict(body)
    copied[place[0]] = put(body[place[0]], place[1:], value)  # type: ignore[index,call-overload]
    return copied


def json_path(place: Place) -> str:
    """How a refusal is to call a member of a body."""
    steps = ((f"[{each}]" if isinstance(each, int) else _name(each)) for each in place)
    return "$" + "".join(steps)


def _name(step: str) -> str:
    return f".{step}" if step.isidentifier() else f"[{json.dumps(step)}]"
