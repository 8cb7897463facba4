# SPDX-License-Identifier: Apache-2.0
"""Orders of jobs: which job of a lane runs its next iteration.

The order is asked at every iteration boundary; a job is never stopped inside an iteration. All times are ns of engine
time, except `arrived_ns` and `ready_since_ns`, which are points in time. The orders are those of Salus (Yu and
Chowdhury, MLSys 2020; its executionengine.cpp), except:
- srtf works with estimates, while Salus reads the true total from the trace. A job's remaining time is its conditional
  expectation, given how wrong estimates were so far and that the job has not ended yet (shortest expected remaining
  processing time). An estimate taken as exact is doubled when the job outlasts it.
- fair gives a newcomer the same start as the job that got least. Salus compares totals since birth, so a newcomer runs
  alone until it has caught up. Here the order las does that (least attained service: Tiresias, Gu et al., NSDI 2019).
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
    """One job of a lane. `estimate_ns` is its estimated total, None if unknown.

    `error_sigma` says how good the estimate is (see `error_sigma_of`); 0 means exact. `ready_since_ns` is None while
    the host prepares the next iteration. `number` orders jobs that arrived together.
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
        """Estimated remaining time, always above 0. It is computed once after each run."""
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
        """0 below LAS_LEVEL_NS of service, and one more each time the service doubles."""
        return (self.used_ns // LAS_LEVEL_NS).bit_length()


def expected_rest(median: float, sigma: float, used: float) -> float:
    """Return the mean of X - used, given X > used > 0, of a log-normal X, in the unit of `median` and `used`."""
    deviations = math.log(used / median) / sigma
    beyond = _above(deviations)
    if beyond < 1e-12:
        return used
    return median * math.exp(sigma * sigma / 2) * _above(deviations - sigma) / beyond - used


def _above(deviations: float) -> float:
    """Return the probability that a normal variable is more than `deviations` standard deviations above its mean."""
    return math.erfc(deviations / math.sqrt(2)) / 2


def error_sigma_of(history: Iterable[tuple[int, int]]) -> float:
    """Return the root mean square of log(actual/estimate) over ended jobs. `history`: pairs (estimate, actual)."""
    squares = []
    for estimate_ns, actual_ns in history:
        if estimate_ns <= 0 or actual_ns <= 0:
            raise ValueError(f"an estimate of {estimate_ns} ns for {actual_ns} ns: both must be above 0")
        squares.append(math.log(actual_ns / estimate_ns) ** 2)
    return min(MAX_SIGMA, math.sqrt(sum(squares) / len(squares))) if squares else 0.0


Order = Callable[[Sequence[Job]], Job | None]


def join(job: Job, present: Iterable[Job]) -> None:
    """Call once when `job` joins the jobs of its lane. For the time before, it owes nothing and is owed nothing."""
    job.fair_start_ns = min((other.fair_ns for other in present if other is not job), default=0)


def charge(job: Job, ran_ns: int) -> None:
    """Record that an iteration of `job` took `ran_ns` of engine time."""
    if ran_ns < 0:
        raise ValueError(f"job {job.key!r}: an iteration of {ran_ns} ns")
    job.used_ns += ran_ns


def fifo(jobs: Sequence[Job]) -> Job | None:
    """Run only the job that came first, to its end. The lane also waits while that job's host prepares an iteration."""
    first = min(jobs, key=lambda job: (job.arrived_ns, job.number), default=None)
    return None if first is None or first.ready_since_ns is None else first


def pack(jobs: Sequence[Job]) -> Job | None:
    """Run the iteration that has been ready longest, whichever job it belongs to."""
    return min(_ready(jobs), key=lambda job: (job.ready_since_ns, job.number), default=None)


def srtf(jobs: Sequence[Job]) -> Job | None:
    """Run the job with the least estimated rest. True estimates give the least mean completion time (Schrage, 1968)."""
    return min(_ready(jobs), key=lambda job: (job.remaining_ns, job.number), default=None)


def fair(jobs: Sequence[Job]) -> Job | None:
    """Run the job that got the least engine time since it joined."""
    return min(_ready(jobs), key=lambda job: (job.fair_ns, job.number), default=None)


def las(jobs: Sequence[Job]) -> Job | None:
    """Run the job of the lowest `level`; if several have it, the oldest. Needs no estimates and few switches."""
    return min(_ready(jobs), key=lambda job: (job.level, job.arrived_ns, job.number), default=None)


def _ready(jobs: Sequence[Job]) -> list[Job]:
    return [job for job in jobs if job.ready_since_ns is not None]


ORDERS: dict[str, Order] = {"fifo": fifo, "pack": pack, "srtf": srtf, "fair": fair, "las": las}
