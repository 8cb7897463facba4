# SPDX-License-Identifier: Apache-2.0
"""How much processor time processes have used, user and system, from /proc."""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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


def _processes() -> Iterable[tuple[int, int, int]]:
    """(process, parent, ticks of its own and of the children that it has waited for), see proc(5)."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            said = (directory / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):  # ended since
            continue
        after_name = said.rpartition(")")[2].split()
        yield int(directory.name), int(after_name[1]), sum(map(int, after_name[11:15]))
