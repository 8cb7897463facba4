# SPDX-License-Identifier: Apache-2.0
"""Tenants that always have work, and how far each is from what it is due at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vgpumgr.sim.engine import Backlog

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
# How many kernels a tenant's pattern has: a prime, so that patterns do not fall into step.
PATTERN = 97

Works = list[NDArray[np.int64]]


def kernels(groups: int, seed: int, *, most_ns: int) -> Works:
    """Each tenant has kernels around a length of its own, log-uniform from a twentieth of the longest on."""
    random = np.random.default_rng(seed)
    usual = most_ns * np.exp(random.uniform(np.log(1 / 20), 0, groups))
    drawn = usual[:, None] * random.uniform(0.7, 1.3, (groups, PATTERN))
    return list(np.minimum(np.rint(drawn), most_ns).astype(np.int64))


def endless(work_ns: NDArray[np.int64]) -> Backlog:
    """The queue never runs dry, and the host never waits."""
    return Backlog(work_ns=work_ns)


@dataclass(frozen=True)
class Shares:
    """What tenants obtained against what they were due; the worst one's where one number stands for all.

    slowdown: of who obtained least for its part, against an engine of its own; due_slowdown: what its part means.
    """

    lag_ns: float
    mean_error: float
    worst_error: float
    jain: float
    slowdown: float
    due_slowdown: float


def shares(runs: NDArray[Any], weights: Sequence[int], until_ns: int) -> Shares:
    """From all runs since the beginning, of groups numbered as in `weights`."""
    due = np.array(weights) / sum(weights)
    runs = runs[np.argsort(runs["group"], kind="stable")]
    group, start, length = runs["group"], runs["start_ns"], runs["length_ns"]
    obtained = np.bincount(group, weights=length, minlength=len(weights))
    # A tenant's lag only rises while it waits and only falls while it runs: edges of runs are enough.
    after = np.cumsum(length) - np.concatenate([[0], np.cumsum(obtained)[:-1]])[group]
    rate = due[group]
    at_end = due * until_ns - obtained
    worst = max(
        float(np.abs(edge).max()) for edge in (rate * start - (after - length), rate * (start + length) - after, at_end)
    )
    part = obtained / (due * until_ns)
    least = int(part.argmin())
    return Shares(
        lag_ns=worst,
        mean_error=float(np.abs(part - 1).mean()),
        worst_error=float(np.abs(part - 1).max()),
        jain=float(part.sum() ** 2 / (len(part) * (part * part).sum())),
        slowdown=until_ns / obtained[least] if obtained[least] else float("inf"),
        due_slowdown=1 / due[least],
    )
