# SPDX-License-Identifier: Apache-2.0
"""The results of one seed, as plain values from which reports and plots are made."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Intervals: TypeAlias = NDArray[np.int64]
"""Rows of begin and end, ascending and disjoint; nanoseconds."""

Asked: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Requests: when each arrived and how much work it is, in nanoseconds."""


@dataclass(frozen=True)
class GroupPlayed:
    """The results of one group after the warm-up. `exclusive_ns`: its latencies on an engine of its own.

    `asked`: all its requests. `asked` and `exclusive_ns` are None if the group always has work. `index`: its number in
    the runs. Latencies are of requests that arrived after the warm-up and were done before the end. `offered_ns`: the
    work that arrived after the warm-up. It is None if each request waits for the end of the one before, because the
    offered work then depends on the obtained time.
    """

    name: str
    tenant: int
    index: int
    run_ns: int
    hold_ns: int
    overhead_ns: int
    switches: int
    latencies_ns: NDArray[np.int64]
    unfinished: int
    exclusive_ns: NDArray[np.int64] | None
    asked: Asked | None
    offered_ns: int | None = None


@dataclass(frozen=True)
class Played:
    """The results of one seed. Times in `runs` count from the beginning, including the warm-up."""

    seed: int
    schedule_hash: str
    start_ns: int
    end_ns: int
    idle_ns: int
    decisions: int
    switches: int
    groups: list[GroupPlayed]
    runs: NDArray[Any]

    @property
    def wall_ns(self) -> int:
        return self.end_ns - self.start_ns


Progress = Callable[[float], None]


def part_of(progress: Progress, index: int, count: int) -> Progress:
    """Return the progress function for the `index`-th of `count` equal parts of the work."""
    return lambda part: progress((index + part) / count)
