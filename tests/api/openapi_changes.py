# SPDX-License-Identifier: Apache-2.0
"""The differences between two OpenAPI documents, and which of them break a client of the first.

``make openapi`` writes ``api/openapi.json`` and the codes in it, and lists the changes. It refuses changes that break
clients of the committed document unless BREAKING=1 is set. It always refuses changes that break clients of the last
release. ``make openapi RELEASE=1`` also copies the document to ``api/openapi-v1.json``, the one of the last release.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgpumgr.wire.fleet import REPORT_BYTES_MAX

API = Path(__file__).resolve().parents[2] / "api"
COMMITTED, RELEASED = API / "openapi.json", API / "openapi-v1.json"
CODES = API / "vgpumgr_api/edge/openapi/codes.json"
ALWAYS_ENFORCED = {
    "header.Idempotency-Key": {"pattern": "^[!-~]{1,255}$"},
    "header.If-Match": {"pattern": r'^"(0|[1-9][0-9]{0,17})(?:-([0-9a-f]{16}))?"$'},
    "header.last-event-id": {"pattern": "^((?:([0-9a-f]{12})-)?(0|[1-9][0-9]{0,17}))?$"},
    "POST /v1/hosts/{host}/report body .refusals[]": {"maxLength": REPORT_BYTES_MAX},
}
"""Limits that held since the first release but were declared later: they break no valid request."""

MATCHED_NOTHING = {
    "GET /v1/operations query.kind": {"pattern": r"^[a-z_]{1,31}\.[a-z_]{1,32}$"},
    "GET /v1/audit query.action": {"pattern": r"^[a-z_]{1,31}\.[a-z_]{1,32}$"},
}
"""Filters for which other values never matched anything; an error for such a value breaks no valid request."""

IF_MATCH, GENERATION_REQUIRED = "header.If-Match", "generation.required"

LOWER, UPPER = ("minimum", "minLength", "minItems"), ("maximum", "maxLength", "maxItems")


@dataclass(frozen=True)
class Change:
    """`breaks`: a valid request or a correct client of the old document may fail now."""

    breaks: bool
    text: str

    def __str__(self) -> str:
        return f"{'BREAKS ' if self.breaks else ''}{self.text}"


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Returns the changes in the order of the paths."""
    return list(_Comparison(old, new).operations())


class _Comparison:
    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._seen: set[tuple[str, str, bool]] = set()

    def operations(self) -> Iterator[Change]:
        before, after = _operations(self._old), _operations(self._new)
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                yield Change(True, f"{name}: gone")
            elif name not in before:
                yield Change(False, f"{name}: new")
            else:
                self._seen.clear()
                yield from self._operation(name, before[name], after[name])

    def _operation(self, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
        if old["operationId"] != new["operationId"]:
            yield Change(True, f"{name}: operationId is {new['operationId']}, was {old['operationId']}")
        yield from self._parameters(name, old, new)
        yield from self._bodies(name, old.get("requestBody"), new.get("requestBody"))
        before, after = (_codes(*each) for each in ((self._old, old), (self._new, new)))
        for code in sorted(before ^ after):
            yield Change(False, f"{name}: refuses with {code}{' no more' if code in before else ', too'}")
        good = [{code: each for code, each in side["responses"].items() if code < "4"} for side in (old, new)]
        for code in sorted(good[0].keys() | good[1].keys()):
            if code not in good[1]:
                yield Change(True, f"{name}: no answer {code} any more")
            elif code not in good[0]:
                yield Change(False, f"{name}: another answer, {code}")
            else:
                yield from self._headers(f"{name} {code}", good[0][code], good[1][code])
                yield from self._content(f"{name} {code}", good[0][code], good[1][code], sent=False)

    def _headers(self, where: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
        before, after = (
            {name: _component(document, "headers", each) for name, each in side.get("headers", {}).items()}
            for document, side in ((self._old, old), (self._new, new))
        )
        for name in sorted(before.keys() | after.keys()):
            header = f"{where} header.{name}"
            if name not in after:
                yield Change(True, f"{header}: gone")
            elif name not in before:
                yield Change(False, f"{header}: new")
            else:
                if before[name].get("required", False) and not after[name].get("required", False):
                    yield Change(True, f"{header}: may be missing now")
                yield from self._schema(header, before[name]["schema"], after[name]["schema"], sent=False)

    def _parameters(self, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
        before, after = (
            {f"{each['in']}.{each['name']}": each for each in side.get("parameters", ())} for side in (old, new)
        )
        for parameter in sorted(before.keys() | after.keys()):
            where = f"{name} {parameter}"
            if parameter not in after:
                yield Change(True, f"{where}: gone")
                continue
            needed = after[parameter].get("required", False)
            if parameter not in before:
                yield Change(needed, f"{where}: new{', and needed' if needed else ''}")
                continue
            schema = before[parameter]["schema"]
            # A request without this header was refused with that code, and null is not a header.
            was_needed = parameter == IF_MATCH and GENERATION_REQUIRED in _codes(self._old, old)
            if was_needed and needed:
                schema, _ = _without_null(self._old, schema)
            elif needed and not before[parameter].get("required", False):
                yield Change(True, f"{where}: needed now")
            yield from self._schema(where, schema, after[parameter]["schema"], sent=True)

    def _bodies(self, name: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> Iterator[Change]:
        if old is None or new is None:
            if old is not new:
                yield Change(True, f"{name}: {'a body' if old is None else 'no body'} now")
            return
        yield from self._content(f"{name} body", old, new, sent=True)

    def _content(self, where: str, old: Mapping[str, Any], new: Mapping[str, Any], *, sent: bool) -> Iterator[Change]:
        before, after = old.get("content", {}), new.get("content", {})
        for kind in sorted(before.keys() | after.keys()):
            if kind not in after:
                yield Change(True, f"{where}: not as {kind} any more")
            elif kind not in before:
                yield Change(False, f"{where}: as {kind}, too")
            else:
                yield from self._schema(where, before[kind].get("schema", {}), after[kind].get("schema", {}), sent=sent)

    def _schema(self, where: str, old: Mapping[str, Any], new: Mapping[str, Any], *, sent: bool) -> Iterator[Change]:
        """`sent`: clients send the value, so allowing less breaks them; otherwise the API sends it, so allowing more
        does.
        """
        refs = (old.get("$ref", ""), new.get("$ref", ""), sent)
        if any(refs[:2]):
            if refs in self._seen:
                return
            self._seen.add(refs)
        old, new = _resolved(self._old, old), _resolved(self._new, new)
        (old, old_null), (new, new_null) = _without_null(self._old, old), _without_null(self._new, new)
        if old_null != new_null:
            yield Change(old_null if sent else new_null, f"{where}: {'may' if new_null else 'may not'} be null now")
        if old.get("type") != new.get("type") or ("anyOf" in old) != ("anyOf" in new):
            yield Change(True, f"{where}: of another type, {new.get('type')}, was {old.get('type')}")
            return
        yield from self._values(where, old, new, sent=sent)
        yield from self._members(where, old, new, sent=sent)
        if "items" in old and "items" in new:
            yield from self._schema(f"{where}[]", old["items"], new["items"], sent=sent)

    def _values(self, where: str, old: Mapping[str, Any], new: Mapping[str, Any], *, sent: bool) -> Iterator[Change]:
        for word in sorted({*old.get("enum", ())} ^ {*new.get("enum", ())}):
            gone = word not in new.get("enum", ())
            yield Change(gone and sent, f"{where}: {'no ' if gone else ''}{word} {'any more' if gone else 'is new'}")
        for bounds, tighter in ((LOWER, lambda a, b: b > a), (UPPER, lambda a, b: b < a)):
            for bound in bounds:
                a, b = old.get(bound), new.get(bound)
                if a != b:
                    narrower = b is not None and (a is None or tighter(a, b))
                    breaks = narrower is sent and not _held_before(where, bound, a, b)
                    yield Change(breaks, f"{where}: {bound} {b}, was {a}")
        for word in ("pattern", "format"):
            a, b = old.get(word), new.get(word)
            if a != b:
                yield Change(sent and not _held_before(where, word, a, b), f"{where}: {word} {b}, was {a}")

    def _members(self, where: str, old: Mapping[str, Any], new: Mapping[str, Any], *, sent: bool) -> Iterator[Change]:
        before, after = old.get("properties", {}), new.get("properties", {})
        for name in sorted(before.keys() | after.keys()):
            member = f"{where} .{name}"
            needed = name in new.get("required", ())
            if name not in after:
                yield Change(True, f"{member}: gone")
            elif name not in before:
                yield Change(sent and needed, f"{member}: new{', and needed' if sent and needed else ''}")
            else:
                if sent and needed and name not in old.get("required", ()):
                    yield Change(True, f"{member}: needed now")
                if not sent and not needed and name in old.get("required", ()):
                    yield Change(True, f"{member}: may be missing now")
                yield from self._schema(member, before[name], after[name], sent=sent)


def _held_before(where: str, word: str, old: object, new: object) -> bool:
    """Returns whether the limit was only declared now, so that every request that was valid before still is."""
    both = ALWAYS_ENFORCED | MATCHED_NOTHING
    known = (held.get(word) for place, held in both.items() if f" {where}".endswith(f" {place}"))
    return old is None and new is not None and new in known


def _component(document: Mapping[str, Any], kind: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the shared component that a reference names."""
    name = said.get("$ref", "").rpartition("/")[2]
    found: Mapping[str, Any] = document["components"][kind][name] if name else said
    return found


def _operations(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{method.upper()} {path}": operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }


def _codes(document: Mapping[str, Any], operation: Mapping[str, Any]) -> set[str]:
    """Returns the refusal codes of an operation. New codes break no client, because clients use the status of unknown
    codes.
    """
    found = set()
    for answer in operation["responses"].values():
        for each in _component(document, "responses", answer).get("content", {}).values():
            found |= {*each.get("schema", {}).get("properties", {}).get("code", {}).get("enum", ())}
    return found


def _resolved(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _without_null(document: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    choices = schema.get("anyOf", ())
    rest = [each for each in choices if each.get("type") != "null"]
    if len(rest) == len(choices) or len(rest) != 1:
        return schema, len(rest) != len(choices)
    return _resolved(document, rest[0]), True


def main() -> int:
    """Writes the document, or prints why not."""
    from vgpumgr_api.app import create_app
    from vgpumgr_api.db.database import Database
    from vgpumgr_api.edge.openapi import document

    from tests.api import refusable

    app = create_app(Database("sqlite:///nowhere"))
    codes = refusable.codes(app)
    app.openapi_schema = document.document(app, codes)
    text = document.text(app)
    found = changes(json.loads(COMMITTED.read_text()), json.loads(text))
    for change in found:
        print(change)
    if any(change.breaks for change in found) and not os.environ.get("BREAKING"):
        print("not written: /v1 is only ever added to; BREAKING=1 if it is meant all the same", file=sys.stderr)
        return 1
    broken = [change for change in changes(json.loads(RELEASED.read_text()), json.loads(text)) if change.breaks]
    if broken:
        print(f"not written: breaks clients of the last release: {broken[0]}", file=sys.stderr)
        return 1
    CODES.write_text(json.dumps(codes, indent=2) + "\n")
    COMMITTED.write_text(text)
    if os.environ.get("RELEASE"):
        RELEASED.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
