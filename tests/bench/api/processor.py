# SPDX-License-Identifier: Apache-2.0
"""How much processor time processes have used, user and system, from /proc; and how fast the processors are."""

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
    """Of these processes and all that descend from them. Who has ended counts once its parent has waited for it."""
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
    """How long one loop of Python takes on all processors at once: which of two machines, or hours, is the faster."""
    loops = [
        subprocess.Popen([sys.executable, "-c", YARDSTICK], stdout=subprocess.PIPE, text=True)
        for _ in os.sched_getaffinity(0)
    ]
    return max(1000 * float(loop.communicate()[0]) for loop in loops)


def _processes() -> Iterable[tuple[int, int, int]]:
    """(process, parent, ticks of its own and of the children that it has waited for), see proc(5)."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            said = (directory / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # ended since
            continue
        after_name = said.rpartition(")")[2].split()
        yield int(directory.name), int(after_name[1]), sum(map(int, after_name[11:15]))
