# SPDX-License-Identifier: Apache-2.0
"""Finds out whether a VM is still starting: whether its QEMU process is newer than the slice's record.

libvirt passes the VM's UUID to QEMU as an argument. A process older than the record belongs to a VM that was already
running when the slice was requested: the slice is then hot-plugged, and the VM is not starting.
"""

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

_CLOCK_S = 1.0
"""Tolerance between a file's time and a process's, which come from different clocks."""


def is_starting(root: Path, vm_uuid: str, *, since_s: float) -> bool:
    """Return whether a process of the VM started after `since_s`, by the wall clock. Never raises."""
    return any(_started_s(process) >= since_s - _CLOCK_S for process in _processes(root / "proc", vm_uuid))


def _processes(proc: Path, vm_uuid: str) -> Iterator[Path]:
    """Yield the processes with the arguments ``-uuid UUID``, which are QEMU's."""
    wanted = ("-uuid", vm_uuid)
    for directory in proc.glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # the process has just ended
            continue
        if wanted in pairwise(words):
            yield directory


def _started_s(process: Path) -> float:
    """Return when a process started, by the wall clock, or 0 if it has just ended. See proc_pid_stat(5)."""
    try:
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        ticks = int(fields[19])  # field 22; the two before the parenthesis are cut off
    except (OSError, ValueError, IndexError):
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
