# SPDX-License-Identifier: Apache-2.0
"""The cost of a claim on a small fleet and on the whole one, in turns with equal conditions."""

from typing import Any

from tests.bench.api import claims, fleet, servers
from tests.bench.api.sizes import Bench
from tests.bench.sched.result import target

WANTED = 1.3


def measure(bench: Bench) -> dict[str, Any]:
    """In each turn both fleets get new processes, which the same number of claims warms. The fleets swap their order,
    because the second one finds the machine as the first left it. Each turn has a new small fleet, with room for all
    claims of the fastest machine.
    """
    whole = bench.whole
    taken: dict[tuple[int, int], list[claims.Run]] = {}
    for number in range(2 * bench.sizes.rounds):
        few = fleet.loaded(bench.cluster.create(f"few{number}"), bench.sizes.few_hosts)
        directory = bench.directory / few.name
        with (
            servers.replicas(directory / "few", few.url, count=bench.sizes.workers) as of_few,
            servers.replicas(directory / "whole", whole.url, count=bench.sizes.workers) as of_whole,
        ):
            both = [(few, of_few), (whole, of_whole)]
            both = both if number % 2 else both[::-1]
            for each, replicas in both:
                claims.warm(bench, each, replicas)
            for clients in (1, bench.sizes.several):
                for each, replicas in both:
                    run = claims.counted(bench, each, replicas, clients, bench.sizes.seconds / 2)
                    taken.setdefault((clients, each.gpus), []).append(run)
        claims.require_agreement(few)
        bench.cluster.drop(few.name)
    claims.require_agreement(whole)
    rows = {at: claims.figures(runs) for at, runs in sorted(taken.items())}
    return {
        "figures": {
            "claims, by size": {f"{clients} clients, {gpus} GPUs": row for (clients, gpus), row in rows.items()}
        },
        "targets": [
            _target(clients, few.gpus, whole.gpus, rows[clients, few.gpus], rows[clients, whole.gpus])
            for clients in (1, bench.sizes.several)
        ],
    }


def _target(clients: int, few: int, many: int, small: dict[str, float], large: dict[str, float]) -> dict[str, Any]:
    cost = claims.cost(large, small)
    what = f"processor time of a claim at {many} GPUs, times that at {few}, {clients} clients"
    return target(what, f"<= {WANTED}", cost, met=cost <= WANTED)
