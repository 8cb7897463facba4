# SPDX-License-Identifier: Apache-2.0
"""Which job of a lane runs its next iteration.

Asked at every iteration boundary; a job is never stopped inside an iteration. All times are ns of engine time, except
`arrived_ns` and `ready_since_ns`, which are points in time. Orders of Salus (Yu and Chowdhury, MLSys 2020; its
executionengine.cpp), except:
- srtf works with estimates. Salus reads the true total from the trace. What a job still needs is the expected rest,
  given how far estimates were off so far and that it has not ended yet (shortest expected remaining processing time);
  an estimate thought exact that proves too short is doubled.
- fair lets a newcomer start level with the one that got least. Salus compares totals since birth, which serves a
  newcomer alone until it has caught up; that is las (least attained service: Tiresias, Gu et al., NSDI 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

FIRST_ESTIMATE_NS = 60_000_000_000
LAS_LEVEL_NS = 1_000_000_000
MAX_SIGMA = 3.0


@dataclass(kw_only=True, eq=False)
class Job:
    """One job of a lane. `estimate_ns` is what it is thought to need in total, None if nobody knows.

    `error_sigma` says how good the estimate is (see `error_sigma_of`), 0 that it is exact.
    `ready_since_ns` is None while its host prepares the next iteration. `number` orders jobs that came together.
    """

    key: Hashable
    number: int
    arrived_ns: int
    estimate_ns: int | None = None
    error_sigma: float = 0.0
    ready_since_ns: int | None = None
    used_ns: int = 0
    fair_start_ns: int = 0
    _rest: tuple[int, float] = (-1, 0.0)

    def __post_init__(self) -> None:
        if self.arrived_ns < 0:
            raise ValueError(f"job {self.key!r}: arrived_ns {self.arrived_ns} is negative")
        if self.estimate_ns is not None and self.estimate_ns <= 0:
            raise ValueError(f"job {self.key!r}: an estimate of {self.estimate_ns} ns is not above 0")
        if not 0 <= self.error_sigma <= MAX_SIGMA:
            raise ValueError(f"job {self.key!r}: error_sigma {self.error_sigma} is not in 0..{MAX_SIGMA}")

    @property
    def remaining_ns(self) -> float:
        """What it is thought to need still; always above 0. Kept until it has run again."""
        if self._rest[0] != self.used_ns:
            self._rest = (self.used_ns, self._expected_rest_ns())
        return self._rest[1]

    def _expected_rest_ns(self) -> float:
        estimate_ns = self.estimate_ns or FIRST_ESTIMATE_NS
        if self.error_sigma and self.used_ns:
            return expected_rest(estimate_ns, self.error_sigma, self.used_ns)
        if self.used_ns >= estimate_ns:
            estimate_ns <<= (self.used_ns // estimate_ns).bit_length()
        return estimate_ns - self.used_ns

    @property
    def fair_ns(self) -> int:
        return self.fair_start_ns + self.used_ns

    @property
    def level(self) -> int:
        """0 below LAS_LEVEL_NS of service, then one more each time its service doubles."""
        return (self.used_ns // LAS_LEVEL_NS).bit_length()


def expected_rest(median: float, sigma: float, used: float) -> float:
    """Mean of X - used, given X > used > 0, of a log-normal X; in the unit of `median` and `used`."""
    deviations = math.log(used / median) / sigma
    beyond = _above(deviations)
    if beyond < 1e-12:
        return used
    return median * math.exp(sigma * sigma / 2) * _above(deviations - sigma) / beyond - used


def _above(deviations: float) -> float:
    """How likely a normal variable is more than so many standard deviations above its mean."""
    return math.erfc(deviations / math.sqrt(2)) / 2


def error_sigma_of(history: Iterable[tuple[int, int]]) -> float:
    """How far estimates were off: root mean square of log(actual/estimate), from (estimate, actual) of ended jobs."""
    squares = []
    for estimate_ns, actual_ns in history:
        if estimate_ns <= 0 or actual_ns <= 0:
            raise ValueError(f"an estimate of {estimate_ns} ns for {actual_ns} ns: both must be above 0")
        squares.append(math.log(actual_ns / estimate_ns) ** 2)
    return min(MAX_SIGMA, math.sqrt(sum(squares) / len(squares))) if squares else 0.0


Order = Callable[[Sequence[Job]], Job | None]


def join(job: Job, present: Iterable[Job]) -> None:
    """Call once, when `job` joins those in its lane: it owes nothing, and is owed nothing, for the time before."""
    job.fair_start_ns = min((other.fair_ns for other in present if other is not job), default=0)


def charge(job: Job, ran_ns: int) -> None:
    """An iteration of `job` took `ran_ns` of engine time."""
    if ran_ns < 0:
        raise ValueError(f"job {job.key!r}: an iteration of {ran_ns} ns")
    job.used_ns += ran_ns


def fifo(jobs: Sequence[Job]) -> Job | None:
    """Only the job that came first, to its end; the lane waits for its host too."""
    first = min(jobs, key=lambda job: (job.arrived_ns, job.number), default=None)
    return None if first is None or first.ready_since_ns is None else first


def pack(jobs: Sequence[Job]) -> Job | None:
    """No order among jobs: whichever iteration has been ready longest."""
    return min(_ready(jobs), key=lambda job: (job.ready_since_ns, job.number), default=None)


def srtf(jobs: Sequence[Job]) -> Job | None:
    """The job thought to end soonest. With true estimates the mean completion time is least (Schrage, 1968)."""
    return min(_ready(jobs), key=lambda job: (job.remaining_ns, job.number), default=None)


def fair(jobs: Sequence[Job]) -> Job | None:
    """The job that got least since it joined."""
    return min(_ready(jobs), key=lambda job: (job.fair_ns, job.number), default=None)


def las(jobs: Sequence[Job]) -> Job | None:
    """The job that got least since its birth, in levels that double, oldest first: no estimates, few switches."""
    return min(_ready(jobs), key=lambda job: (job.level, job.arrived_ns, job.number), default=None)


def _ready(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.ready_since_ns is not None]


ORDERS: dict[str, Order] = {"fifo": fifo, "pack": pack, "srtf": srtf, "fair": fair, "las": las}
