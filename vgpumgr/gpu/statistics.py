# SPDX-License-Identifier: Apache-2.0
"""Intervals of repeated measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from statistics import fmean, stdev

# Student's t, two-sided, 95 %, by degrees of freedom. Values between two entries use the smaller entry's, which is
# slightly too wide; the last entry stands for all larger numbers.
_T95 = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365), (8, 2.306), (9, 2.262),
    (10, 2.228), (12, 2.179), (15, 2.131), (20, 2.086), (30, 2.042), (60, 2.0),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Mean of `count` measurements and its 95 % interval, which has no width for a single measurement."""

    mean: float
    low: float
    high: float
    count: int

    def document(self) -> dict[str, float | int]:
        return {name: round(value, 6) for name, value in asdict(self).items()}

    def widened(self, by: float) -> Interval:
        """Return the interval widened by an error that repeats do not average away."""
        return replace(self, low=self.low - by, high=self.high + by)

    def overlaps(self, low: float, high: float) -> bool:
        """Whether the true mean could lie in this range."""
        return self.low <= high and self.high >= low


class Place(StrEnum):
    """The position of an interval relative to a range."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    ACROSS = "across"  # the measurements do not decide


def place(found: Interval, least: float, most: float) -> Place:
    """Compare with the range from `least` to `most`. A single measurement decides nothing."""
    if found.count < 2:
        return Place.ACROSS
    if least <= found.low and found.high <= most:
        return Place.INSIDE
    return Place.ACROSS if found.overlaps(least, most) else Place.OUTSIDE


def _t95(freedom: int) -> float:
    return next((t for least, t in reversed(_T95) if freedom >= least), _T95[0][1])


def interval(samples: Sequence[float]) -> Interval:
    """Return the mean of independent repeats with its 95 % interval. Raises ValueError without samples."""
    if not samples:
        raise ValueError("an interval needs at least one sample")
    mean = fmean(samples)
    margin = 0.0
    if len(samples) > 1:
        margin = _t95(len(samples) - 1) * stdev(samples) / math.sqrt(len(samples))
    return Interval(mean=mean, low=mean - margin, high=mean + margin, count=len(samples))


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the smallest sample that is not below the part `q` of all samples. Raises ValueError without samples."""
    if not samples:
        raise ValueError("a quantile needs at least one sample")
    ordered = sorted(samples)
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]
