# SPDX-License-Identifier: Apache-2.0
"""Arrival times of requests: Poisson, periodic, on-off, diurnal, or with a step.

Each function returns ascending times in nanoseconds within [0, duration). Rates are requests per second. The result is
determined by the generator that is passed in. Processes with a changing rate are drawn by thinning (Lewis and Shedler,
1979).
"""

import math
from collections.abc import Callable

import numpy as np

from vgpumgr.sim.workloads import Times

SECOND_NS = 1_000_000_000


def poisson(random: np.random.Generator, *, rate: float, duration_ns: int) -> Times:
    """Poisson arrivals: independent of one another."""
    return _poisson_between(random, rate, 0, duration_ns)


def periodic(*, rate: float, duration_ns: int, phase_ns: int = 0) -> Times:
    """One arrival every 1/rate, the first at `phase_ns`."""
    count = max(0, math.ceil((duration_ns - phase_ns) * rate / SECOND_NS))
    times: Times = phase_ns + np.rint(np.arange(count) * (SECOND_NS / rate)).astype(np.int64)
    return times[times < duration_ns]


def on_off(random: np.random.Generator, *, rate: float, mean_on_ns: int, mean_off_ns: int, duration_ns: int) -> Times:
    """Poisson while on, none while off. Both phases have exponential lengths (a two-state Markov-modulated process)."""
    times: list[Times] = []
    now_ns = 0.0
    on = bool(random.random() < mean_on_ns / (mean_on_ns + mean_off_ns))
    while now_ns < duration_ns:
        end_ns = min(now_ns + random.exponential(mean_on_ns if on else mean_off_ns), float(duration_ns))
        if on:
            times.append(_poisson_between(random, rate, int(now_ns), int(end_ns)))
        now_ns, on = end_ns, not on
    return np.concatenate(times) if times else np.empty(0, dtype=np.int64)


def diurnal(
    random: np.random.Generator, *, rate: float, amplitude: float, period_ns: int, phase: float, duration_ns: int
) -> Times:
    """Poisson with a rate that follows a sine. `phase` is a fraction of the period."""

    def at(time_ns: Times) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        return rate * (1 + amplitude * np.sin(2 * math.pi * (time_ns / period_ns + phase)))

    return _thinned(random, at, rate * (1 + amplitude), duration_ns)


def step(random: np.random.Generator, *, rate: float, factor: float, at_ns: int, duration_ns: int) -> Times:
    """Poisson with a rate that is multiplied by `factor` from `at_ns` on."""
    at_ns = min(at_ns, duration_ns)
    before = _poisson_between(random, rate, 0, at_ns)
    return np.concatenate([before, _poisson_between(random, rate * factor, at_ns, duration_ns)])


def _poisson_between(random: np.random.Generator, rate: float, start_ns: int, end_ns: int) -> Times:
    count = random.poisson(rate * max(end_ns - start_ns, 0) / SECOND_NS)
    return np.sort(random.integers(start_ns, max(end_ns, start_ns + 1), count, dtype=np.int64))


def _thinned(
    random: np.random.Generator,
    rate_at: "Callable[[Times], np.ndarray[tuple[int], np.dtype[np.float64]]]",
    highest: float,
    duration_ns: int,
) -> Times:
    times = _poisson_between(random, highest, 0, duration_ns)
    return times[random.random(len(times)) * highest < rate_at(times)]
