# SPDX-License-Identifier: Apache-2.0
"""Each allocation fails in turn: a request is then refused as a whole, and works when it is repeated.

Only on kernels that can make allocations fail on demand, like the debug kernel.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kmod.failures.sites import missed
from tests.rig.failing import failures_possible, skip_if_impossible, text_of
from tests.rig.gpu import Gpu
from tests.rig.kernel import log_grows


@pytest.fixture(autouse=True, scope="session")
def possible_here() -> None:
    """Skip before an accelerator is set up for nothing."""
    skip_if_impossible()


@pytest.fixture(autouse=True)
def possible(gpu: Gpu) -> Iterator[None]:
    """Fail the allocations of the module, or of others on its behalf, but not of the system calls that lead to it."""
    with failures_possible(text_of("vgpumgr")):
        yield


@pytest.fixture(autouse=True, scope="module")
def quiet_console() -> Iterator[None]:
    """The log has each failure with its stack; keep it off the console."""
    level = Path("/proc/sys/kernel/printk")
    before = level.read_text()
    level.write_text("1")
    yield
    level.write_text(before.split()[0])


@pytest.fixture
def reached(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the sites assigned to a test did fail in it."""
    with log_grows() as told:
        yield
        assert missed(request.node.nodeid, told()) == {}
