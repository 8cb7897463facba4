# SPDX-License-Identifier: Apache-2.0
"""What tests read about executors, and what they do to them."""

import os
import signal
import time
from collections.abc import Callable

from tests.agent.fakeexecutor import alive
from tests.agent.host import A, Host
from vgpumgr.wire.fleet import ReportedExecutor

WITHIN_S = 30.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def executor(host: Host) -> ReportedExecutor:
    """Return the last report about the executor of the first slice."""
    return {each.id: each for each in host.api.last().slices}[A].executor


def kill(host: Host, uuid: object = A) -> None:
    """Kill the process and wait until it is gone."""
    (pid,) = alive(host.kernel.root, uuid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: alive(host.kernel.root, uuid) == [])
