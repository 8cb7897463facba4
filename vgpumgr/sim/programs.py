# SPDX-License-Identifier: Apache-2.0
"""Translates a scenario's workload of a slice into the host program that the engine plays.

Deterministic. A model's kernels depend on the seed alone, so all tenants of one model and their exclusive runs execute
the same kernels. Arrivals depend on the seed and on the slice's identity.
"""

from pathlib import Path

import numpy as np

from vgpumgr.sim import arrivals, schema, trace, workloads
from vgpumgr.sim.quantity import MILLION
from vgpumgr.sim.sources import Backlog, Claim, Program
from vgpumgr.sim.workloads import Times

MAX_REQUESTS = 2_000_000
QUEUE = 1024
JITTER_PERMILLE = 50
Source = Backlog | Program


def source(tenant: schema.Tenant, *, seed: int, who: tuple[int, int, int], duration_ns: int, folder: Path) -> Source:
    """Return the host program of one slice of a tenant. `folder`: the directory of traces.

    `who`: the numbers of tenant, copy and slice. ScenarioError for a wrong trace, ValueError for other values.
    """
    workload = tenant.workload
    if workload.backlog is not None:
        backlog = workload.backlog
        return Backlog(
            work_ns=backlog.items,
            depth=backlog.depth,
            start_ns=tenant.starts,
            nap_every=backlog.nap_every or 0,
            nap_ns=backlog.nap or 0,
            hint_ns=workload.hint,
            work_jitter_permille=_permille(workload.jitter, 0),
        )
    if workload.trace is not None:
        return _replayed(workload, trace.load(folder / workload.trace), tenant.starts)
    kernels = _kernels(workload, seed)
    random = np.random.default_rng([seed, *who])
    closed = _closed(workload)
    jitter = _permille(workload.jitter, JITTER_PERMILLE)
    return Program(
        work_ns=kernels.work_ns,
        launch_ns=kernels.launch_ns,
        sync=kernels.sync_ns > 0,
        sync_ns=kernels.sync_ns,
        kernel_id=kernels.kernel_id,
        claims=_claims(workload, len(kernels.work_ns)),
        hint_ns=workload.hint,
        arrivals_ns=None if closed else tenant.starts + _arrivals(workload, random, duration_ns - tenant.starts),
        think_ns=closed.think if closed else 0,
        start_ns=tenant.starts,
        queue_depth=workload.queue or QUEUE,
        work_jitter_permille=jitter,
        host_jitter_permille=jitter,
    )


def _replayed(workload: schema.Workload, recorded: trace.Trace, start_ns: int) -> Program:
    return Program(
        work_ns=recorded.work_ns,
        launch_ns=recorded.launch_ns if workload.launch is None else workload.launch,
        kernel_id=recorded.kernel_id,
        claims=None if workload.claims == "true" else _claims(workload, len(recorded.work_ns)),
        hint_ns=workload.hint,
        requests=recorded.requests,
        arrivals_ns=start_ns + recorded.arrivals_ns,
        start_ns=start_ns,
        queue_depth=workload.queue or QUEUE,
        work_jitter_permille=_permille(workload.jitter, 0),
        host_jitter_permille=_permille(workload.jitter, 0),
    )


def _kernels(workload: schema.Workload, seed: int) -> workloads.Kernels:
    launch_ns = workloads.LAUNCH_MEDIAN_NS if workload.launch is None else workload.launch
    every = workload.sync_every or 0
    if workload.model is not None:
        return workloads.published(workload.model, seed=seed, launch_median_ns=launch_ns, sync_every=every)
    law = workload.kernels
    if law is None:
        raise ValueError("expected a workload of kernels")
    return workloads.log_normal(
        kernels=law.count,
        total_ns=law.total,
        median_ns=law.median,
        seed=seed,
        launch_median_ns=launch_ns,
        sync_every=every,
    )


def _closed(workload: schema.Workload) -> schema.Closed | None:
    if workload.arrivals is None:
        return schema.Closed()
    return workload.arrivals.closed


def _arrivals(workload: schema.Workload, random: np.random.Generator, duration_ns: int) -> Times:
    """Return the arrival times, counted from the tenant's start."""
    process = getattr(workload.arrivals, workload.arrivals.chosen) if workload.arrivals else None
    rate = process.rate / MILLION if process is not None else 0.0
    most = rate * (process.factor if isinstance(process, schema.Step) else 1) * duration_ns / arrivals.SECOND_NS
    if most > MAX_REQUESTS:
        raise ValueError(f"{most:.0f} requests in the time there is: expected at most {MAX_REQUESTS}")
    if duration_ns <= 0:
        return np.empty(0, dtype=np.int64)
    match process:
        case schema.Periodic(phase=phase):
            drawn = int(random.integers(0, max(1, int(arrivals.SECOND_NS / rate))))
            return arrivals.periodic(rate=rate, duration_ns=duration_ns, phase_ns=drawn if phase is None else phase)
        case schema.OnOff(mean_on=on, mean_off=off):
            return arrivals.on_off(random, rate=rate, mean_on_ns=on, mean_off_ns=off, duration_ns=duration_ns)
        case schema.Diurnal(amplitude=amplitude, period=period, phase=shift):
            return arrivals.diurnal(
                random,
                rate=rate,
                amplitude=amplitude / MILLION,
                period_ns=period,
                phase=shift / MILLION,
                duration_ns=duration_ns,
            )
        case schema.Step(at=at, factor=factor):
            return arrivals.step(random, rate=rate, factor=factor, at_ns=at, duration_ns=duration_ns)
        case _:
            return arrivals.poisson(random, rate=rate, duration_ns=duration_ns)


def _claims(workload: schema.Workload, count: int) -> "list[int] | None":
    if workload.claims == "true":
        return None
    told = Claim.NONE if workload.claims == "none" else Claim.MORE_FOLLOWS
    return [int(told)] * count


def _permille(share: int | None, default: int) -> int:
    return default if share is None else share // 1000
