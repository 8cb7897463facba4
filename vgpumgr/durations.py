# SPDX-License-Identifier: Apache-2.0
"""Text forms of durations."""

import re

from vgpumgr.errors import ArgumentError

_DURATION = re.compile(r"([0-9]{1,12})([smhdw])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_duration(text: str) -> int:
    """Return the seconds of a text like ``90s``, ``15m``, ``12h``, ``30d``, ``2w``. ArgumentError."""
    if match := _DURATION.fullmatch(text):
        return int(match[1]) * _SECONDS[match[2]]
    raise ArgumentError(f"duration {text[:40]!r}: give a whole number with s, m, h, d or w, like 90s or 30d")


def is_duration(text: str) -> bool:
    """Whether `parse_duration` accepts a text."""
    return _DURATION.fullmatch(text) is not None
