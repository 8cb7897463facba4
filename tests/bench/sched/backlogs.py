# SPDX-License-Identifier: Apache-2.0
"""Tenants that always have work, and how far each is from its entitlement at any moment."""

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
# The number of kernels in a tenant's pattern: a prime, so that patterns do not run in step.
PATTERN = 97

Works = list[NDArray[np.int64]]


def kernels(groups: int, seed: int, *, most_ns: int) -> Works:
    """Return kernels. Each tenant's lengths vary around its own value, log-uniform between a twentieth of the longest
    and the longest.
    """
    random = np.random.default_rng(seed)
    usual = most_ns * np.exp(random.uniform(np.log(1 / 20), 0, groups))
    drawn = usual[:, None] * random.uniform(0.7, 1.3, (groups, PATTERN))
    return list(np.minimum(np.rint(drawn), most_ns).astype(np.int64))


def endless(work_ns: NDArray[np.int64]) -> Backlog:
    """Return a queue that never runs empty, with a host that never waits."""
    return Backlog(work_ns=work_ns)


@dataclass(frozen=True)
class Shares:
    """What tenants obtained, compared with their entitlement; a single number is that of the worst tenant.

    slowdown: of the tenant that obtained least for its share, compared with an engine alone; due_slowdown: the slowdown
    that its share implies.
    """

    lag_ns: float
    mean_error: float
    worst_error: float
    jain: float
    slowdown: float
    due_slowdown: float


def shares(runs: NDArray[Any], weights: Sequence[int], until_ns: int) -> Shares:
    """Compute the shares from all runs since the beginning; groups are numbered like `weights`."""
    due = np.array(weights) / sum(weights)
    runs = runs[np.argsort(runs["group"], kind="stable")]
    group, start, length = runs["group"], runs["start_ns"], runs["length_ns"]
    obtained = np.bincount(group, weights=length, minlength=len(weights))
    # A lag only rises while the tenant waits and only falls while it runs, so the edges of runs are enough.
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
