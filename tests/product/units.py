# SPDX-License-Identifier: Apache-2.0
"""The product's units in a lab host that systemd has booted."""

import subprocess

API, HELPER, AGENT = UNITS = ("vgpumgr-api", "vgpumgr-helper", "vgpumgr-agent")


def systemctl(*words: str) -> str:
    return subprocess.run(["systemctl", *words], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def main_pid(unit: str) -> int:
    return int(systemctl("show", "--property=MainPID", "--value", unit))


def active(unit: str) -> bool:
    return systemctl("show", "--property=ActiveState", "--value", unit) == "active"
