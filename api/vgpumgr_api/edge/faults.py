# SPDX-License-Identifier: Apache-2.0
"""Messages for malformed requests, where pydantic's message is not helpful because it quotes a regular expression."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from vgpumgr.wire.common import (
    CardName,
    ExternalId,
    HostRef,
    LabelKey,
    LabelValue,
    MdevTypeId,
    Name,
    PciAddress,
    PciIds,
)
from vgpumgr.wire.events import ABOUT, Kind
from vgpumgr.wire.resources.tokens import SCOPED, Scope
from vgpumgr.wire.selector import SELECTOR_MAX, Selector

_ENDS = "a letter or digit first and last"
_SAID: Sequence[tuple[Any, str]] = (
    (Name, "not a name: 1 to 63 characters a-z, 0-9 and '-', '-' not first or last"),
    (ExternalId, "not an external id: 1 to 255 printable characters, neither control characters nor invisible ones"),
    (HostRef, "neither a UUID nor a name: 1 to 63 letters, digits and '-', '-' not first or last"),
    (PciAddress, "not a PCI address as in 0000:03:00.0"),
    (PciIds, "not vendor and device of a PCI function as in 10de:2330"),
    (CardName, "not a card's UUID or serial number: printable characters without blanks"),
    (MdevTypeId, "not a type: 1 to 80 letters, digits and '_', '.', '-', a letter, digit or '_' first"),
    (LabelKey, f"not a label's key: 1 to 63 characters a-z, 0-9 and '.', '_', '/', '-', {_ENDS}"),
    (LabelValue, f"not a label's value: 1 to 63 letters, digits and '.', '_', '-', {_ENDS}"),
    (Selector, f"not labels as in zone=a,rack=7, {SELECTOR_MAX} at most"),
    (Kind, f"not as in slice.claimed: one of {', '.join(ABOUT)}, then a point and what happens to it"),
    (Scope, f"not a scope as in slices:read: one of {', '.join(SCOPED)}, then :read or :write"),
)
WORDS: Mapping[str, str] = {TypeAdapter(kind).json_schema()["pattern"]: words for kind, words in _SAID}
"""The message for a text that does not match, by pattern."""


def in_words(error: Mapping[str, Any]) -> str:
    """Returns the message for an error that pydantic found."""
    if error["type"] == "string_pattern_mismatch":
        return WORDS.get(error["ctx"]["pattern"], error["msg"])
    return str(error["msg"]).removeprefix("Value error, ")  # pydantic's prefix of our own checks' messages


def with_members(error: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns an error of pydantic for a body of this schema. For an unknown member it names the known members."""
    if error["type"] != "extra_forbidden":
        return error
    there = sorted({name for each in _at(schema, schema, error["loc"][:-1]) for name in each.get("properties", ())})
    return {**error, "msg": f"no such member; there are {', '.join(there)}" if there else "no member is accepted here"}


def _at(schema: Mapping[str, Any], whole: Mapping[str, Any], location: Sequence[int | str]) -> Iterator[Any]:
    """Returns the schemas that apply at a location. `whole` contains the definitions that schemas refer to."""
    if "$ref" in schema:
        yield from _at(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, location)
    elif "anyOf" in schema:
        for each in schema["anyOf"]:
            yield from _at(each, whole, location)
    elif not location:
        yield schema
    elif isinstance(location[0], int):
        if "items" in schema:
            yield from _at(schema["items"], whole, location[1:])
    elif location[0] in schema.get("properties", ()):
        yield from _at(schema["properties"][location[0]], whole, location[1:])
