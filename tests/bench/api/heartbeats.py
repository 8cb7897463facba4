# SPDX-License-Identifier: Apache-2.0
"""Signs of life of all hosts, over TLS, each with its host's token."""

import ssl
import statistics
from collections.abc import Callable
from typing import Any

import psycopg

from tests.api.http.tls import make_certificate
from tests.bench.api import servers
from tests.bench.api.fleet import Fleet
from tests.bench.api.load import Tally, closed_loop, message
from tests.bench.api.sizes import Bench
from tests.bench.sched.result import target

BOOT = "00000000-0000-0000-0000-000000000001"
CONNECTIONS = 64
"""That are kept; agents have one each, and what costs is the request."""


def measure(bench: Bench) -> dict[str, Any]:
    """All hosts in turn."""
    whole = bench.whole
    directory = bench.directory / "heartbeats"
    directory.mkdir()
    make_certificate(directory)
    trusting = ssl.create_default_context(cafile=directory / "crt.pem")
    trusting.check_hostname = False
    with psycopg.connect(whole.url) as connection:
        connection.execute("UPDATE host_reports SET boot_id = %s, agent_epoch = 1, seq = 1", [BOOT])
    files: dict[str, str | int] = {"tls_certificate": str(directory / "crt.pem"), "tls_key": str(directory / "key.pem")}
    taken: list[tuple[Tally, servers.Counts]] = []
    with servers.replicas(directory / "replicas", whole.url, count=bench.sizes.workers, settings=files) as addresses:
        make = _maker(whole)
        closed_loop(addresses, CONNECTIONS, 1, make, tls=trusting)
        for _ in range(bench.sizes.rounds):
            before = servers.counts(bench.cluster, whole.name)
            tally = closed_loop(addresses, CONNECTIONS, bench.sizes.seconds, make, tls=trusting)
            taken.append((tally, servers.counts(bench.cluster, whole.name) - before))
    row = {
        "heartbeats/s": _median(taken, lambda tally, _: tally.per_s),
        "p50 ms": _median(taken, lambda tally, _: tally.quantile_ms(0.5)),
        "p99 ms": _median(taken, lambda tally, _: tally.quantile_ms(0.99)),
        "statements": _median(taken, lambda tally, counts: counts.statements / tally.done),
        "syncs": _median(taken, lambda tally, counts: counts.syncs / tally.done),
        "failed": sum(len(tally.took_ms) - tally.done for tally, _ in taken),
    }
    rate = row["heartbeats/s"]
    return {
        "figures": {f"heartbeats over TLS, {len(whole.hosts)} hosts": {f"{CONNECTIONS} connections": row}},
        "targets": [target("heartbeats/s over TLS", ">= 700", rate, met=rate >= 700)],
    }


def _maker(whole: Fleet) -> Callable[[int], bytes]:
    body = f'{{"boot_id": "{BOOT}", "agent_epoch": 1, "seq": 1}}'.encode()
    hosts = list(whole.hosts.items())
    numbers = iter(range(1 << 62))

    def make(_connection: int) -> bytes:
        name, token = hosts[next(numbers) % len(hosts)]
        return message("POST", f"/v1/hosts/{name}/heartbeat", token, body)

    return make


def _median(taken: list[tuple[Tally, servers.Counts]], value: Callable[[Tally, servers.Counts], float]) -> float:
    return round(statistics.median(value(*each) for each in taken), 3)
