# SPDX-License-Identifier: Apache-2.0
"""What a PCI function says of the card that it is on. Standard library only."""

import re
from dataclasses import dataclass
from pathlib import Path

_NUMBER = re.compile(r"0x([0-9a-f]{4})\n?")
_CONFIG_BYTES = 4096
_CAPABILITIES = 0x100
"""Where extended capabilities begin: PCI Express Base Specification 6.0, section 7.6.3."""
_SERIAL_NUMBER = 0x0003
"""Device Serial Number Extended Capability, section 7.9.3: the header and eight bytes."""
_CAPABILITIES_MAX = (_CONFIG_BYTES - _CAPABILITIES) // 8
_NO_SERIALS = frozenset({b"\0" * 8, b"\xff" * 8})
"""What functions say whose maker gave them none, and functions that do not answer."""


@dataclass(frozen=True, kw_only=True)
class Function:
    """Vendor and device, as in ``10de:2330``, and the card's serial number in hex; empty where they are not known."""

    pci_ids: str = ""
    serial: str = ""


def function(directory: Path) -> Function:
    """Return what the function with this directory in sysfs says. Never raises; only root may read a serial number."""
    vendor, device = _number(directory / "vendor"), _number(directory / "device")
    return Function(
        pci_ids=f"{vendor}:{device}" if vendor and device else "", serial=_serial(_content(directory / "config"))
    )


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_CONFIG_BYTES)
    except OSError:  # it went meanwhile
        return b""


def _number(path: Path) -> str:
    found = _NUMBER.fullmatch(_content(path).decode("ascii", errors="replace"))
    return found.group(1) if found else ""


def _serial(config: bytes) -> str:
    """A list that a broken function makes endless is given up."""
    at = _CAPABILITIES
    for _ in range(_CAPABILITIES_MAX):
        header = int.from_bytes(config[at : at + 4], "little")
        if at < _CAPABILITIES or header in (0, 0xFFFFFFFF):
            return ""
        if header & 0xFFFF == _SERIAL_NUMBER:
            found = config[at + 4 : at + 12]
            return "" if len(found) < 8 or found in _NO_SERIALS else found[::-1].hex()
        at = header >> 20
    return ""
