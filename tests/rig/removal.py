# SPDX-License-Identifier: Apache-2.0
"""Takes slices away at the end of a test, also of one that failed and left a VM: the kernel waits until it lets go."""

import os
import signal
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tests.rig.kernel import PATIENCE
from vgpumgr.control.sysfs import Sysfs

LET_GO_S = 30


def nodes(uuid: str) -> set[str]:
    """What a program opens to have a slice."""
    device = Path("/sys/bus/mdev/devices") / uuid
    found = {f"/dev/vfio/{(device / 'iommu_group').resolve().name}"}
    return found | {f"/dev/vfio/devices/{node.name}" for node in (device / "vfio-dev").glob("vfio*")}


def users(files: Collection[str]) -> list[int]:
    """The processes that have one of these open, also if it is deleted; this one left out."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it was closed, or its process ended
            if str(file.readlink()).removesuffix(" (deleted)") in files:
                found.add(int(file.parts[2]))
    return sorted(found - {os.getpid()})


def remove(sysfs: Sysfs, uuid: str) -> None:
    """Remove a slice. Who does not let go of it is killed, and AssertionError raised."""
    files = nodes(uuid)  # which are gone soon
    executor = ThreadPoolExecutor(max_workers=1)
    try:
        removal = executor.submit(sysfs.remove, uuid)
        with suppress(TimeoutError):
            return removal.result(timeout=LET_GO_S * PATIENCE)
        left = users(files)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        removal.result(timeout=LET_GO_S * PATIENCE)
    finally:
        executor.shutdown(wait=False)
    raise AssertionError(f"slice {uuid} was not let go by the processes {left}, which were killed")
