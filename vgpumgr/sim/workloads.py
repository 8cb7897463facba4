# SPDX-License-Identifier: Apache-2.0
"""Sequences of kernels like those of real models, generated from published figures.

No data is copied. For each model, the count, the sum and nine quantiles of its kernels' durations are published
(Orion's V100 profiles, https://github.com/eth-easl/orion). They are turned into a quantile function, which is sampled
at evenly spaced points and shuffled by the seed. Between two published quantiles the logarithm of the duration follows
a power of the position. Bisection finds the one power that gives the published sum, so sum and quantiles are both kept.
A kernel's identity is its duration's bin, a quarter of an octave wide, because one function with one grid takes about
the same time. A kernel that the host waits for is identified by the place in the program where the host waits, one of
16 such places.

The host's side is a model (stated, not measured): launching a kernel takes a log-normal time, sigma 0.35. At a
synchronisation point the host works for a log-normal time, median 1 ms, sigma 0.35. Times are nanoseconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Times: TypeAlias = NDArray[np.int64]
POSITIONS = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
LAUNCH_SIGMA = 0.35
LAUNCH_MEDIAN_NS = 15_000
SYNC_MEDIAN_NS = 1_000_000
_BINS_PER_OCTAVE = 4
SYNC_PLACES = 16
_SYNC_IDENTITY = 1 << 16
_POWERS = (1 / 64, 64.0)


@dataclass(frozen=True)
class Model:
    """The published figures of one model: number of kernels per request, their sum, and quantiles at POSITIONS."""

    kernels: int
    sum_ms: float
    quantiles_us: tuple[float, ...]


MODELS: dict[str, Model] = {
    "mobilenetv2-inference": Model(152, 2.26, (4.2, 4.4, 5.3, 8.6, 22, 32, 45, 65, 65)),
    "resnet50-inference": Model(175, 6.50, (4.3, 5.1, 6.5, 12.5, 59, 96, 126, 242, 380)),
    "resnet101-inference": Model(345, 12.2, (4.7, 4.8, 7.0, 12.9, 72, 99, 100, 175, 382)),
    "transformer-inference": Model(459, 16.7, (5.7, 6.7, 8.3, 15.6, 35, 138, 150, 197, 202)),
    "efficientnet-inference": Model(823, 18.5, (3.6, 3.8, 4.5, 7.8, 21, 68, 115, 140, 232)),
    "bert-inference": Model(572, 48.6, (9.2, 9.5, 10.3, 34, 129, 139, 497, 515, 517)),
    "retinanet-inference": Model(991, 286, (3.1, 3.2, 3.4, 6.2, 102, 398, 764, 6648, 29564)),
    "resnet50-training": Model(946, 95.3, (2.7, 2.9, 3.6, 5.9, 95, 360, 500, 819, 1238)),
    "resnet101-training": Model(1847, 156, (2.7, 3.0, 3.5, 6.8, 93, 335, 370, 715, 1265)),
    "mobilenetv2-training": Model(890, 74.9, (2.7, 2.7, 3.1, 3.9, 85, 242, 367, 1213, 2465)),
    "bert-training": Model(4777, 191, (2.8, 2.9, 3.1, 3.7, 14, 48, 272, 997, 1081)),
    "transformer-xl-training": Model(4354, 125, (2.9, 3.0, 3.1, 4.5, 13, 56, 111, 348, 2223)),
}


@dataclass(frozen=True)
class Kernels:
    """A request's kernels in launch order. `sync_ns` is 0 where the host does not wait."""

    work_ns: Times
    launch_ns: Times
    kernel_id: NDArray[np.uint32]
    sync_ns: Times


def quantile_us(model: Model, position: float, power: float) -> float:
    """Return the duration at a position in [0, 1]. Below the lowest published quantile, it is that quantile."""
    points = model.quantiles_us
    if position <= POSITIONS[0]:
        return points[0]
    upper = next(index for index, at in enumerate(POSITIONS) if position <= at)
    below, above = math.log(points[upper - 1]), math.log(points[upper])
    part = (position - POSITIONS[upper - 1]) / (POSITIONS[upper] - POSITIONS[upper - 1])
    return math.exp(below + (above - below) * part**power)


@cache
def durations_us(name: str) -> tuple[float, ...]:
    """Return a model's kernel durations in ascending order, with its count, sum and quantiles."""
    model = MODELS[name]
    positions = [index / (model.kernels - 1) for index in range(model.kernels)]

    def durations(power: float) -> tuple[float, ...]:
        return tuple(quantile_us(model, position, power) for position in positions)

    # A larger power keeps the function longer at a segment's lower end, so the sum is smaller.
    low, high = _POWERS
    for _ in range(60):
        middle = math.sqrt(low * high)
        if sum(durations(middle)) > 1000 * model.sum_ms:
            low = middle
        else:
            high = middle
    found = durations(high)
    scale = 1000 * model.sum_ms / sum(found)
    return tuple(duration * scale for duration in found)


def identity(duration_us: float) -> int:
    """Return the kernel identity of a duration: the number of its bin, counted from 1 at one nanosecond."""
    return 1 + int(_BINS_PER_OCTAVE * math.log2(max(1000 * duration_us, 1)))


def published(name: str, *, seed: int, launch_median_ns: int = LAUNCH_MEDIAN_NS, sync_every: int = 0) -> Kernels:
    """Return one request of a model in `MODELS`. The host waits after every `sync_every` kernels, 0 for never."""
    return _sequence(durations_us(name), seed, launch_median_ns, sync_every)


def log_normal(
    *,
    kernels: int,
    total_ns: int,
    median_ns: int,
    seed: int,
    launch_median_ns: int = LAUNCH_MEDIAN_NS,
    sync_every: int = 0,
) -> Kernels:
    """Return one request with log-normal durations, of a model of which only count, sum and median are known.

    ValueError if the mean is below the median, which no log-normal distribution has.
    """
    mean_ns = total_ns / kernels
    if mean_ns < median_ns:
        raise ValueError("expected a total of at least kernels * median")
    sigma = math.sqrt(2 * math.log(mean_ns / median_ns))
    normal = NormalDist()
    raw = [median_ns * math.exp(sigma * normal.inv_cdf((index + 0.5) / kernels)) for index in range(kernels)]
    scale = total_ns / sum(raw) / 1000
    return _sequence([duration * scale for duration in raw], seed, launch_median_ns, sync_every)


def _sequence(durations_us: Sequence[float], seed: int, launch_median_ns: int, sync_every: int) -> Kernels:
    random = np.random.default_rng(seed)
    shuffled = random.permutation(np.asarray(durations_us, dtype=np.float64))
    count = len(shuffled)
    sync_ns = np.zeros(count, dtype=np.int64)
    if sync_every:
        points = np.arange(sync_every - 1, count - 1, sync_every)
        sync_ns[points] = _log_normal_ns(random, SYNC_MEDIAN_NS, len(points))
    kernel_id = np.array([identity(duration) for duration in shuffled], dtype=np.uint32)
    waited_for = np.flatnonzero(sync_ns)
    kernel_id[waited_for] = _SYNC_IDENTITY + np.arange(len(waited_for)) % SYNC_PLACES
    return Kernels(
        work_ns=np.maximum(np.rint(1000 * shuffled), 1).astype(np.int64),
        launch_ns=_log_normal_ns(random, launch_median_ns, count),
        kernel_id=kernel_id,
        sync_ns=sync_ns,
    )


def _log_normal_ns(random: np.random.Generator, median_ns: int, count: int) -> Times:
    if not median_ns:
        return np.zeros(count, dtype=np.int64)
    drawn = random.lognormal(math.log(median_ns), LAUNCH_SIGMA, count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)
