# SPDX-License-Identifier: Apache-2.0
"""One engine that a first tenant shares with others that must not disturb it: ways to share it, and the figures.

Ways to share:
- vgpumgr's latency band with hold and gap gate
- the same without a hold, which is strict priority in pieces
- FIKIT's rule (mean gap, whole kernels)
- strict priority by whole kernels
- the time slices of a driver, whose context switches cost time
- one shared queue

The reference is the same requests without the others on the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vgpumgr.sched.core import Band
from vgpumgr.sim.arrivals import SECOND_NS
from vgpumgr.sim.engine import EngineModel, GroupParams, Program, Simulation

if TYPE_CHECKING:
    from vgpumgr.sim.workloads import Kernels

US = 1_000
MS = 1_000_000
CHUNK_NS = 250 * US
SPLIT_NS = 2 * US
SWITCH_NS = 50 * US
JITTER_PERMILLE = 50
WARM_UP_NS = SECOND_NS // 2
# From docs/simulator.md: the reservation is longer than a request, and the first tenant's share is nearly everything.
RESERVE_NS, PERIOD_NS = 75 * MS, 100 * MS
HOLD_NS = 3 * MS
INVERSION_PERMILLE = 10
FIRST_WEIGHT = 900
_SPLIT = EngineModel(kind="splittable", max_chunk_ns=CHUNK_NS, split_cost_ns=SPLIT_NS)
_SLICED = EngineModel(kind="preemptible", max_chunk_ns=10 * MS, switch_cost_ns=SWITCH_NS)
_WHOLE = EngineModel(kind="splittable", max_chunk_ns=CHUNK_NS)

Row = dict[str, float]
Alone = list[NDArray[np.void]]
Times = NDArray[np.int64]


@dataclass(frozen=True)
class Sharing:
    """A way to share. `hold_ns` to `first_weight` apply to vgpumgr's first tenants."""

    scheduler: str = "vgpumgr"
    engine: EngineModel = _SPLIT
    parameters: dict[str, int] = field(default_factory=dict)
    reserve_ns: int = RESERVE_NS
    period_ns: int = PERIOD_NS
    hold_ns: int = HOLD_NS
    inversion_permille: int = INVERSION_PERMILLE
    timeslice_ns: int = CHUNK_NS
    first_weight: int = FIRST_WEIGHT

    def first(self, count: int) -> GroupParams:
        """Return the parameters of each of `count` first tenants, which divide weight and reservation."""
        weight = self.first_weight // count
        if self.scheduler != "vgpumgr":
            return GroupParams(weight=weight, timeslice_ns=MS)
        return GroupParams(
            weight=weight,
            timeslice_ns=self.timeslice_ns,
            band=Band.LATENCY,
            reserve_ns=self.reserve_ns // count,
            reserve_period_ns=self.period_ns,
            hold_max_ns=self.hold_ns,
            inversion_permille=self.inversion_permille if self.hold_ns else 0,
        )

    def other(self) -> GroupParams:
        return GroupParams(weight=1, timeslice_ns=self.timeslice_ns if self.scheduler == "vgpumgr" else MS)


SHARINGS = {
    "vgpumgr": Sharing(parameters={"reserve_limit_permille": 750}),
    "vgpumgr without hold": Sharing(parameters={"reserve_limit_permille": 750}, hold_ns=0),
    "fikit": Sharing("fikit", _WHOLE),
    "strict priority": Sharing("strict_priority", _WHOLE),
    "time slice 2 ms": Sharing("timeslice", _SLICED, {"timeslice_ns": 2 * MS}),
    "time slice 0.5 ms": Sharing("timeslice", _SLICED, {"timeslice_ns": 500 * US}),
    "shared queue": Sharing("fifo", _WHOLE),
}


def program(kernels: Kernels, *, arrivals_ns: NDArray[np.int64] | None = None, start_ns: int = 0) -> Program:
    """Return the host program of one model's requests; without arrivals it is a closed loop."""
    return Program(
        work_ns=kernels.work_ns,
        launch_ns=kernels.launch_ns,
        sync=kernels.sync_ns > 0,
        sync_ns=kernels.sync_ns,
        kernel_id=kernels.kernel_id,
        arrivals_ns=arrivals_ns,
        start_ns=start_ns,
        work_jitter_permille=JITTER_PERMILLE,
        host_jitter_permille=JITTER_PERMILLE,
    )


@dataclass(frozen=True)
class Case:
    """The tenants. The first tenants' programs come first, so their random variation is the same as alone."""

    first: Sequence[Program]
    others: Sequence[Program]
    duration_ns: int
    seed: int


def alone(case: Case) -> Alone:
    """Return the requests of the first tenants without the others, with kernels in launch order."""
    sim = Simulation(_WHOLE, "fifo", seed=case.seed, record_runs=False)
    params = GroupParams(weight=1, timeslice_ns=MS)
    slices = [sim.add_slice(sim.add_group(str(number), params), one) for number, one in enumerate(case.first)]
    sim.run_until(case.duration_ns)
    return [sim.requests(one) for one in slices]


def share(case: Case, sharing: Sharing, reference: Alone) -> Row:
    """Return the figures of one way to share, for all first tenants together.

    mean, p99, worst: slowdown of their requests against the reference
    service ms: their mean time in service, from arrival or the end of the request before
    wait us: the longest that one of their kernels waited for the engine after the kernel before it
    others %: the part of the engine's time that the others used
    schedule: the hash of all decisions, as a number

    Only requests whose service begins after the warm-up count. If none of them is done, the one under way counts as if
    it ended with the simulation.
    """
    sim = Simulation(
        sharing.engine, sharing.scheduler, parameters=sharing.parameters, seed=case.seed, record_runs=False
    )
    slices = []
    for number, one in enumerate((*case.first, *case.others)):
        is_first = number < len(case.first)
        params = sharing.first(len(case.first)) if is_first else sharing.other()
        group = sim.add_group(str(number), params, priority=0 if is_first else 1)
        slices.append(sim.add_slice(group, one))
    first, others = slices[: len(case.first)], slices[len(case.first) :]
    sim.run_until(WARM_UP_NS)
    before_ns = sum(sim.slice_counters(one).work_ns for one in others)
    sim.run_until(case.duration_ns)
    work_ns = sum(sim.slice_counters(one).work_ns for one in others) - before_ns
    timed = [_timed(sim.requests(one), alone, case) for one, alone in zip(first, reference, strict=True)]
    latency_ns, alone_ns, service_ns = (np.concatenate(column) for column in zip(*timed, strict=True))
    return {
        "mean": float(latency_ns.mean() / alone_ns.mean()),
        "p99": float(np.quantile(latency_ns, 0.99) / np.quantile(alone_ns, 0.99)),
        "worst": float(latency_ns.max() / alone_ns.max()),
        "alone ms": float(alone_ns.mean() / MS),
        "service ms": float(service_ns.mean() / MS),
        "wait us": max(sim.slice_counters(one).max_wait_ns for one in first) / US,
        "others %": 100 * work_ns / (case.duration_ns - WARM_UP_NS),
        "schedule": int(sim.schedule_hash, 16),
    }


def _timed(requests: NDArray[np.void], alone: NDArray[np.void], case: Case) -> tuple[Times, Times, Times]:
    """Return for one tenant's requests after the warm-up: latency, latency alone, time in service."""
    arrivals_ns, ends_ns = requests["arrival_ns"].astype(np.int64), requests["end_ns"].astype(np.int64)
    begins_ns = np.maximum(arrivals_ns, np.concatenate([[0], ends_ns[:-1]]))
    done = np.flatnonzero(begins_ns >= WARM_UP_NS)
    done = done[done < len(alone)]
    alone_ns = (alone["end_ns"] - alone["arrival_ns"]).astype(np.int64)
    if not len(done):
        since_ns = np.array([case.duration_ns - ends_ns.max(initial=0)])
        return since_ns, alone_ns[[len(requests)]], since_ns
    return (ends_ns - arrivals_ns)[done], alone_ns[done], (ends_ns - begins_ns)[done]
