# SPDX-License-Identifier: Apache-2.0
"""Job orders (Salus): completion times of 100 training jobs on one device.

    python -m tests.bench.sched.jobs [--json]

The original trace is not public. Seeds 187 and 373 (and 296 with sigma 1.6) were chosen from many: their traces come
nearest to the published aggregates (FIFO: mean completion 170.6 min, makespan 303.4 min). The gain of an order over
FIFO depends more on the trace than on the order, so seeds that were not chosen are shown too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from tests.bench.sched.result import digest, interval, main, target
from vgpumgr.policy.job_order import ORDERS
from vgpumgr.sim.job_sets import JOBS, salus_trace, with_estimates
from vgpumgr.sim.jobs import Device, JobSpec, Outcome, shortest_remaining_bound_ns, simulate

FITTED = ((187, 1.3), (373, 1.3), (296, 1.6))
ARBITRARY = tuple((seed, 1.3) for seed in range(1, 9))
ESTIMATE_SEEDS = range(5)
SHORT_TRACES = 200
OVERLAPS = {"one lane": (1.0,), "two lanes, overlap 1.25": (1.0, 1.25), "two lanes, overlap 1.0": (1.0, 1.0)}
# Jobs switch only at every tenth iteration, which keeps the loop short; switching more often gains nothing.
STRIDE = 10
MINUTE_NS = 60_000_000_000
CAPACITY_BYTES = 14 << 30
PAPER = "Salus (MLSys 2020): FIFO 170.6, SRTF 53.4, FAIR 96.6 min mean completion, SRTF gains 3.19x"

Row = dict[str, float]


def _in_minutes(outcome: Outcome, fifo_ns: float) -> Row:
    return {
        "gain": fifo_ns / outcome.mean_completion_ns,
        "mean": outcome.mean_completion_ns / MINUTE_NS,
        "p95": outcome.completion_quantile_ns(0.95) / MINUTE_NS,
        "queueing": outcome.mean_queueing_ns / MINUTE_NS,
        "makespan": outcome.makespan_ns / MINUTE_NS,
        "switches": float(outcome.switches),
    }


def _strided(specs: list[JobSpec]) -> list[JobSpec]:
    return [replace(spec, iteration_ns=STRIDE * spec.iteration_ns) for spec in specs]


def _trace(seed_and_sigma: tuple[int, float], jobs: int) -> dict[str, Row]:
    """Return all measurements of one trace."""
    seed, sigma = seed_and_sigma
    specs = _strided(salus_trace(seed, jobs=jobs, sigma=sigma))
    fifo = simulate(specs, ORDERS["fifo"])
    measured = partial(_in_minutes, fifo_ns=fifo.mean_completion_ns)
    rows = {f"{name}, one lane": measured(simulate(specs, order)) for name, order in ORDERS.items()}
    optimum_ns = shortest_remaining_bound_ns(specs)
    rows["optimum"] = {
        "mean": optimum_ns / MINUTE_NS,
        "gain": fifo.mean_completion_ns / optimum_ns,
        "reached": optimum_ns / simulate(salus_trace(seed, jobs=jobs, sigma=sigma), ORDERS["srtf"]).mean_completion_ns,
    }
    for lanes, overlap in OVERLAPS.items():
        device = Device(overlap=overlap)
        rows[f"fifo, {lanes}"] = measured(simulate(specs, ORDERS["fifo"], device))
        rows[f"srtf, {lanes}, exact"] = measured(simulate(specs, ORDERS["srtf"], device))
        for error in (0.2, 0.5, 1.0) if overlap[-1] > 1 and (seed, sigma) in FITTED else (0.5,):
            rows[f"srtf, {lanes}, sigma {error}"] = _mean(
                [
                    measured(simulate(with_estimates(specs, sigma=error, seed=number), ORDERS["srtf"], device))
                    for number in ESTIMATE_SEEDS
                ]
            )
    device = Device(overlap=OVERLAPS["two lanes, overlap 1.25"])
    for name, assumed in (("thought exact", 0.0), ("thought 1.0", 1.0)):
        rows[f"srtf, two lanes, overlap 1.25, sigma 0.5 {name}"] = _mean(
            [
                measured(
                    simulate(
                        with_estimates(specs, sigma=0.5, seed=number, assumed_sigma=assumed), ORDERS["srtf"], device
                    )
                )
                for number in ESTIMATE_SEEDS
            ]
        )
    for name in ("fifo", "srtf"):
        resident = Device(overlap=(1.0, 1.25), capacity_bytes=CAPACITY_BYTES)
        rows[f"{name}, two lanes, overlap 1.25, 14 GiB"] = measured(simulate(specs, ORDERS[name], resident))
    return rows


def _mean(rows: Sequence[Row]) -> Row:
    return {key: fmean(row[key] for row in rows) for key in rows[0]}


def _short_jobs(seed: int) -> bool:
    """Return whether SRTF's mean is at most FIFO's on a small trace with exact estimates and without switch costs."""
    specs = _strided(salus_trace(seed, jobs=12))
    device = Device(switch_cost_ns=0)
    outcomes = [simulate(specs, ORDERS[name], device).mean_completion_ns for name in ("srtf", "fifo")]
    return outcomes[0] <= outcomes[1] + 1


def _gains(rows: Sequence[dict[str, Row]], name: str) -> list[float]:
    return [row[name]["gain"] for row in rows]


def _losing(fitted: Sequence[dict[str, Row]], arbitrary: Sequence[dict[str, Row]]) -> list[str]:
    def gain(name: str) -> str:
        return f"{fmean(_gains(fitted, name)):.2f}x"

    p95 = {name: round(fmean(row[f"{name}, one lane"]["p95"] for row in fitted)) for name in ("srtf", "fifo")}
    memory = gain("srtf, two lanes, overlap 1.25, 14 GiB")
    return [
        f"on arbitrary traces the optimum itself gains only {fmean(_gains(arbitrary, 'optimum')):.2f}x",
        f"p95 completion on the fitted traces: srtf {p95['srtf']} min, fifo {p95['fifo']} min",
        f"if two lanes gain nothing, srtf with sigma 0.5: {gain('srtf, two lanes, overlap 1.0, sigma 0.5')}",
        f"with 14 GiB and jobs admitted in order of arrival, srtf: {memory}; most jobs wait for memory",
        f"without estimates, las: {gain('las, one lane')}",
    ]


def measure(*, quick: bool = False) -> dict[str, Any]:
    jobs, short_traces = (4, 2) if quick else (JOBS, SHORT_TRACES)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        traces = list(pool.map(partial(_trace, jobs=jobs), (*FITTED, *ARBITRARY)))
        never_worse = list(pool.map(_short_jobs, range(short_traces), chunksize=20))
    fitted, arbitrary = traces[: len(FITTED)], traces[len(FITTED) :]
    best = "srtf, two lanes, overlap 1.25, sigma 0.5"

    tables: dict[str, Any] = {
        "fitted traces: minutes of mean, p95 completion, queueing, makespan; gain over FIFO on one lane": {
            name: {key: round(fmean(row[name][key] for row in fitted), 2) for key in fitted[0][name]}
            for name in fitted[0]
        },
        "gain over FIFO on one lane, traces fitted": {name: interval(_gains(fitted, name)) for name in fitted[0]},
        "gain over FIFO on one lane, arbitrary traces": {
            name: interval(_gains(arbitrary, name)) for name in arbitrary[0]
        },
    }
    oracle = fmean(_gains(fitted, "srtf, one lane"))
    reached = min(row["optimum"]["reached"] for row in traces)
    estimated = fmean(_gains(fitted, best))
    two_exact = fmean(_gains(fitted, "srtf, two lanes, overlap 1.25, exact"))
    worse = never_worse.count(False)
    return {
        "name": "Job orders",
        "model": "coarse event loop, switching at every 10th iteration, 1 ms to switch; traces regenerated; lanes side"
        " by side are a model: two lanes do 1.25 s of work per second, no such gain comes from one time-shared engine",
        "seeds": {
            "fitted (seed, sigma)": [list(one) for one in FITTED],
            "arbitrary": [list(one) for one in ARBITRARY],
            "estimates": list(ESTIMATE_SEEDS),
        },
        "baselines": ["fifo", "fair", "las", "pack", "shortest remaining time as a bound", PAPER],
        "hashes": {
            "workload": digest([salus_trace(seed, jobs=jobs, sigma=sigma) for seed, sigma in (*FITTED, *ARBITRARY)]),
            "schedule": digest(traces),
        },
        "figures": tables,
        "targets": [
            target("one lane, exact estimates, fitted traces", ">= 3.25x", oracle, met=round(oracle, 2) >= 3.25),
            target(
                "part of the optimum reached, switching at every iteration, worst trace",
                ">= 0.999",
                reached,
                met=reached >= 0.999,
            ),
            target("two lanes (overlap 1.25), sigma 0.5, fitted", ">= 3.6x", estimated, met=estimated >= 3.6),
            target("two lanes (overlap 1.25), exact, fitted", ">= 4.0x", two_exact, met=two_exact >= 4.0),
            target(f"traces of {short_traces} on which SRTF is worse than FIFO", "0", worse, met=worse == 0),
        ],
        "losing": _losing(fitted, arbitrary),
    }


if __name__ == "__main__":
    main(measure)
