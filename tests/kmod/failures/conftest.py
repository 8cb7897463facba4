# SPDX-License-Identifier: Apache-2.0
"""Memory runs out at any moment: whatever was asked for is refused as a whole, and works when it is asked for again.

Only on kernels that let allocations fail on demand, as the debug kernel does.
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
    """Before an accelerator is set up for nothing."""
    skip_if_impossible()


@pytest.fixture(autouse=True)
def possible(gpu: Gpu) -> Iterator[None]:
    """What the module allocates, or somebody for it; not what leads there."""
    with failures_possible(text_of("vgpumgr")):
        yield


@pytest.fixture(autouse=True, scope="module")
def quiet_console() -> Iterator[None]:
    """Each failure is told with its stack: in the log only."""
    level = Path("/proc/sys/kernel/printk")
    before = level.read_text()
    level.write_text("1")
    yield
    level.write_text(before.split()[0])


@pytest.fixture
def reached(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test is said to let fail did fail in it."""
    with log_grows() as told:
        yield
        assert missed(request.node.nodeid, told()) == {}
