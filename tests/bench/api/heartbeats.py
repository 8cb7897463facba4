# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of all hosts over TLS, each with its host's token; compared with a server that does nothing with them."""

import ssl
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from tests.api.http.tls import make_certificate
from tests.bench.api import fleet, servers
from tests.bench.api.fleet import Fleet
from tests.bench.api.load import Tally, closed_loop, message
from tests.bench.api.sizes import Bench
from tests.bench.sched.result import target

BOOT = "00000000-0000-0000-0000-000000000001"
CONNECTIONS = 64
WANTED = 700
WAYS = {f"{CONNECTIONS} kept connections": False, f"a connection for each, {CONNECTIONS} at once": True}
"""Whether each heartbeat uses a new connection, like an agent's does. Neither the API nor the agent keeps a connection
open between two heartbeats, and an agent's handshakes resume no session.
"""
BARE = "nothing but TLS and HTTP"
"""The baseline, see `tests.bench.api.bare`."""
WARM_S = 1

Run = tuple[Tally, servers.Counts]


def measure(bench: Bench) -> dict[str, Any]:
    """Sends the heartbeats of all hosts in turn."""
    whole = bench.whole
    directory = bench.directory / "heartbeats"
    directory.mkdir()
    make_certificate(directory)
    trusting = ssl.create_default_context(cafile=directory / "crt.pem")
    trusting.check_hostname = False
    with psycopg.connect(whole.url) as connection:
        connection.execute("UPDATE host_reports SET boot_id = %s, agent_epoch = 1, seq = 1", [BOOT])
    certificate, key = directory / "crt.pem", directory / "key.pem"
    files: dict[str, str | int] = {"tls_certificate": str(certificate), "tls_key": str(key)}
    workers = bench.sizes.workers
    taken: dict[str, list[Run]] = {}
    with (
        servers.replicas(directory / "replicas", whole.url, count=workers, settings=files) as replicas,
        servers.bare(directory / "bare", certificate, key, count=workers) as bare,
    ):
        make = _maker(whole)
        for anew in WAYS.values():
            closed_loop(replicas.addresses, CONNECTIONS, WARM_S, make, tls=trusting, anew=anew)
        for _ in range(bench.sizes.rounds):
            for way, anew in WAYS.items():
                for who, asked in ((way, replicas), (f"{way}: {BARE}", bare)):
                    before = servers.counts(bench.cluster, whole.name, asked)
                    tally = closed_loop(
                        asked.addresses, CONNECTIONS, bench.sizes.seconds, make, tls=trusting, anew=anew
                    )
                    counts = servers.counts(bench.cluster, whole.name, asked) - before
                    taken.setdefault(who, []).append((tally, counts))
    fleet.keep_online(whole.url)
    rows = {who: _figures(runs) for who, runs in taken.items()}
    for way in WAYS:
        rows[way]["of the baseline"] = round(rows[way]["heartbeats/s"] / rows[f"{way}: {BARE}"]["heartbeats/s"], 3)
    return {
        "figures": {f"heartbeats over TLS, {len(whole.hosts)} hosts": rows},
        "targets": [
            target(f"heartbeats/s over TLS, {way}", f">= {WANTED}", rate, met=rate >= WANTED)
            for way in WAYS
            for rate in [rows[way]["heartbeats/s"]]
        ],
    }


def _maker(whole: Fleet) -> Callable[[int], bytes]:
    body = f'{{"boot_id": "{BOOT}", "agent_epoch": 1, "seq": 1}}'.encode()
    hosts = list(whole.hosts.items())
    numbers = iter(range(1 << 62))

    def make(_connection: int) -> bytes:
        name, token = hosts[next(numbers) % len(hosts)]
        return message("POST", f"/v1/hosts/{name}/heartbeat", token, body)

    return make


def _figures(taken: Sequence[Run]) -> dict[str, float]:
    """Returns medians over rounds."""
    rows = [
        {
            "heartbeats/s": tally.per_s,
            "p50 ms": tally.quantile_ms(0.5),
            "p99 ms": tally.quantile_ms(0.99),
            "statements": counts.statements / tally.done,
            "syncs": counts.syncs / tally.done,
            **counts.cpu_ms(tally.done),
        }
        for tally, counts in taken
    ]
    medians = {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}
    return {**medians, "failed": sum(len(tally.took_ms) - tally.done for tally, _ in taken)}
