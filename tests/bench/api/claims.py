# SPDX-License-Identifier: Apache-2.0
"""Claims by HTTP: how many a second, and the latency and cost of each."""

import json
import statistics
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from tests.api.concurrency.audit import Audit
from tests.bench.api import servers
from tests.bench.api.fleet import PROFILE, Fleet
from tests.bench.api.load import Tally, closed_loop, message
from tests.bench.api.sizes import CLIENTS, Bench
from tests.bench.sched.result import target

WARM_WITHIN_S = 60

Run = tuple[Tally, servers.Counts]


class DisagreementError(Exception):
    """The content of the database differs from the answers to clients."""


def measure(bench: Bench) -> dict[str, Any]:
    """Measures claims with several numbers of clients on the whole fleet."""
    whole = bench.whole
    warm(bench, whole, bench.replicas)
    runs: dict[int, list[Run]] = {clients: [] for clients in bench.sizes.clients}
    for _ in range(bench.sizes.rounds):
        for clients, taken in runs.items():
            taken.append(counted(bench, whole, bench.replicas, clients, bench.sizes.seconds))
    rows = {f"{clients} clients": figures(taken) for clients, taken in runs.items()}
    require_agreement(whole)
    return {
        "figures": {f"claims, {whole.gpus} GPUs, {whole.slices} slices": rows},
        "targets": _targets(bench.sizes.several, rows[f"{bench.sizes.several} clients"]),
    }


def maker(
    of: Fleet, asked: Callable[[int], Mapping[str, Any]] = lambda _: {}, *, tenants: int | None = None
) -> Callable[[int], bytes]:
    """Returns claims of all tenants in turn, or of `tenants` of them, each with a new VM and a new idempotency key.

    `asked(number)`: members that the claim of that number adds or replaces.
    """
    owners = list(of.tenants.items())[:tenants]
    numbers = count()

    def make(_client: int) -> bytes:
        number = next(numbers)
        name, token = owners[number % len(owners)]
        body = {"tenant": name, "profile": PROFILE, "vm_uuid": str(uuid.uuid4()), **asked(number)}
        return message("POST", "/v1/slices", token, json.dumps(body).encode(), Idempotency_Key=str(uuid.uuid4()))

    return make


def warm(bench: Bench, of: Fleet, replicas: servers.Replicas) -> None:
    """Fills pools and caches, always with the same number of claims."""
    most = bench.sizes.warm_claims
    tally = closed_loop(replicas.addresses, CLIENTS, WARM_WITHIN_S, maker(of), most=most)
    if tally.done < most:
        raise DisagreementError(f"{tally.done} of {most} claims in {WARM_WITHIN_S} s: {tally.refusals.most_common(3)}")


def counted(bench: Bench, of: Fleet, replicas: servers.Replicas, clients: int, seconds: float) -> Run:
    """Returns a run and its cost."""
    before = servers.counts(bench.cluster, of.name, replicas)
    tally = closed_loop(replicas.addresses, clients, seconds, maker(of))
    after = servers.counts(bench.cluster, of.name, replicas)
    if tally.done < len(tally.took_ms):
        raise DisagreementError(f"claims were refused: {tally.refusals.most_common(3)}")
    return tally, after - before


def figures(taken: Sequence[Run]) -> dict[str, float]:
    """Returns medians over rounds."""
    rows = [
        {
            "claims/s": tally.per_s,
            "p50 ms": tally.quantile_ms(0.5),
            "p99 ms": tally.quantile_ms(0.99),
            "statements": counts.statements / tally.done,
            "syncs": counts.syncs / tally.done,
            "log bytes": counts.wal_bytes / tally.done,
            "database ms": counts.exec_ms / tally.done,
            "ms between claims": 1000 / tally.per_s,
            **counts.cpu_ms(tally.done),
        }
        for tally, counts in taken
    ]
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def cost(row: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Returns a claim's processor time, divided by that of another kind; the clients' time does not count."""

    def cpu_ms(of: Mapping[str, float]) -> float:
        return of["API CPU ms"] + of["PostgreSQL CPU ms"]

    return cpu_ms(row) / max(cpu_ms(other), 1e-9)


def require_agreement(of: Fleet) -> None:
    """Checks the sums in the database itself."""
    wrong = Audit(of.url).sums()
    if wrong:
        raise DisagreementError("; ".join(wrong[:5]))


def _targets(clients: int, row: dict[str, float]) -> list[dict[str, Any]]:
    rate, p99 = row["claims/s"], row["p99 ms"]
    return [
        target(f"claims/s at {clients} clients", ">= 300", rate, met=rate >= 300),
        target(f"p99 of a claim at {clients} clients, ms", "<= 150", p99, met=p99 <= 150),
    ]
