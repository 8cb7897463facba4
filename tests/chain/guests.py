# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests with real guests."""

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
    """The output of libvirt's own command. Raises CalledProcessError."""
    return subprocess.run(["virsh", *arguments], check=True, capture_output=True, text=True).stdout
