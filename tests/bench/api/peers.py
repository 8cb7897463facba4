# SPDX-License-Identifier: Apache-2.0
"""Claims of our API and of OpenStack Placement, in turns, on the same PostgreSQL and the same fleet."""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.api import claims, fleet, openstack, servers
from tests.bench.api.load import Tally
from tests.bench.api.sizes import Bench
from tests.bench.sched.result import target

LIMITS = (1000, 5)
"""Numbers of requested candidates: Nova's default, and the fastest setting."""

WANTED = 100


def measure(bench: Bench, environment: Path) -> dict[str, Any]:
    """Compares the two. Raises NotInstallableError without Placement."""
    binaries = openstack.installed(environment)
    both = fleet.loaded(bench.cluster.create("peers"), bench.sizes.placement_hosts)
    ours: dict[int, list[Tally]] = {clients: [] for clients in bench.sizes.placement_clients}
    theirs: dict[tuple[int, int], list[Tally]] = {}
    directory = bench.directory / "peers"
    with (
        servers.replicas(directory, both.url, count=bench.sizes.workers) as replicas,
        openstack.serving(
            binaries, directory, bench.cluster, "placement", both, workers=bench.sizes.workers
        ) as address,
    ):
        claims.warm(bench, both, replicas)
        openstack.claims(address, bench.sizes.workers, 1, limit=LIMITS[-1])
        for clients, taken in ours.items():
            taken.append(claims.counted(bench, both, replicas, clients, bench.sizes.seconds)[0])
            for limit in LIMITS:
                tally = openstack.claims(address, clients, bench.sizes.placement_seconds, limit=limit)
                theirs.setdefault((clients, limit), []).append(tally)
            taken.append(claims.counted(bench, both, replicas, clients, bench.sizes.seconds)[0])
    claims.require_agreement(both)
    rows: dict[str, Any] = {}
    for clients, taken in ours.items():
        rows[f"vgpumgr, {clients} clients"] = _figures(taken)
        for limit in LIMITS:
            rows[f"Placement, {limit} candidates, {clients} clients"] = _figures(theirs[clients, limit])
    best_of = {limit: max(_rate(theirs[clients, limit]) for clients in ours) for limit in LIMITS}
    best = max(_rate(taken) for taken in ours.values())
    return {
        "figures": {f"side by side, {both.gpus} GPUs": rows},
        "targets": targets(both.gpus, ours=best, theirs=best_of),
    }


def targets(gpus: int, *, ours: float, theirs: Mapping[int, float]) -> list[dict[str, Any]]:
    """Compares the best rates. `theirs`: by number of candidates; a rate of 0 gives no comparison."""
    name = f"claims/s at {gpus} GPUs, times Placement's best with {{}} candidates"
    times = {limit: ours / rate if rate > 0 else 0.0 for limit, rate in theirs.items()}
    return [target(name.format(limit), f">= {WANTED}", each, met=each >= WANTED) for limit, each in times.items()]


def _rate(taken: list[Tally]) -> float:
    return statistics.median(tally.per_s for tally in taken)


def _figures(taken: list[Tally]) -> dict[str, float]:
    return {
        "claims/s": round(_rate(taken), 3),
        "p50 ms": round(statistics.median(tally.quantile_ms(0.5) for tally in taken), 1),
        "p99 ms": round(statistics.median(tally.quantile_ms(0.99) for tally in taken), 1),
        "failed": sum(len(tally.took_ms) - tally.done for tally in taken),
    }
