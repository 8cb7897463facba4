# SPDX-License-Identifier: Apache-2.0
"""These tests run inside a lab host under `--icount`: every duration is virtual time.

There one instruction takes one nanosecond and the machine that runs the lab cannot disturb a measurement,
so shares and lengths are asserted as they are. Engine time is the `delay` operation.
"""

from collections.abc import Iterator

import pytest

from tests.rig.figures import figures, pytest_configure, pytest_terminal_summary
from tests.rig.fixtures import gpu, module
from tests.rig.quiet import quiet_udev

__all__ = ["figures", "gpu", "module", "pytest_configure", "pytest_terminal_summary"]


@pytest.fixture(scope="session", autouse=True)
def nobody_else() -> Iterator[None]:
    """Works on the lab host's only processor."""
    with quiet_udev():
        yield
