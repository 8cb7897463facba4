# SPDX-License-Identifier: Apache-2.0
"""What the tests with real guests share."""

import json
import subprocess
from typing import Any

from tests.rig.guest import Guest

BOOT_S = 300
NODE_DEVICE = "pci_0000_00_10_0"
"""libvirt's name of the function."""


def records(guest: Guest, record: str) -> list[dict[str, Any]]:
    """The records of one kind that the guest has printed."""
    lines = (line.strip() for line in guest.console().splitlines())
    found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
    return [line for line in found if line["record"] == record]


def virsh(*arguments: str) -> str:
    """What libvirt's own command says. CalledProcessError."""
    return subprocess.run(["virsh", *arguments], check=True, capture_output=True, text=True).stdout
