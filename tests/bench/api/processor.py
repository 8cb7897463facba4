# SPDX-License-Identifier: Apache-2.0
"""The processor time of processes, user and system, from /proc; and the speed of the processors."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
YARDSTICK = (
    "import time; b = time.perf_counter(); sum(n * n % 7 for n in range(2_000_000)); print(time.perf_counter() - b)"
)


def used_s(roots: Iterable[int]) -> float:
    """Returns the time of these processes and all their descendants. An ended process counts once its parent has waited
    for it.
    """
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for process, parent, used in _processes():
        ticks[process] = used
        children[parent].append(process)
    left, total = list(roots), 0
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += children[process]
    return total / TICKS_PER_S


def yardstick_ms() -> float:
    """Returns the time of a Python loop that runs on all processors at once: it compares the speed of machines, or of
    hours.
    """
    loops = [
        subprocess.Popen([sys.executable, "-c", YARDSTICK], stdout=subprocess.PIPE, text=True)
        for _ in os.sched_getaffinity(0)
    ]
    return max(1000 * float(loop.communicate()[0]) for loop in loops)


def _processes() -> Iterable[tuple[int, int, int]]:
    """Yields (process, parent, ticks of the process and of the children that it has waited for); see proc(5)."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            said = (directory / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
        after_name = said.rpartition(")")[2].split()
        yield int(directory.name), int(after_name[1]), sum(map(int, after_name[11:15]))
