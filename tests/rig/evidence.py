# SPDX-License-Identifier: Apache-2.0
"""What a test with guests leaves behind when it fails. It is printed with the failure because the lab host is gone
later.

A conftest.py gets this by importing `pytest_runtest_makereport`.
"""

import subprocess
from collections.abc import Generator

import pytest

from tests.rig.guest import CONSOLES
from vgpumgr.control.netlink import Control
from vgpumgr.errors import VgpumgrError

_TAIL = 1500


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and report.when == "call":
        report.sections += [(name, text[-_TAIL:]) for name, text in _evidence()]
    return report


def _evidence() -> list[tuple[str, str]]:
    consoles = [(f"console {path.stem}", path.read_text(errors="replace")) for path in sorted(CONSOLES.glob("*.log"))]
    return [
        *consoles,
        ("domains", _said_by("virsh", "-q", "-c", "qemu:///system", "list", "--all")),
        ("slices", _slices()),
        ("kernel", _said_by("dmesg")),
    ]


def _said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def _slices() -> str:
    try:
        with Control() as control:
            return "\n".join(map(str, control.slices()))
    except VgpumgrError as error:  # the module is not loaded
        return str(error)
