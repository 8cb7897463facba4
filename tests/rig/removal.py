# SPDX-License-Identifier: Apache-2.0
"""Removes slices at the end of a test. A failed test may leave a VM, and the kernel waits until the VM releases its
slice."""

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
    """The files that a program opens to use a slice."""
    device = Path("/sys/bus/mdev/devices") / uuid
    found = {f"/dev/vfio/{(device / 'iommu_group').resolve().name}"}
    return found | {f"/dev/vfio/devices/{node.name}" for node in (device / "vfio-dev").glob("vfio*")}


def users(files: Collection[str]) -> list[int]:
    """The other processes that have one of these files open, even if it is deleted."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # the file was closed, or the process ended
            if str(file.readlink()).removesuffix(" (deleted)") in files:
                found.add(int(file.parts[2]))
    return sorted(found - {os.getpid()})


def remove(sysfs: Sysfs, uuid: str) -> None:
    """Remove a slice. A process that does not release it is killed, and AssertionError raised."""
    files = nodes(uuid)  # which end soon
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
