# SPDX-License-Identifier: Apache-2.0
"""Keeps the lab host's other programs from disturbing a measurement on its only processor."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORKERS_STAY_S = 3
"""How long udevd's workers wait for another event before all of them exit."""


@contextmanager
def quiet_udev() -> Iterator[None]:
    """While the body runs, udevd handles no events and has no workers. There are up to a dozen of them, which end three
    seconds after the last slice was made. Their end takes a processor for most of a millisecond, at the expense of a
    thread under measurement.
    """
    if not Path("/run/udev/control").exists():  # udevd does not run in every lab host
        yield
        return
    subprocess.run(["udevadm", "settle"], check=True)
    subprocess.run(["udevadm", "control", "--stop-exec-queue"], check=True)
    try:
        time.sleep(WORKERS_STAY_S + 1)
        yield
    finally:
        subprocess.run(["udevadm", "control", "--start-exec-queue"], check=True)
