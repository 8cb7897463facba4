# SPDX-License-Identifier: Apache-2.0
"""Programs with small kernels and pauses of their host: two tenants together, compared with one alone."""

from __future__ import annotations

from typing import Any

from tests.bench.compute.site import built, figures, site
from tests.bench.sched.result import digest, target

CONFIGURATION = "[tenants.one]\nweight = 100\n\n[tenants.other]\nweight = 100\n"
KERNEL_US, GAP_US, REQUESTS, QUICK_REQUESTS = 300, 1000, 200, 10
LEAST = 1.7


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure requests per second and their duration."""
    client = built("client", "OpenCL")
    requests = str(QUICK_REQUESTS if quick else REQUESTS)
    with site(CONFIGURATION) as running:
        rounds = str(int(figures(running.run("one", client, "work", str(KERNEL_US), "0.2"))["rounds"]))
        words = (client, "gaps", str(KERNEL_US), str(GAP_US), requests, rounds)
        direct = figures(running.run(None, *words))
        alone = figures(running.run("one", *words))
        started = [running.start(name, *words) for name in ("one", "other")]
        together = [figures(process.communicate()[0]) for process in started]
    rows = {"directly, alone": direct, "a tenant, alone": alone, "one of two": together[0], "the other": together[1]}
    table = {
        name: {key: figure[key] for key in ("requests_per_s", "request_p50_us", "request_p99_us")}
        for name, figure in rows.items()
    }
    gain = sum(figure["requests_per_s"] for figure in together) / alone["requests_per_s"]
    return {
        "name": "Two tenants whose programs pause between kernels",
        "command": "make bench-compute",
        "model": f"PoCL; requests of 8 kernels of {KERNEL_US} us with pauses of {GAP_US} us, a wait after each second",
        "seeds": [],
        "baselines": ["one of them alone"],
        "hashes": {"configuration": digest(CONFIGURATION)},
        "figures": {"requests": table},
        "targets": [target("both together, of one alone", f">= {LEAST}", gain, met=gain >= LEAST)],
        "losing": ["the host sleeps in the pauses; a host that computes shares the processors with PoCL"],
    }
