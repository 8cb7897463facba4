# SPDX-License-Identifier: Apache-2.0
"""The cost of each setting of gap fill: inversion, pieces, hold, reservation, share, switches, identities.

    python -m tests.bench.sched.gap_tradeoff [--json] [--quick]

One setting varies at a time, from those of `first_tenant`. The service is one of `gap_fill`, and its neighbour trains a
ResNet-50. The service has bursts of requests where a reservation is tried, and a closed loop elsewhere.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np

from tests.bench.sched.first_tenant import CHUNK_NS, MS, SHARINGS, US, Case, Row, Sharing, alone, share
from tests.bench.sched.gap_fill import LOAD, OTHERS, other, service
from tests.bench.sched.result import digest, interval, main, target
from vgpumgr.sim.arrivals import SECOND_NS, poisson
from vgpumgr.sim.workloads import identity

SEEDS = range(1, 6)
DURATION_NS = 8 * SECOND_NS
QUICK_DURATION_NS = SECOND_NS
BASE = SHARINGS["vgpumgr"]
BURSTY_RATE = 150
# Each kernel has its own identity: more identities than the predictor has room for.
BY_POSITION = "detector by position, closed"
# Kernels are identified by their durations alone, so a pause of the host cannot be predicted.
BY_DURATION = "detector by duration, 20 % load"
CASES = ("mobilenetv2, closed", "mobilenetv2, 20 % load", "detector, closed", "detector, 20 % load")
BURSTS = f"mobilenetv2, Poisson {BURSTY_RATE}/s"


def _pieces(chunk_ns: int, timeslice_ns: int) -> Sharing:
    return replace(BASE, engine=replace(BASE.engine, max_chunk_ns=chunk_ns), timeslice_ns=timeslice_ns)


def _switching(cost_ns: int) -> Sharing:
    """Timeslices are at least 20 switches long."""
    engine = replace(BASE.engine, switch_cost_ns=cost_ns)
    return replace(BASE, engine=engine, timeslice_ns=max(BASE.timeslice_ns, 20 * cost_ns))


SETTINGS: dict[str, tuple[tuple[str, ...], dict[str, Sharing]]] = {
    "inversion": (
        CASES,
        {
            **{f"{permille} permille": replace(BASE, inversion_permille=permille) for permille in (1, 3, 10, 30, 100)},
            "no hold": SHARINGS["vgpumgr without hold"],
            "fikit": SHARINGS["fikit"],
        },
    ),
    "pieces": (
        CASES,
        {
            "100 us": _pieces(100 * US, 100 * US),
            "timeslice 100 us": _pieces(CHUNK_NS, 100 * US),
            "250 us": BASE,
            "500 us": _pieces(500 * US, 500 * US),
            "1 ms": _pieces(MS, MS),
        },
    ),
    "hold_max": (CASES[2:], {f"{us} us": replace(BASE, hold_ns=us * US) for us in (200, 500, 1000, 3000, 10_000)}),
    "reservation": (
        (BURSTS, CASES[2]),
        {
            f"{budget} ms per {period} ms": replace(BASE, reserve_ns=budget * MS, period_ns=period * MS)
            for budget, period in ((3, 4), (15, 20), (75, 100), (300, 400))
        },
    ),
    "share": (
        (BURSTS, CASES[0]),
        {f"{weight}:1": replace(BASE, first_weight=weight) for weight in (3, 9, 99, 900)},
    ),
    "identities": (
        (BY_POSITION, BY_DURATION, *CASES[2:]),
        {"10 permille": BASE, "time slice 2 ms": SHARINGS["time slice 2 ms"]},
    ),
    "switch": (CASES[2:], {f"{us} us": _switching(us * US) for us in (0, 10, 50)}),
}


def _case(name: str, seed: int, duration_ns: int) -> Case:
    of_service, arrivals = name.split(", ")
    load = LOAD if arrivals == "20 % load" else None
    first = service(of_service.partition(" by ")[0], seed, duration_ns, load)
    if name == BY_POSITION:
        first = replace(first, kernel_id=None)
    if name == BY_DURATION:
        first = replace(first, kernel_id=[identity(work_ns / US) for work_ns in np.asarray(first.work_ns)])
    if arrivals.startswith("Poisson"):
        times = poisson(np.random.default_rng(seed), rate=BURSTY_RATE, duration_ns=duration_ns)
        first = replace(first, arrivals_ns=times)
    return Case([first], [other(OTHERS[-1], seed)], duration_ns, seed)


def _played(name: str, seed: int, duration_ns: int) -> tuple[dict[tuple[str, str], Row], str]:
    """Return every setting that is tried on a case."""
    case = _case(name, seed, duration_ns)
    reference = alone(case)
    rows = {
        (setting, value): share(case, sharing, reference)
        for setting, (cases, values) in SETTINGS.items()
        if name in cases
        for value, sharing in values.items()
    }
    sources = [one.compile() for one in (*case.first, *case.others)]
    return rows, digest(*(part for one in sources for part in (one.work_ns, one.launch_ns, one.arrivals_ns)))


def measure(*, quick: bool = False) -> dict[str, Any]:
    seeds = SEEDS[:2] if quick else SEEDS
    duration_ns = QUICK_DURATION_NS if quick else DURATION_NS
    names = [*CASES, BURSTS, BY_POSITION, BY_DURATION]
    tried = [(name, seed, duration_ns) for name in names for seed in seeds]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        played = dict(zip(tried, pool.map(_played, *zip(*tried, strict=True)), strict=True))

    def values(name: str, setting: str, value: str, figure: str) -> list[float]:
        return [played[name, seed, duration_ns][0][setting, value][figure] for seed in seeds]

    def worst(name: str, setting: str, value: str, figure: str) -> float:
        return max(values(name, setting, value, figure))

    tables = {
        f"{setting}; {name}": {
            value: {
                "mean": interval(values(name, setting, value, "mean")),
                "p99": interval(values(name, setting, value, "p99")),
                "wait us": round(worst(name, setting, value, "wait us")),
                "others %": interval(values(name, setting, value, "others %"), digits=1),
            }
            for value in tried_values
        }
        for setting, (cases, tried_values) in SETTINGS.items()
        for name in cases
    }
    burst = worst(BURSTS, "reservation", "75 ms per 100 ms", "p99")
    fine = worst(CASES[0], "pieces", "timeslice 100 us", "p99")
    mean = max(worst(name, "inversion", "10 permille", "mean") for name in CASES)
    short_budget = "3 ms per 4 ms"
    short = worst(BURSTS, "reservation", short_budget, "p99")
    low = worst(BURSTS, "share", "3:1", "p99")
    closed = fmean(values(CASES[0], "share", "3:1", "p99"))
    costly = [fmean(values(CASES[2], "switch", "50 us", figure)) for figure in ("mean", "others %")]
    known, forgotten = (
        fmean(values(name, "identities", "10 permille", "others %")) for name in (CASES[2], BY_POSITION)
    )
    blind, seeing = (
        fmean(values(name, "identities", "10 permille", "others %"))
        / fmean(values(name, "identities", "time slice 2 ms", "others %"))
        for name in (BY_DURATION, CASES[3])
    )
    blindly = (
        "identities that do not show where the host waits: at 20 % load the others' work against time slices is"
        f" {blind:.3f}, and {seeing:.3f} with identities that do; only these meet the target of 0.95 in gap_fill"
    )
    return {
        "name": "Gap fill: what a setting costs",
        "model": "simulated engine, pieces of at most 250 us, 2 us per split; 10 permille of inversion saved up to a"
        " chunk, hold_max 3 ms, 75 ms per 100 ms reserved, weights 900:1, unless the row says otherwise; the neighbour"
        " trains a ResNet-50 without a pause",
        "seeds": list(seeds),
        "baselines": ["no hold (strict priority in pieces)", "fikit"],
        "hashes": {
            "workload": digest(*(workload for _, workload in played.values())),
            "schedule": digest([[row["schedule"] for row in rows.values()] for rows, _ in played.values()]),
        },
        "figures": tables,
        "targets": [
            target("mean slowdown at 10 permille, worst case and seed", "<= 1.03", mean, met=mean <= 1.03),
            target("p99 slowdown under bursts, 75 ms per 100 ms, worst seed", "<= 1.05", burst, met=burst <= 1.05),
            target("p99 slowdown of 2.5 ms requests, timeslice 100 us, worst seed", "<= 1.05", fine, met=fine <= 1.05),
        ],
        "losing": [
            f"a reservation shorter than a burst: {short_budget}, {BURSTS}, p99 {short:.3f} in the worst seed",
            f"a service that wants more than its share: 3:1, {CASES[0]}, p99 {closed:.3f}; {BURSTS}, worst {low:.3f}",
            f"more identities than the predictor has room for: the others get {forgotten:.1f} %, not {known:.1f} %",
            blindly,
            f"an engine with switches of 50 us: {CASES[2]}, mean {costly[0]:.3f}, the others get {costly[1]:.1f} %",
        ],
    }


if __name__ == "__main__":
    main(measure)
