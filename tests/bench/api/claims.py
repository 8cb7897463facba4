# SPDX-License-Identifier: Apache-2.0
"""Claims by HTTP: how many a second, how long each takes, what each costs the database, and whether size matters."""

import json
import statistics
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from tests.api.concurrency.audit import Audit
from tests.bench.api import fleet, servers
from tests.bench.api.fleet import PROFILE, Fleet
from tests.bench.api.load import Address, Tally, closed_loop, message
from tests.bench.api.sizes import Bench
from tests.bench.sched.result import target

CLIENTS = 16
"""How many ask at once where the issue does not say."""


class DisagreementError(Exception):
    """What the database holds is not what clients were told."""


def measure(bench: Bench) -> dict[str, Any]:
    """Claims at several numbers of clients on the whole fleet."""
    whole = bench.whole
    warm(bench.addresses, whole)
    runs: dict[int, list[tuple[Tally, servers.Counts]]] = {clients: [] for clients in bench.sizes.clients}
    for _ in range(bench.sizes.rounds):
        for clients, taken in runs.items():
            taken.append(counted(bench, whole, bench.addresses, clients, bench.sizes.seconds))
    rows = {f"{clients} clients": figures(taken) for clients, taken in runs.items()}
    require_agreement(whole)
    return {
        "figures": {f"claims, {whole.gpus} GPUs, {whole.slices} slices": rows},
        "targets": _targets(rows.get(f"{CLIENTS} clients")),
    }


def growth(bench: Bench) -> dict[str, Any]:
    """The same claims on a small fleet and on the whole one, in turns. Each turn has a small one of its own, which has
    room for what the fastest machine claims in one.
    """
    whole = bench.whole
    clients = min(CLIENTS, max(bench.sizes.clients))
    taken: dict[int, list[tuple[Tally, servers.Counts]]] = {}
    warm(bench.addresses, whole)
    for number in range(2 * bench.sizes.rounds):
        few = fleet.loaded(bench.cluster.create(f"few{number}"), bench.sizes.few_hosts)
        with servers.replicas(bench.directory / few.name, few.url, count=bench.sizes.workers) as to_few:
            warm(to_few, few)
            both = ((few, to_few), (whole, bench.addresses))
            # Whoever comes second finds the machine as the first left it, so they change places.
            for each, addresses in both if number % 2 else reversed(both):
                run = counted(bench, each, addresses, clients, bench.sizes.seconds / 2)
                taken.setdefault(each.gpus, []).append(run)
        require_agreement(few)
    require_agreement(whole)
    rows = {f"{each.gpus} GPUs": figures(taken[each.gpus]) for each in (few, whole)}
    small, large = rows.values()
    costs = {name: large[name] / max(small[name], 1e-9) for name in ("ms of both cores", "database ms")}
    return {
        "figures": {f"claims by {clients} clients, by size": rows},
        "targets": [
            target(f"cost of a claim at {whole.gpus} GPUs, against {few.gpus}: {name}", "<= 1.3", cost, met=cost <= 1.3)
            for name, cost in costs.items()
        ],
    }


def maker(of: Fleet) -> Callable[[int], bytes]:
    """Requests of all tenants in turn, each for a VM of its own, with an idempotency key of its own."""
    tenants = list(of.tenants.items())
    numbers = iter(range(1 << 62))

    def make(_client: int) -> bytes:
        name, token = tenants[next(numbers) % len(tenants)]
        body = {"tenant": name, "profile": PROFILE, "vm_uuid": str(uuid.uuid4())}
        return message("POST", "/v1/slices", token, json.dumps(body).encode(), Idempotency_Key=str(uuid.uuid4()))

    return make


def warm(addresses: Sequence[Address], of: Fleet) -> None:
    """Fills pools and caches."""
    closed_loop(addresses, CLIENTS, 1, maker(of))


def counted(
    bench: Bench, of: Fleet, addresses: Sequence[Address], clients: int, seconds: float
) -> tuple[Tally, servers.Counts]:
    """A run, and what it cost."""
    before = servers.counts(bench.cluster, of.name)
    tally = closed_loop(addresses, clients, seconds, maker(of))
    after = servers.counts(bench.cluster, of.name)
    if tally.done < len(tally.took_ms):
        raise DisagreementError(f"claims were refused: {tally.refusals.most_common(3)}")
    return tally, after - before


def figures(taken: Sequence[tuple[Tally, servers.Counts]]) -> dict[str, float]:
    """Medians over rounds."""
    rows = [
        {
            "claims/s": tally.per_s,
            "p50 ms": tally.quantile_ms(0.5),
            "p99 ms": tally.quantile_ms(0.99),
            "statements": counts.statements / tally.done,
            "syncs": counts.syncs / tally.done,
            "log bytes": counts.wal_bytes / tally.done,
            "database ms": counts.exec_ms / tally.done,
            "ms of both cores": 1000 / tally.per_s,
        }
        for tally, counts in taken
    ]
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def require_agreement(of: Fleet) -> None:
    """Asks the database itself whether everything adds up."""
    wrong = Audit(of.url).sums()
    if wrong:
        raise DisagreementError("; ".join(wrong[:5]))


def _targets(row: dict[str, float] | None) -> list[dict[str, Any]]:
    if row is None:
        return []
    rate, p99 = row["claims/s"], row["p99 ms"]
    return [
        target(f"claims/s at {CLIENTS} clients", ">= 300", rate, met=rate >= 300),
        target(f"p99 of a claim at {CLIENTS} clients, ms", "<= 150", p99, met=p99 <= 150),
    ]
