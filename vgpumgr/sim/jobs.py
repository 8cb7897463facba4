# SPDX-License-Identifier: Apache-2.0
"""Jobs that take minutes, on the lanes of one device, switched at iteration boundaries.

A coarse event loop for the policies that decide over seconds (`vgpumgr.policy`). It does not contain the simulator's
engine: an iteration is one piece of work that is never interrupted.

Lanes that run side by side are a *model*, stated with every result. While k lanes run, the device does `overlap[k]`
seconds of (exclusive) work per second, and each lane gets an equal part. A time-shared engine alone has overlap 1. A
larger value is the gain of co-running jobs that do not fill the device (published: throughput of pairs on a P100,
Gavel, Narayanan et al., OSDI 2020: 1.13 median, 1.20 mean, 1.47 at the 90th percentile).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vgpumgr.policy.job_order import Job, Order, charge, join
from vgpumgr.policy.lanes import Demand, Lanes

SECOND_NS = 1_000_000_000
# Salus (MLSys 2020, section 4) needs less than this to switch between resident jobs.
SWITCH_COST_NS = 1_000_000
# Work below this is a rounding error: absolute, and relative to the time that a float holds.
DONE_NS = 1e-3
ROUNDING = 1e-15


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job: `work_ns` of exclusive engine time in iterations of `iteration_ns`; the last iteration may be shorter."""

    arrival_ns: int
    work_ns: int
    iteration_ns: int
    estimate_ns: int | None = None
    error_sigma: float = 0.0
    demand: Demand = field(default=Demand(persistent_bytes=0, ephemeral_bytes=0))

    def __post_init__(self) -> None:
        if self.arrival_ns < 0 or self.work_ns <= 0 or self.iteration_ns <= 0:
            raise ValueError(
                f"a job of {self.work_ns} ns in iterations of {self.iteration_ns} ns at {self.arrival_ns} ns:"
                " the first two must be above 0, the last not negative"
            )


@dataclass(frozen=True)
class Device:
    """`overlap[k - 1]` is the device's speed while k lanes run. There are as many lanes as entries.

    With `capacity_bytes`, memory decides which jobs are on the device and in which lane (`policy.lanes`), and jobs wait
    for memory in order of arrival. Without it, every job is resident and any lane may run it.
    """

    overlap: tuple[float, ...] = (1.0,)
    capacity_bytes: int | None = None
    switch_cost_ns: int = SWITCH_COST_NS

    def __post_init__(self) -> None:
        if not self.overlap or self.overlap[0] != 1.0:
            raise ValueError(f"overlap {self.overlap}: one lane alone runs at 1.0")
        if any(later < earlier for earlier, later in itertools.pairwise(self.overlap)):
            raise ValueError(f"overlap {self.overlap}: more lanes must not be slower")
        if self.switch_cost_ns < 0:
            raise ValueError(f"switch_cost_ns {self.switch_cost_ns} is negative")


@dataclass(frozen=True)
class Ended:
    """One job's life, in ns since the start: arrival, first iteration, end."""

    arrival_ns: int
    first_ns: int
    end_ns: int

    @property
    def completion_ns(self) -> int:
        return self.end_ns - self.arrival_ns

    @property
    def queueing_ns(self) -> int:
        return self.first_ns - self.arrival_ns


@dataclass(frozen=True)
class Outcome:
    """`ended`: in the order of the specs."""

    ended: tuple[Ended, ...]
    iterations: int
    switches: int

    @property
    def makespan_ns(self) -> int:
        return max(job.end_ns for job in self.ended) - min(job.arrival_ns for job in self.ended)

    @property
    def mean_completion_ns(self) -> float:
        return sum(job.completion_ns for job in self.ended) / len(self.ended)

    @property
    def mean_queueing_ns(self) -> float:
        return sum(job.queueing_ns for job in self.ended) / len(self.ended)

    def completion_quantile_ns(self, quantile: float) -> int:
        times = sorted(job.completion_ns for job in self.ended)
        return times[min(len(times) - 1, int(quantile * len(times)))]


@dataclass
class _Place:
    """What one lane of the device runs. `left`: rest of the iteration (and of a switch), in exclusive ns."""

    job: Job | None = None
    last: Job | None = None
    iteration_ns: int = 0
    left: float = 0.0


class _Run:
    """One simulation."""

    def __init__(self, specs: Sequence[JobSpec], order: Order, device: Device) -> None:
        if not specs:
            raise ValueError("no jobs")
        self.specs = specs
        self.order = order
        self.device = device
        self.places = [_Place() for _ in device.overlap]
        self.resident: dict[int, Job] = {}
        self.running: set[int] = set()
        self.waiting: dict[int, Job] = {}
        self.lanes: Lanes[int] | None = None
        if device.capacity_bytes is not None:
            self.lanes = Lanes(capacity_bytes=device.capacity_bytes, max_lanes=len(device.overlap))
        self.first: dict[int, float] = {}
        self.end: dict[int, float] = {}
        self.now = 0.0
        self.iterations = 0
        self.switches = 0

    def simulate(self) -> Outcome:
        arrivals = [(spec.arrival_ns, number) for number, spec in enumerate(self.specs)]
        heapq.heapify(arrivals)
        while arrivals or self.running:
            busy = [place for place in self.places if place.job is not None]
            speed = self.device.overlap[len(busy) - 1] / len(busy) if busy else 0.0
            until = self.now + min(place.left for place in busy) / speed if busy else math.inf
            if arrivals:
                until = min(until, float(arrivals[0][0]))
            for place in busy:
                place.left -= (until - self.now) * speed
            self.now = until
            for place in busy:
                if place.left <= DONE_NS + ROUNDING * self.now:
                    self._boundary(place)
            while arrivals and arrivals[0][0] <= self.now:
                self._arrive(heapq.heappop(arrivals)[1])
            for place in self.places:
                if place.job is None:
                    self._fill(place)
        ended = tuple(
            Ended(spec.arrival_ns, round(self.first[number]), round(self.end[number]))
            for number, spec in enumerate(self.specs)
        )
        return Outcome(ended, self.iterations, self.switches)

    def _arrive(self, number: int) -> None:
        spec = self.specs[number]
        job = Job(
            key=number,
            number=number,
            arrived_ns=spec.arrival_ns,
            estimate_ns=spec.estimate_ns,
            error_sigma=spec.error_sigma,
        )
        if self.lanes is None:
            self._settle(job)
        else:
            self.waiting[number] = job
            self._admit(self.lanes.request(number, spec.demand, round(self.now)))

    def _admit(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._settle(self.waiting.pop(number))

    def _settle(self, job: Job) -> None:
        job.ready_since_ns = round(self.now)
        join(job, self.resident.values())
        self.resident[job.number] = job

    def _boundary(self, place: _Place) -> None:
        """End the iteration of `place`."""
        job = place.job
        if job is None:
            return
        place.job, place.last = None, job
        self.running.discard(job.number)
        self.iterations += 1
        charge(job, place.iteration_ns)
        job.ready_since_ns = round(self.now)
        if self.lanes is not None:
            self._admit(self.lanes.end_iteration(job.number, round(self.now)))
        if job.used_ns >= self.specs[job.number].work_ns:
            self.end[job.number] = self.now
            del self.resident[job.number]
            if self.lanes is not None:
                self._admit(self.lanes.leave(job.number, round(self.now)))

    def _fill(self, place: _Place) -> None:
        """Start the next iteration on an idle place."""
        job = self.order([job for number, job in self.resident.items() if number not in self.running])
        if job is not None and self.lanes is not None and not self.lanes.begin_iteration(job.number):
            job = self._of_idle_lane(self.lanes)
        if job is None:
            return
        spec = self.specs[job.number]
        switched = place.last is not None and place.last is not job
        place.job = job
        place.iteration_ns = min(spec.iteration_ns, spec.work_ns - job.used_ns)
        place.left = place.iteration_ns + (self.device.switch_cost_ns if switched else 0)
        self.switches += switched
        self.running.add(job.number)
        self.first.setdefault(job.number, self.now)

    def _of_idle_lane(self, lanes: Lanes[int]) -> Job | None:
        """Choose among the jobs of idle lanes, because the lane of the first choice is in an iteration."""
        idle = [number for lane in lanes.lanes if lane.owner is None for number in lane.members]
        job = self.order([self.resident[number] for number in sorted(idle)])
        if job is not None:
            lanes.begin_iteration(job.number)
        return job


def simulate(specs: Sequence[JobSpec], order: Order, device: Device | None = None) -> Outcome:
    """Run all jobs to their ends. Deterministic."""
    return _Run(specs, order, device or Device()).simulate()


def shortest_remaining_bound_ns(specs: Sequence[JobSpec]) -> float:
    """Return a lower bound of the mean completion time on one lane: SRPT without iterations or switch cost."""
    arrivals = sorted((spec.arrival_ns, spec.work_ns) for spec in specs)
    left: list[tuple[int, int]] = []
    now = total = 0
    for position, (arrival_ns, work_ns) in enumerate(arrivals):
        now = max(now, arrival_ns) if not left else now
        heapq.heappush(left, (work_ns, arrival_ns))
        until = arrivals[position + 1][0] if position + 1 < len(arrivals) else None
        while left and (until is None or now < until):
            left_ns, since_ns = heapq.heappop(left)
            run_ns = left_ns if until is None else min(left_ns, until - now)
            now += run_ns
            if run_ns == left_ns:
                total += now - since_ns
            else:
                heapq.heappush(left, (left_ns - run_ns, since_ns))
    return total / len(specs)
