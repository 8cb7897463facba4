# SPDX-License-Identifier: Apache-2.0
"""For bounds in the OpenAPI document: the values just outside them, and what has no bound."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
Place = tuple[str | int, ...]

BEYOND = {"minimum": -1, "maximum": 1}
LONGEST = 200
"""No pattern matches a text of this length, unless it matches texts of any length."""
INSTANT, UUID = "2026-11-21T12:00:00Z", "51ce0000-0000-4000-8000-000000000001"


@dataclass(frozen=True)
class Wrong:
    """A `value` that is refused at `place`. `field`: the member that the refusal must name; in a map, the wrong key."""

    place: Place
    value: Any
    field: Place


class Bounds:
    """The bounds of one document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._known = document["components"]["schemas"]

    def resolved(self, schema: Schema) -> Schema:
        """Returns the schema of the values that are not null."""
        if "$ref" in schema:
            return self.resolved(self._known[schema["$ref"].rpartition("/")[2]])
        [*rest] = [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]
        return self.resolved(rest[0]) if len(rest) == 1 else schema

    def unbounded(self, schema: Schema, place: Place = ()) -> Iterator[Place]:
        """Yields each place without a bound; for numbers that are counts, only the upper bound is needed."""
        schema = self.resolved(schema)
        for step, child in self._children(schema):
            yield from self.unbounded(child, (*place, step))
        if _needed(schema) - schema.keys():
            yield place

    def wrong(self, schema: Schema, good: Any, place: Place = ()) -> Iterator[Wrong]:
        """Yields every value just outside the bounds of a value and of its members; `good` has all members."""
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
    """Returns the keywords that bound a value from both sides."""
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
        case {"format": "date-time"}:  # without a time zone, and in a year that some time zones do not have
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
    """Returns a bound as a list; empty if there is no bound."""
    return [schema[bound]] if bound in schema else []


def _unlike(pattern: str, good: str) -> Iterator[str]:
    """Yields texts that do not match: the empty one, one with a newline, and one that is a character too long."""
    longer = (good + (good[-1:] or "x") * number for number in range(1, LONGEST))
    too_long = next((text for text in longer if not re.fullmatch(pattern, text)), "")
    yield from (text for text in ("", f"{good}\n", too_long) if not re.fullmatch(pattern, text))


def put(body: Any, place: Place, value: Any) -> Any:
    """Returns a copy with another value at the place."""
    if not place:
        return value
    copied = list(body) if isinstance(body, list) else dict(body)
    copied[place[0]] = put(body[place[0]], place[1:], value)  # type: ignore[index,call-overload]
    return copied


def json_path(place: Place) -> str:
    """Returns the name that a refusal must use for a member of a body."""
    steps = ((f"[{each}]" if isinstance(each, int) else _name(each)) for each in place)
    return "$" + "".join(steps)


def _name(step: str) -> str:
    return f".{step}" if step.isidentifier() else f"[{json.dumps(step)}]"
