# SPDX-License-Identifier: Apache-2.0
"""Text forms of sizes. They are binary: 1K is 1024 bytes."""

import re

from vgpumgr.errors import ArgumentError

_SIZE = re.compile(r"([0-9]{1,19})(?:([KMGTP])(?:iB)?)?", re.IGNORECASE | re.ASCII)
_DECIMAL = re.compile(r"[0-9]+[KMGTP]B", re.IGNORECASE | re.ASCII)
_UNITS = "KMGTP"


def parse_size(text: str) -> int:
    """Return bytes from ``65536``, ``64K``, ``64M`` or ``1GiB``. ArgumentError, also for the ambiguous ``64MB``."""
    if match := _SIZE.fullmatch(text):
        exponent = 1 + _UNITS.index(match[2].upper()) if match[2] else 0
        return int(match[1]) << (10 * exponent)
    if _DECIMAL.fullmatch(text):
        short = text[:-1].upper()
        raise ArgumentError(f"size {text!r} is ambiguous; write {short} or {short}iB, which count in steps of 1024")
    raise ArgumentError(f"size {text[:40]!r}: give a whole number of bytes, or one with K, M, G, T or P, like 64M")


def format_size(size_bytes: int) -> str:
    """Return ``64M`` for 67108864; a size that is no multiple of a unit gets one decimal."""
    exponent = 0
    while exponent < len(_UNITS) and size_bytes >> (10 * (exponent + 1)):
        exponent += 1
    if not exponent:
        return str(size_bytes)
    unit = 1 << (10 * exponent)
    if size_bytes % unit == 0:
        return f"{size_bytes // unit}{_UNITS[exponent - 1]}"
    return f"{size_bytes / unit:.1f}{_UNITS[exponent - 1]}"
