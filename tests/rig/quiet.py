# SPDX-License-Identifier: Apache-2.0
"""Keeps the lab host's own programs out of what is measured on its only processor."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORKERS_STAY_S = 3
"""How long udevd's workers wait for another event before they exit, all at once."""


@contextmanager
def quiet_udev() -> Iterator[None]:
    """udevd handles no events inside. Its workers, up to a dozen, are gone: their end takes a processor for most of a
    millisecond, three seconds after the last slice was made, and whoever is measured then pays for it.
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
