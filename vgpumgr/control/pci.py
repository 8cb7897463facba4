# SPDX-License-Identifier: Apache-2.0
"""Identifies PCI functions. Standard library only."""

import re
from pathlib import Path

_NUMBER = re.compile(r"0x([0-9a-f]{4})\n?")


def ids(directory: Path) -> str:
    """Return vendor and device, as in ``10de:2330``, of the function with this sysfs directory; "" if it is gone."""
    vendor, device = _number(directory / "vendor"), _number(directory / "device")
    return f"{vendor}:{device}" if vendor and device else ""


def _number(path: Path) -> str:
    try:
        found = _NUMBER.fullmatch(path.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return ""
    return found.group(1) if found else ""
