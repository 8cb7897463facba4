# SPDX-License-Identifier: Apache-2.0
"""Errors in a broker's file, for people who write TOML: rewords pydantic's errors."""

from collections.abc import Callable, Mapping
from typing import Any

SIZES = ("memory", "window")
KEY = "[key]"
"""What pydantic appends to the place of an entry whose name is at fault."""
NO_TENANT = "give at least one tenant, like [tenants.blue]"
BOOLEAN = "must be true or false"
WHOLE = "must be a whole number"
SIZE = 'must be a whole number of bytes, or a text like "64M"'
MODE = 'must be a mode in quotes, like "0660"'
TENANT_NAME = "a tenant's name has 1 to 63 characters a-z, 0-9 and '-', '-' not first or last"


def problem(error: Mapping[str, Any]) -> str:
    """Return the field's name in the file, and what the field must be, for one of pydantic's errors."""
    place = [str(part) for part in error["loc"]]
    where = ".".join(part for part in place if part != KEY)
    said = _said(error, place)
    return f"{where}: {said}" if where else said


def _said(error: Mapping[str, Any], place: list[str]) -> str:
    words = _WORDS.get(error["type"])
    if words is not None:
        return words(error.get("ctx", {}), place)
    said = str(error["msg"]).removeprefix("Value error, ")
    return said[:1].lower() + said[1:] if error["type"] != "value_error" else said


def _table(_: Mapping[str, Any], place: list[str]) -> str:
    if place == ["tenants"]:
        return "must be a table: write [tenants.blue] for a tenant blue"
    return f"must be a table: write [{'.'.join(place)}]"


def _whole(_: Mapping[str, Any], place: list[str]) -> str:
    return SIZE if place[-1] in SIZES else WHOLE


def _text(_: Mapping[str, Any], place: list[str]) -> str:
    return MODE if place[-1] == "socket_mode" else "must be a text in quotes"


def _pattern(_: Mapping[str, Any], place: list[str]) -> str:
    return TENANT_NAME if place[-1] == KEY else MODE


def _bound(words: str, key: str) -> Callable[[Mapping[str, Any], list[str]], str]:
    def said(context: Mapping[str, Any], place: list[str]) -> str:
        from vgpumgr.sizes import format_size

        bound = context[key]
        return f"must be {words} {format_size(bound) if place[-1] in SIZES else bound}"

    return said


_WORDS: dict[str, Callable[[Mapping[str, Any], list[str]], str]] = {
    "extra_forbidden": lambda _context, _place: "unknown field",
    "missing": lambda _context, _place: NO_TENANT,  # the file has no other field
    "too_short": lambda _context, _place: NO_TENANT,
    "too_long": lambda context, _place: f"there are at most {context['max_length']}",
    "model_type": _table,
    "dict_type": _table,
    "int_type": _whole,
    "bool_type": lambda _context, _place: BOOLEAN,
    "literal_error": lambda context, _place: f"must be {str(context['expected']).replace(chr(39), chr(34))}",
    "string_type": _text,
    "string_pattern_mismatch": _pattern,
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "multiple_of": _bound("a multiple of", "multiple_of"),
}
