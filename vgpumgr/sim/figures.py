# SPDX-License-Identifier: Apache-2.0
"""The figures of one tenant in one seed, and how seeds are combined.

Keys carry their unit: `_ns`, or none for fractions, ratios and counts. A figure that a tenant cannot have (a latency
without requests) is missing. Pure.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vgpumgr.sim.due import Due
from vgpumgr.sim.played import GroupPlayed, Played

# Reason of a run after which another slice of the same group continues (engine.Reason.SLICE).
SAME_GROUP = 16

WORST = frozenset(
    {
        "share_error",
        "worst_lag_ns",
        "longest_run_ns",
        "latency_p99_ns",
        "latency_max_ns",
        "slowdown_p99",
        "exclusive_p99_ns",
    }
)
"""Figures that report the worst of a tenant's copies. All other figures report the mean of the copies."""

# Student's t, two-sided 95 %, by degrees of freedom from 1 on. Beyond the list 2.0 is close enough.
_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One figure over all seeds: mean, 95 % interval of the mean (None with one seed), and each seed's value."""

    mean: float
    interval: tuple[float, float] | None
    by_seed: tuple[float, ...]


def over_seeds(values: Sequence[float]) -> Figure:
    """Combine the values of one figure from all seeds."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Figure(mean, None, tuple(values))
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    t = _STUDENT_T[count - 2] if count - 2 < len(_STUDENT_T) else 2.0
    half = t * deviation / math.sqrt(count)
    return Figure(mean, (mean - half, mean + half), tuple(values))


def over_copies(key: str, values: Sequence[float]) -> float:
    """Combine one figure of all copies of a tenant."""
    if key in WORST:
        return max(values, key=abs)
    return math.fsum(values) / len(values)


def of_group(played: Played, group: GroupPlayed, due: Due, stays: "Stays") -> dict[str, float]:
    """Return the figures of one group in one seed."""
    wall_ns = played.wall_ns
    entitled = due.share(group.name, played.start_ns, played.end_ns)
    obtained = (group.run_ns + group.hold_ns) / wall_ns
    figures = {
        "entitled_share": entitled,
        "obtained_share": obtained,
        "overhead_share": group.overhead_ns / wall_ns,
        "hold_share": group.hold_ns / wall_ns,
        "longest_run_ns": float(stays.longest_ns(group.index, played.start_ns)),
        "switches_per_s": group.switches * 1e9 / wall_ns,
    }
    if group.exclusive_ns is None:
        if entitled:
            figures["share_error"] = (obtained - entitled) / entitled
        if due.exact:
            figures["worst_lag_ns"] = stays.worst_lag_ns(group, due, played)
    if group.offered_ns is not None:
        figures["offered_share"] = group.offered_ns / wall_ns
    return figures | _latencies(group, wall_ns)


def _latencies(group: GroupPlayed, wall_ns: int) -> dict[str, float]:
    if group.exclusive_ns is None:
        return {}
    figures: dict[str, float] = {
        "requests": float(len(group.latencies_ns)),
        "requests_per_s": len(group.latencies_ns) * 1e9 / wall_ns,
        "unfinished": float(group.unfinished),
    }
    for name, values in (("latency", group.latencies_ns), ("exclusive", group.exclusive_ns)):
        if len(values):
            figures |= {
                f"{name}_mean_ns": float(values.mean()),
                f"{name}_p50_ns": float(np.quantile(values, 0.5)),
                f"{name}_p99_ns": float(np.quantile(values, 0.99)),
                f"{name}_max_ns": float(values.max()),
            }
    for part in ("mean", "p99"):
        ours, alone = figures.get(f"latency_{part}_ns"), figures.get(f"exclusive_{part}_ns")
        if ours and alone:
            figures[f"slowdown_{part}"] = ours / alone
    return figures


class Stays:
    """The runs of a seed, by group: which group had the engine when."""

    def __init__(self, runs: NDArray[Any]) -> None:
        order = np.argsort(runs["group"], kind="stable")
        groups = runs["group"][order]
        firsts = np.flatnonzero(np.diff(groups, prepend=-1)) if len(groups) else np.empty(0, dtype=np.int64)
        lasts = np.append(firsts[1:], len(groups))
        self._runs: dict[int, NDArray[Any]] = {
            int(groups[first]): runs[order[first:last]] for first, last in zip(firsts, lasts, strict=False)
        }
        self._none = runs[:0]

    def of(self, group: int) -> NDArray[Any]:
        """Return a group's runs in order of time."""
        return self._runs.get(group, self._none)

    def obtained_ns(self, group: int, at_ns: NDArray[Any]) -> NDArray[np.float64]:
        """Return a group's total engine time until each of these times."""
        runs = self.of(group)
        edges = np.empty(2 * len(runs) + 1)
        total = np.zeros(2 * len(runs) + 1)
        edges[0] = 0
        edges[1::2] = runs["start_ns"]
        edges[2::2] = runs["start_ns"] + runs["length_ns"]
        total[2::2] = np.cumsum(runs["length_ns"])
        total[1::2] = total[0:-1:2]
        obtained: NDArray[np.float64] = np.interp(at_ns, edges, total)
        return obtained

    def longest_ns(self, group: int, start_ns: int) -> int:
        """Return the longest time that a group kept the engine in one run, in which its slices may take turns."""
        runs = self.of(group)
        runs = runs[runs["start_ns"] + runs["length_ns"] > start_ns]
        if not len(runs):
            return 0
        ends = runs["start_ns"] + runs["length_ns"]
        goes_on = (runs["reason"][:-1] == SAME_GROUP) & (ends[:-1] == runs["start_ns"][1:])
        first = np.flatnonzero(np.append(True, ~goes_on))
        return int(np.add.reduceat(runs["length_ns"], first).max())

    def worst_lag_ns(self, group: GroupPlayed, due: Due, played: Played) -> float:
        """Return the largest difference between due and obtained time since the beginning.

        Between the edges of a group's runs its lag only rises or only falls, so checking the edges is enough.
        """
        runs = self.of(group.index)
        edges = np.concatenate([runs["start_ns"], runs["start_ns"] + runs["length_ns"], due.at_ns])
        edges = edges[(edges >= played.start_ns) & (edges <= played.end_ns)]
        entitled = np.interp(edges, due.at_ns, due.time_ns(group.name))
        return float(np.abs(entitled - self.obtained_ns(group.index, edges)).max())


def jain(shares: Mapping[str, float]) -> float | None:
    """Return Jain's index of obtained by entitled shares: 1 if all groups got the same part of their entitlement."""
    total = math.fsum(shares.values())
    squares = math.fsum(share * share for share in shares.values())
    return total * total / (len(shares) * squares) if squares else None
