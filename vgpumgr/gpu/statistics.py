# SPDX-License-Identifier: Apache-2.0
"""Intervals of repeated measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import fmean, stdev

# Student's t, two sided, 95 %, by degrees of freedom; beyond the last the normal value, slightly too wide before it.
_T95 = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365), (8, 2.306), (9, 2.262),
    (10, 2.228), (12, 2.179), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.0),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Mean of `count` measurements and the 95 % interval around it; without width where there is one only."""

    mean: float
    low: float
    high: float
    count: int

    def document(self) -> dict[str, float | int]:
        return {name: round(value, 6) for name, value in asdict(self).items()}

    def widened(self, by: float) -> Interval:
        """With an error that repeats do not average away."""
        return replace(self, low=self.low - by, high=self.high + by)

    def overlaps(self, low: float, high: float) -> bool:
        """Could the true mean lie there?"""
        return self.low <= high and self.high >= low


class Place(StrEnum):
    """Where an interval lies, compared with a range."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    ACROSS = "across"  # its measurements do not tell


def place(found: Interval, least: float, most: float) -> Place:
    """Compare with the range from `least` to `most`. One measurement tells nothing."""
    if found.count < 2:
        return Place.ACROSS
    if least <= found.low and found.high <= most:
        return Place.INSIDE
    return Place.ACROSS if found.overlaps(least, most) else Place.OUTSIDE


def _t95(freedom: int) -> float:
    return next((t for least, t in reversed(_T95) if freedom >= least), _T95[0][1])


def interval(samples: Sequence[float]) -> Interval:
    """The mean of independent repeats with its 95 % interval. Raises ValueError without samples."""
    if not samples:
        raise ValueError("an interval needs at least one sample")
    mean = fmean(samples)
    margin = 0.0
    if len(samples) > 1:
        margin = _t95(len(samples) - 1) * stdev(samples) / math.sqrt(len(samples))
    return Interval(mean=mean, low=mean - margin, high=mean + margin, count=len(samples))


def quantile(samples: Sequence[float], q: float) -> float:
    """The smallest sample that at least the part `q` of all does not exceed. Raises ValueError without samples."""
    if not samples:
        raise ValueError("a quantile needs at least one sample")
    ordered = sorted(samples)
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]
