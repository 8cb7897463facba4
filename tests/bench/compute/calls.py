# SPDX-License-Identifier: Apache-2.0
"""The cost of calls through a tenant, compared with the same program directly on the same library.

There is only one tenant. The two ways run in turns; each figure is the median over turns, and each ratio the median of
the turns' ratios.
"""

from __future__ import annotations

import statistics
from typing import Any

from tests.bench.compute.site import built, figures, site
from tests.bench.sched.result import digest, target

CONFIGURATION = """
[tenants.alone]
weight = 100
"""
TURNS = 7
ASYNCHRONOUS_US = 0.3
PARKED_US = 5.0
PARKED_PINGPONGS = 1.2
NULL_KERNELS = 0.8
FINISH = 1.5
WINDOW_COPIES, ORDINARY_COPIES = 0.85, 0.4
COPIES_FROM_KIB = (4096, 16384)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure calls and copies, `TURNS` times each way."""
    client, pingpong = built("client", "OpenCL"), built("pingpong")
    turns: list[dict[str, dict[str, float]]] = []
    with site(CONFIGURATION) as running:
        for _ in range(1 if quick else TURNS):
            turn = {"futex": figures(running.run(None, pingpong))}
            for way, tenant in (("direct", None), ("tenant", "alone")):
                turn[way] = {}
                for what in ("calls", "copies"):
                    turn[way] |= figures(running.run(tenant, client, what))
            turns.append(turn)
        leases = running.tenants()["alone"]["stats"]["leases"]
    return result(turns, leases)


def result(turns: list[dict[str, dict[str, float]]], leases: int) -> dict[str, Any]:
    """Return the result in the form of tests/bench/sched/result.py."""
    names = list(turns[0]["direct"])
    table = {name: row(turns, name) for name in names}
    pingpong_us = statistics.median(turn["futex"]["pingpong_us"] for turn in turns)
    return {
        "name": "OpenCL calls through a tenant that is alone",
        "command": "make bench-compute",
        "model": "PoCL, whose threads run on the processors of this machine",
        "seeds": [],
        "baselines": ["the same program on the same library, directly", "two processes that wake each other by futex"],
        "hashes": {"configuration": digest(CONFIGURATION)},
        "figures": {"median of turns": table, "futex": {"round trip, us": round(pingpong_us, 2)}},
        "targets": targets(table, pingpong_us, leases),
        "losing": ["a call that the library answers from its own memory is faster directly"],
    }


def row(turns: list[dict[str, dict[str, float]]], name: str) -> dict[str, float]:
    ratios = [turn["tenant"][name] / turn["direct"][name] for turn in turns if turn["direct"][name]]
    return {
        "direct": round(statistics.median(turn["direct"][name] for turn in turns), 4),
        "tenant": round(statistics.median(turn["tenant"][name] for turn in turns), 4),
        "ratio": round(statistics.median(ratios), 3) if ratios else 0.0,
    }


def targets(table: dict[str, dict[str, float]], pingpong_us: float, leases: int) -> list[dict[str, Any]]:
    """Return the targets from the design."""
    parked_us = PARKED_PINGPONGS * pingpong_us + PARKED_US
    asynchronous_us, parked = table["enqueue_us"]["tenant"], table["round_trip_us"]["tenant"]
    null, finish = table["null_kernels_per_s"]["ratio"], table["enqueue_finish_us"]["ratio"]
    found = [
        target("an asynchronous call, us", f"<= {ASYNCHRONOUS_US}", asynchronous_us, met=asynchronous_us <= 0.3),
        target("a round trip, us", f"<= {parked_us:.1f}, 1.2 futex + 5", parked, met=parked <= parked_us),
        target("null kernels/s, of direct", f">= {NULL_KERNELS}", null, met=null >= NULL_KERNELS),
        target("enqueue and finish, of direct", f"<= {FINISH}", finish, met=finish <= FINISH),
        target("leases of a tenant that is alone", "<= 1 a program", leases, met=leases <= 2 * TURNS),
    ]
    for storage, least in (("window", WINDOW_COPIES), ("ordinary", ORDINARY_COPIES)):
        for kib in COPIES_FROM_KIB:
            for way in ("read", "write"):
                ratio = table[f"{way}_{storage}_{kib}K_GBps"]["ratio"]
                what = f"{way} of {kib >> 10} MiB, {storage} storage, of direct"
                found.append(target(what, f">= {least}", ratio, met=ratio >= least))
    return found
