# SPDX-License-Identifier: Apache-2.0
"""Text forms of instants, labels and UUIDs. Sizes are in `vgpumgr.sizes`."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from uuid import UUID

from vgpumgr.durations import is_duration, parse_duration
from vgpumgr.errors import ArgumentError

_DOMAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", re.ASCII)
NO_EXTERNAL_ID = "not an external id: it has 1 to 255 printable characters"
NO_LABEL = "not a label: keys consist of a-z, 0-9 and ._/-, values of letters, digits and ._-, at most 63 of each"


def parse_instant(text: str, what: str, now: datetime) -> datetime:
    """Parse a duration before `now`, like ``2h``, or an ISO 8601 time with a time zone. Raises ArgumentError."""
    try:
        if is_duration(text):
            return now - timedelta(seconds=parse_duration(text))
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ArgumentError(
            f"{what} {text[:40]!r}: give how long ago, like 2h, or an instant like 2026-11-21T12:00:00Z"
        )
    return moment


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return labels from texts like ``zone=a``, each key once. ArgumentError."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals and value):
            raise ArgumentError(f"label {text[:80]!r}: give KEY=VALUE, like zone=a")
        if key in labels:
            raise ArgumentError(f"label {text[:80]!r}: {key[:80]!r} is given twice; give each key once")
        labels[key] = value
    return labels


def parse_selector(texts: Iterable[str]) -> dict[str, str]:
    """Like `parse_labels`, but a text may have several labels, as in ``zone=a,rack=7``: no label contains a comma."""
    return parse_labels(part for text in texts for part in text.split(","))


def parse_tie(text: str) -> dict[str, str]:
    """Return an affinity from ``db``, which has the level host, or ``db:gpu``."""
    key, colon, level = text.partition(":")
    return {"key": key, "level": level} if colon else {"key": key}


def parse_uuid(text: str, what: str) -> UUID:
    """Return a UUID in any of its usual spellings. ArgumentError."""
    try:
        return UUID(text)
    except ValueError:
        kind = "slices" if what == "claim" else f"{what}s"
        todo = f"`vgpumgr get {kind}` lists them"
        if what == "VM":
            name = text[:80] if _DOMAIN.fullmatch(text) else "DOMAIN"
            todo = f"give the VM's UUID; `virsh domuuid {name}` prints it"
        raise ArgumentError(f"{what} {text[:80]!r} is not a UUID; {todo}") from None


def format_us(time_us: float) -> str:
    """Return ``2ms`` for 2000; at most two decimals."""
    for limit, unit in ((1_000_000, "s"), (1000, "ms")):
        if time_us >= limit:
            return f"{time_us / limit:.2f}".rstrip("0").rstrip(".") + unit
    return f"{time_us:.0f}us"
