# SPDX-License-Identifier: Apache-2.0
"""Latency-critical services on one engine: which requests end within their QoS time.

A coarse event loop at the level of requests, for the policies that decide over seconds. This module has the services,
their load and the results; the loops are in `service_queues` and `service_sharing`. Disciplines:

    shared      processor sharing among the services that have a request, as with MPS; first come first served in each.
                Services that run side by side lose `interference` of the engine's speed. This is a *model*, not a
                measurement of MPS.
    fifo        one queue
    timeslice   services take turns of `timeslice_ns`, each turn costs `switch_ns`
    edf         earliest deadline first; a request can be preempted at the end of a kernel (`kernel_ns`)
    edf-shed    like edf, but drops requests that cannot all be served in time (policy.edf), without fairness
    edf-fair    like edf-shed, but drops fairly among services: none falls below the floor if capacity allows
    reserved    processor sharing in proportion to reservations, which policy.reserve_controller moves every 100 ms.
                Drops the head of a queue if it cannot end in time. Needs no order across tenants, only weights.

Goodput is the part of the offered requests that ended within their QoS time. Dropped, late and unfinished requests all
count against it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MS = 1_000_000
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service: each request takes `work_ns` of exclusive engine time, and must end within `qos_ns` of its arrival."""

    name: str
    work_ns: int
    qos_ns: int

    def __post_init__(self) -> None:
        if not 0 < self.work_ns <= self.qos_ns:
            raise ValueError(f"service {self.name}: {self.work_ns} ns of work is not in 1..{self.qos_ns} ns, its QoS")


# Engine time of one batch on a V100: sums of the kernel profiles of Orion (Strati et al., EuroSys 2024).
WORK_NS = {
    "mobilenetv2": 2_260_000,
    "resnet50": 6_500_000,
    "resnet101": 12_200_000,
    "transformer": 16_700_000,
    "efficientnet": 18_500_000,
    "bert": 48_600_000,
}


def services(*, times: int = 10, least_ns: int = 30 * MS, most_ns: int = 200 * MS) -> tuple[Service, ...]:
    """Return the six services. The QoS times are ours: `times` a request's own time, within `least_ns`..`most_ns`."""
    return tuple(
        Service(name=name, work_ns=work_ns, qos_ns=min(max(times * work_ns, least_ns), most_ns))
        for name, work_ns in WORK_NS.items()
    )


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The model's constants, ns; see the disciplines."""

    interference: float = 0.08
    timeslice_ns: int = 2 * MS
    switch_ns: int = 50_000
    kernel_ns: int = 500_000

    def __post_init__(self) -> None:
        if not 0 <= self.interference < 1 or self.timeslice_ns <= 0 or self.switch_ns < 0 or self.kernel_ns <= 0:
            raise ValueError(f"impossible engine: {self}")


@dataclass(eq=False)
class Call:
    """One request. `left_ns`: the part of its true work that is still to do."""

    number: int
    service: int
    arrival_ns: float
    deadline_ns: float
    left_ns: float
    end_ns: float | None = None


@dataclass(frozen=True)
class Load:
    """Offered work as a fraction of the engine, evenly among services. Each swings by `swing`, with its own phase.

    `step` = (service number or None for all, at ns, factor): a permanent change of the rate.
    """

    load: float
    swing: float = 0.6
    swing_ns: int = 20 * SECOND_NS
    step: tuple[int | None, int, float] | None = None
    poisson: bool = True
    noise: float = 0.05

    def __post_init__(self) -> None:
        if self.load <= 0 or not 0 <= self.swing < 1 or self.swing_ns <= 0 or not 0 <= self.noise < 0.3:
            raise ValueError(f"impossible load: {self}")


def offered(services: Sequence[Service], load: Load, *, until_ns: int, seed: int) -> list[Call]:
    """Return all requests before `until_ns`, in order of arrival."""
    calls = []
    for number, service in enumerate(services):
        rng = random.Random(f"{seed} {service.name}")
        for arrival_ns in _arrivals(number, len(services), service, load, until_ns, rng):
            work_ns = service.work_ns * max(0.5, rng.gauss(1, load.noise))
            calls.append(Call(0, number, arrival_ns, arrival_ns + service.qos_ns, work_ns))
    calls.sort(key=lambda call: (call.arrival_ns, call.service))
    for place, call in enumerate(calls):
        call.number = place
    return calls


def _arrivals(
    number: int, services: int, service: Service, load: Load, until_ns: int, rng: random.Random
) -> Iterator[float]:
    """Yield arrivals: a thinned Poisson process (Lewis and Shedler, 1979), or evenly spaced ones."""
    base = load.load / services / service.work_ns

    def rate(at_ns: float) -> float:
        phase = 2 * math.pi * (at_ns / load.swing_ns + number / services)
        stepped = load.step is not None and load.step[0] in (None, number) and at_ns >= load.step[1]
        return base * (1 + load.swing * math.sin(phase)) * (load.step[2] if stepped and load.step else 1)

    highest = base * (1 + load.swing) * max(1.0, load.step[2] if load.step else 1.0)
    now = 0.0 if load.poisson else rng.random() / rate(0)
    while True:
        if load.poisson:
            now += rng.expovariate(highest)
            if now >= until_ns:
                return
            if rng.random() * highest < rate(now):
                yield now
        else:
            if now >= until_ns:
                return
            yield now
            now += 1 / rate(now)


@dataclass(frozen=True)
class Served:
    """The results of all calls. `reservations`: (time ns, ppm of each service) for each period of a controller."""

    services: Sequence[Service]
    calls: Sequence[Call]
    reservations: Sequence[tuple[float, tuple[int, ...]]] = field(default=())

    def goodput(self, *, service: int | None = None, since_ns: float = 0, until_ns: float = math.inf) -> float:
        """Return the part of the requests that arrived in [since, until) and ended in time; 1 if there were none."""
        calls = [
            call
            for call in self.calls
            if (service is None or call.service == service) and since_ns <= call.arrival_ns < until_ns
        ]
        return sum(_in_time(call) for call in calls) / len(calls) if calls else 1.0

    def least_goodput(self) -> float:
        """Return the goodput of the worst service."""
        return min(self.goodput(service=number) for number in range(len(self.services)))

    def latency_ms(self, quantile: float) -> float:
        """Return a quantile over all calls that ended."""
        times = sorted(call.end_ns - call.arrival_ns for call in self.calls if call.end_ns is not None)
        return times[min(len(times) - 1, int(quantile * len(times)))] / MS if times else math.inf


def _in_time(call: Call) -> bool:
    return call.end_ns is not None and call.end_ns <= call.deadline_ns
