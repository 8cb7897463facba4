# SPDX-License-Identifier: Apache-2.0
"""These tests run inside a lab host in virtual time: the machine that runs the lab cannot disturb a measurement.

Shares and lengths are asserted without a margin for a slow machine. Engine time is the `delay` operation. Under
`--icount` an instruction takes one nanosecond. In User-mode Linux computing takes no time, so tests of latency and
processor time, which are marked `emulated`, would prove nothing there.
"""

from collections.abc import Iterator

import pytest

from tests.rig.figures import figures, pytest_configure, pytest_terminal_summary
from tests.rig.fixtures import gpu, module
from tests.rig.quiet import quiet_udev

__all__ = ["figures", "gpu", "module", "pytest_configure", "pytest_terminal_summary"]


@pytest.fixture(scope="session", autouse=True)
def nobody_else() -> Iterator[None]:
    """A program that keeps the lab host's only processor busy."""
    with quiet_udev():
        yield
