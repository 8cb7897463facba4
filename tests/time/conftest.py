# SPDX-License-Identifier: Apache-2.0
"""These tests run inside a lab host under `--icount`: every duration is virtual time.

There one instruction takes one nanosecond and the machine that runs the lab cannot disturb a measurement,
so shares and lengths are asserted as they are. Engine time is the `delay` operation.
"""

from tests.rig.figures import figures, pytest_configure, pytest_terminal_summary
from tests.rig.fixtures import gpu, module

__all__ = ["figures", "gpu", "module", "pytest_configure", "pytest_terminal_summary"]
