# SPDX-License-Identifier: Apache-2.0
"""Quantities in a scenario: a number and its unit, like ``250us``, ``25%`` or ``40/s``.

One rule: a quantity with a unit is written with it, and plain numbers are counts and weights. Every quantity is stored
as an integer of the smallest unit: nanoseconds, millionths, millionths of one per second. Pure.
"""

import re
from decimal import Decimal

_NUMBER = r"([0-9]{1,15}(?:\.[0-9]{1,9})?)"
_TIME = re.compile(_NUMBER + r" ?(ns|us|ms|s)", re.ASCII)
_PERCENT = re.compile(_NUMBER + r" ?%", re.ASCII)
_RATE = re.compile(_NUMBER + r" ?/ ?s", re.ASCII)

NANOSECONDS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
MILLION = 1_000_000
TIME_EXPECTED = "expected a time with its unit (ns, us, ms or s), like 250us or 1.5ms"
PERCENT_EXPECTED = "expected a percentage, like 25%"
RATE_EXPECTED = "expected a rate per second, like 40/s"
LONGEST_NS = 3600 * NANOSECONDS["s"]


def parse_time(text: object) -> int:
    """Return nanoseconds, at most an hour; 0 needs no unit. ValueError says what was expected."""
    if text == 0 and not isinstance(text, bool):
        return 0
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(TIME_EXPECTED)
    time_ns = Decimal(match[1]) * NANOSECONDS[match[2]]
    if time_ns != int(time_ns):
        raise ValueError("expected a whole number of nanoseconds")
    if time_ns > LONGEST_NS:
        raise ValueError("expected at most 3600s")
    return int(time_ns)


def parse_percent(text: object) -> int:
    """Return millionths of the whole. ValueError says what was expected."""
    match = _PERCENT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(PERCENT_EXPECTED)
    return _whole(Decimal(match[1]) * MILLION / 100, "expected at most four decimals, like 0.0125%")


def parse_rate(text: object) -> int:
    """Return millionths of one per second, at most a million per second. ValueError says what was expected."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(RATE_EXPECTED)
    rate = _whole(Decimal(match[1]) * MILLION, "expected at most six decimals, like 0.5/s")
    if not 0 < rate <= MILLION * MILLION:
        raise ValueError("expected a rate above 0 and at most 1000000/s")
    return rate


def format_time(time_ns: float) -> str:
    """Return ``1.5ms`` for 1500000: at most three significant decimals, in the most readable unit."""
    for unit in ("s", "ms", "us"):
        if abs(time_ns) >= NANOSECONDS[unit]:
            return f"{time_ns / NANOSECONDS[unit]:.3f}".rstrip("0").rstrip(".") + unit
    return f"{time_ns:.0f}ns"


def format_percent(part: float) -> str:
    """Return ``25.0%`` for 0.25; small values keep two significant digits."""
    digits = 1 if abs(part) >= 0.01 or part == 0 else 3
    return f"{100 * part:.{digits}f}%"


def _whole(value: Decimal, expected: str) -> int:
    if value != int(value):
        raise ValueError(expected)
    return int(value)
