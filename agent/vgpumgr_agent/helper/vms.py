# SPDX-License-Identifier: Apache-2.0
"""Whether a VM's start is still under way: its QEMU was started for it, and lives.

libvirt gives QEMU the VM's UUID as an argument. A process that is older than the slice's record ran before the slice
was asked for: that VM does not start, it is given a slice while it runs.
"""

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

_CLOCK_S = 1.0
"""How far the time of a file and that of a process may be apart, which are of different clocks."""


def is_starting(root: Path, vm_uuid: str, *, since_s: float) -> bool:
    """Whether a process of the VM was started after `since_s`, by the wall clock. Never raises."""
    return any(_started_s(process) >= since_s - _CLOCK_S for process in _processes(root / "proc", vm_uuid))


def _processes(proc: Path, vm_uuid: str) -> Iterator[Path]:
    """QEMU's words are ``-uuid UUID``."""
    wanted = ("-uuid", vm_uuid)
    for directory in proc.glob("[0-9]*"):
        try:
            words = (directory / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has just ended
            continue
        if wanted in pairwise(words):
            yield directory


def _started_s(process: Path) -> float:
    """Return when a process was started, by the wall clock; 0 if it has just ended. See proc_pid_stat(5)."""
    try:
        fields = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()
        ticks = int(fields[19])  # the 22nd, and two are before the parenthesis
    except (OSError, ValueError, IndexError):
        return 0.0
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
