# SPDX-License-Identifier: Apache-2.0
"""Reservations that follow the needs of latency-critical services.

In the style of ArkGPU (CCF Transactions on High Performance Computing 5(3), 2023), whose paper names the parts: a
predictor of service times, a scheduler, a limiter (here the core's reservations) and an adjustment unit. We could not
read the body of the paper; formulas and constants are ours:

- `ServiceTimes` predicts how long a batch of b takes at a share s of the engine, T(b, s) = a*b/s + c*b + d. Here a is
  work on the engine, c is work on the host for each item, and d is work on the host for each batch. It fits
  these factors by least squares over the measurements; older samples count less.
- `ReserveController` is asked once every PERIOD_NS. A reservation grows to its due, which is demand plus headroom. It
  also grows while the tail of the service's times is above HIGH of the QoS time, in proportion to the excess. It
  decays to its due once the tail was below LOW for PATIENCE periods. A reservation changes by at most STEP of itself
  in a period. Demand within DEADBAND of a reservation does not move it, so constant load has constant reservations.
  Demand is the mean rate since its last change. A cumulative sum test detects changes (Page, Biometrika 41, 1954):
  soon for a service with many requests, later for one with few, and not for differences that chance explains.

Shares are parts per million of the engine; times are ns.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

PERIOD_NS = 100_000_000
PPM = 1_000_000
LEAST_PPM = 1000
HIGH, LOW = 0.9, 0.7
GAIN = 0.25
STEP = 0.10
DECAY = 0.97
PATIENCE = 5
HEADROOM = 1.05
DEADBAND = 0.05
# The change of rate that the test is tuned for, and the test's threshold: about one false alarm in exp(6) periods.
CHANGE = 1.6
ALARM = 6.0
# The number of requests from which on demand is known, and the number of requests over which it is averaged.
KNOWN_REQUESTS = 16
WINDOW_REQUESTS = 400
FADING = 0.98
RIDGE = 1e-9


class ServiceTimes:
    """Predictor of one service's times."""

    def __init__(self) -> None:
        self._products = [[0.0] * 3 for _ in range(3)]
        self._targets = [0.0] * 3
        self.samples = 0

    def add(self, *, batch: int, share_ppm: int, took_ns: int) -> None:
        """Record that a batch of `batch` requests took `took_ns` at a share of `share_ppm`."""
        row = _row(batch, share_ppm)
        if took_ns <= 0:
            raise ValueError(f"took_ns {took_ns} is not above 0")
        for i in range(3):
            self._targets[i] = FADING * self._targets[i] + row[i] * took_ns
            for j in range(3):
                self._products[i][j] = FADING * self._products[i][j] + row[i] * row[j]
        self.samples += 1

    def coefficients_ns(self) -> tuple[float, float, float]:
        """Return (a, c, d). ValueError before the first sample.

        Coefficients that the samples cannot separate (one batch size, one share) are divided evenly. Predictions for
        such batches and shares are still right.
        """
        if not self.samples:
            raise ValueError("nothing was measured yet")
        a, c, d = _solve(self._products, self._targets)
        return a, c, d

    def predict_ns(self, *, batch: int, share_ppm: int) -> int:
        row = _row(batch, share_ppm)
        return max(1, round(sum(x * y for x, y in zip(row, self.coefficients_ns(), strict=True))))

    def largest_batch(self, *, share_ppm: int, within_ns: int, most: int) -> int:
        """Return the largest batch, at most `most`, that ends within `within_ns`; 0 if one request takes longer."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.predict_ns(batch=middle, share_ppm=share_ppm) <= within_ns:
                low = middle
            else:
                high = middle - 1
        return low


def _row(batch: int, share_ppm: int) -> tuple[float, float, float]:
    if batch < 1:
        raise ValueError(f"batch {batch} is not at least 1")
    if not 0 < share_ppm <= PPM:
        raise ValueError(f"share_ppm {share_ppm} is not in 1..{PPM}")
    return batch * PPM / share_ppm, float(batch), 1.0


def _solve(products: list[list[float]], targets: list[float]) -> list[float]:
    """Gaussian elimination with pivoting. A small ridge keeps the coefficient of an input that never varied finite."""
    size = len(targets)
    ridge = RIDGE * sum(products[i][i] for i in range(size))
    rows = [[*products[i], targets[i]] for i in range(size)]
    for i in range(size):
        rows[i][i] += ridge
    for i in range(size):
        pivot = max(range(i, size), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(i + 1, size):
            factor = rows[k][i] / rows[i][i]
            for j in range(i, size + 1):
                rows[k][j] -= factor * rows[i][j]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - known) / rows[i][i]
    return solution


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The time within which a service's requests must end, and the range of its reservation."""

    qos_ns: int
    least_ppm: int = LEAST_PPM
    most_ppm: int = PPM

    def __post_init__(self) -> None:
        if self.qos_ns <= 0:
            raise ValueError(f"qos_ns {self.qos_ns} is not above 0")
        if not LEAST_PPM <= self.least_ppm <= self.most_ppm <= PPM:
            raise ValueError(f"a reservation of {self.least_ppm}..{self.most_ppm} ppm is not within {LEAST_PPM}..{PPM}")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One service's last period.

    `requests`: how many arrived. `work_ns`: predicted engine time of each. `tail_ns`: the 95th percentile of recent
    times (over the last second, and over enough requests to have one), None if unknown."""

    requests: int
    work_ns: int
    tail_ns: int | None

    def __post_init__(self) -> None:
        if self.requests < 0 or self.work_ns <= 0 or (self.tail_ns is not None and self.tail_ns < 0):
            raise ValueError(f"impossible measurement: {self}")


@dataclass
class _Drift:
    """A cumulative sum test for a rate that changed by `factor`. The counts cover the time since the sum was last 0."""

    factor: float
    sum: float = 0.0
    requests: int = 0
    periods: int = 0

    def add(self, requests: int, expected: float) -> bool:
        self.sum += requests * math.log(self.factor) - expected * (self.factor - 1)
        self.requests += requests
        self.periods += 1
        if self.sum <= 0:
            self.sum, self.requests, self.periods = 0.0, 0, 0
        return self.sum >= ALARM


def _drifts() -> tuple[_Drift, ...]:
    return _Drift(CHANGE), _Drift(1 / CHANGE)


@dataclass
class _State:
    bounds: Bounds
    reserve_ppm: int
    requests: float = 0.0
    periods: float = 0.0
    work_ns: int = 0
    pressure: float = 0.0
    calm_periods: int = 0
    drifts: tuple[_Drift, ...] = field(default_factory=_drifts)

    @property
    def need_ppm(self) -> float:
        """Demand plus headroom; the present reservation while demand is unknown."""
        if self.requests < KNOWN_REQUESTS:
            return float(self.reserve_ppm)
        return self.requests / self.periods * self.work_ns / PERIOD_NS * PPM * HEADROOM

    def track(self, seen: Measured) -> None:
        self.work_ns = seen.work_ns
        self.pressure = (seen.tail_ns or 0) / self.bounds.qos_ns
        self.calm_periods = self.calm_periods + 1 if self.pressure < LOW else 0
        if self.requests >= KNOWN_REQUESTS:
            expected = self.requests / self.periods
            if changed := [drift for drift in self.drifts if drift.add(seen.requests, expected)]:
                self.requests, self.periods = max(changed[0].requests, 1), changed[0].periods
                self.drifts = _drifts()
                return
        fade = min(1.0, WINDOW_REQUESTS / max(self.requests + seen.requests, 1))
        self.requests, self.periods = (self.requests + seen.requests) * fade, (self.periods + 1) * fade

    def wanted_ppm(self, due_ppm: float) -> int:
        """Return the wanted reservation, before `_fit` reduces the sum. It changes by at most STEP of itself."""
        now = self.reserve_ppm
        wanted = float(now)
        if due_ppm > now * (1 + DEADBAND):
            wanted = due_ppm
        elif due_ppm < now * (1 - DEADBAND) and self.calm_periods >= PATIENCE:
            wanted = max(now * DECAY, due_ppm)
        if self.pressure > HIGH:
            wanted = max(wanted, now * (1 + GAIN * (self.pressure - HIGH)))
        return _clamp(math.floor(min(max(wanted, now * (1 - STEP)), now * (1 + STEP))), self.bounds)


class ReserveController:
    """Reservations of all services of one engine. Their sum never exceeds `limit_ppm`."""

    def __init__(self, services: Mapping[Hashable, Bounds], *, limit_ppm: int = PPM) -> None:
        if not services:
            raise ValueError("no service to control")
        if not 0 < limit_ppm <= PPM:
            raise ValueError(f"limit_ppm {limit_ppm} is not in 1..{PPM}")
        if (least := sum(bounds.least_ppm for bounds in services.values())) > limit_ppm:
            raise ValueError(f"the least reservations add up to {least} ppm, above the limit of {limit_ppm}")
        self.limit_ppm = limit_ppm
        even_ppm = limit_ppm // len(services)
        start = {name: _clamp(even_ppm, bounds) for name, bounds in services.items()}
        spare = max(0, sum(start.values()) - limit_ppm)
        for name, bounds in services.items():
            cut = min(spare, start[name] - bounds.least_ppm)
            start[name] -= cut
            spare -= cut
        self._states = {name: _State(bounds, start[name]) for name, bounds in services.items()}

    def reservations_ppm(self) -> dict[Hashable, int]:
        return {name: state.reserve_ppm for name, state in self._states.items()}

    def step(self, measured: Mapping[Hashable, Measured]) -> dict[Hashable, int]:
        """Return the reservations for the next period. `measured` must have every service."""
        if measured.keys() != self._states.keys():
            raise ValueError(f"measured {sorted(map(str, measured))}, controlled {sorted(map(str, self._states))}")
        for name, seen in measured.items():
            self._states[name].track(seen)
        needs = {name: state.need_ppm for name, state in self._states.items()}
        scarce = min(1.0, self.limit_ppm / max(sum(needs.values()), 1))
        due = {name: need * scarce for name, need in needs.items()}
        wanted = {name: state.wanted_ppm(due[name]) for name, state in self._states.items()}
        self._fit(wanted, due)
        for name, reserve_ppm in wanted.items():
            self._states[name].reserve_ppm = reserve_ppm
        return wanted

    def _fit(self, wanted: dict[Hashable, int], due: Mapping[Hashable, float]) -> None:
        """Reduce the sum to the limit.

        Each round takes from some reservations, until the sum fits. Round 1 takes what services with fine tails have
        above their due, round 2 growth beyond the due, round 3 all that is above the due, and round 4 all growth. So
        services that are all late take nothing from one another.
        """
        now = {name: state.reserve_ppm for name, state in self._states.items()}
        least = {
            name: max(state.bounds.least_ppm, math.ceil(due[name]), math.ceil(now[name] * (1 - STEP)))
            for name, state in self._states.items()
        }
        fine = {name: least[name] if state.pressure <= HIGH else PPM for name, state in self._states.items()}
        beyond = {name: max(now[name], math.ceil(due[name])) for name in wanted}
        for keep in (fine, beyond, least, now):
            excess = sum(wanted.values()) - self.limit_ppm
            spare = {name: max(0, wanted[name] - keep[name]) for name in wanted}
            total = sum(spare.values())
            if excess > 0:
                for name, part in spare.items():
                    wanted[name] -= min(part, -(-excess * part // max(total, 1)))


def _clamp(ppm: int, bounds: Bounds) -> int:
    return min(max(ppm, bounds.least_ppm), bounds.most_ppm)
