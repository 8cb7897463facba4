# SPDX-License-Identifier: Apache-2.0
"""Tenants that always have work: lease time compared with entitlement, and work per leased second compared with a
tenant alone.
"""

from __future__ import annotations

import time
from typing import Any

from tests.bench.compute.site import START_S, Site, built, figures, site
from tests.bench.sched.result import digest, target

WEIGHTS = {"blue": 300, "red": 100}
TIMESLICE_US = 5000
CONFIGURATION = "\n".join(
    f"[tenants.{name}]\nweight = {weight}\ntimeslice_us = {TIMESLICE_US}\n" for name, weight in WEIGHTS.items()
)
KERNELS_US = (100, 1000, 5000, 20000)
SECONDS, QUICK_SECONDS = 10.0, 1.0
WARM_KERNELS = 16
POINTS = 1.0


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure two tenants with weights 3:1, with kernels of each length."""
    seconds = QUICK_SECONDS if quick else SECONDS
    client = built("client", "OpenCL")
    table: dict[str, dict[str, float]] = {}
    targets = []
    with site(CONFIGURATION) as running:
        for kernel_us in KERNELS_US[:1] if quick else KERNELS_US:
            rounds = figures(running.run("blue", client, "work", str(kernel_us), "0.2"))["rounds"]
            alone = work(running, ["blue"], client, kernel_us, seconds / 4, rounds)["blue"]
            both = work(running, list(WEIGHTS), client, kernel_us, seconds, rounds)
            leased = sum(figure["leased_s"] for figure in both.values())
            share = both["blue"]["leased_s"] / leased
            due = WEIGHTS["blue"] / sum(WEIGHTS.values())
            per_second = {name: figure["kernels"] / figure["leased_s"] for name, figure in both.items()}
            directly = alone["kernels"] / alone["leased_s"]
            table[f"kernels of {kernel_us} us"] = {
                "blue's part, %": round(100 * share, 2),
                "due, %": round(100 * due, 2),
                "blue's work a leased second, of alone": round(per_second["blue"] / directly, 3),
                "red's": round(per_second["red"] / directly, 3),
                "leases ended by the gate": both["blue"]["gates"] + both["red"]["gates"],
            }
            points = 100 * abs(share - due)
            targets.append(target(f"share at {kernel_us} us, points off", f"<= {POINTS}", points, met=points <= POINTS))
    return {
        "name": "Two tenants with weights 3:1 that always have work",
        "command": "make bench-compute",
        "model": f"PoCL, leases of {TIMESLICE_US} us; lease time by the broker's counters",
        "seeds": [],
        "baselines": ["what is due by weight", "one of them alone"],
        "hashes": {"configuration": digest(CONFIGURATION)},
        "figures": {f"{seconds:g} s": table},
        "targets": targets,
        "losing": ["PoCL's threads share the processors with everything else, so completed work has no target"],
    }


def work(
    running: Site, names: list[str], client: Any, kernel_us: int, seconds: float, rounds: float
) -> dict[str, dict[str, float]]:
    """Return for each tenant, over `seconds` in which all of them work: ended kernels, lease time in s, gates."""
    words = ("work", str(kernel_us), str(seconds + 2 * START_S), str(int(rounds)))
    started = [running.start(name, client, *words) for name in names]
    wait_until_all_work(running, names)
    before = running.tenants()
    time.sleep(seconds)
    after = running.tenants()
    for process in started:
        if process.poll() is not None:
            raise ChildProcessError(f"a program ended with status {process.returncode}")
        process.kill()
        process.communicate()
    return {
        name: {
            "kernels": finished(after[name]) - finished(before[name]),
            "leased_s": (after[name]["stats"]["leased_ns"] - before[name]["stats"]["leased_ns"]) / 1e9,
            "gates": after[name]["stats"]["gates"] - before[name]["stats"]["gates"],
        }
        for name in names
    }


def finished(tenant: dict[str, Any]) -> int:
    """Return the number of ended kernels of the tenant's processes."""
    return sum(process["finished"] for process in tenant["processes"])


def wait_until_all_work(running: Site, names: list[str]) -> None:
    """Wait until each of the tenants has a process that has computed for a while. Raises TimeoutError."""
    end_s = time.monotonic() + START_S
    while any(finished(running.tenants()[name]) < WARM_KERNELS for name in names):
        if time.monotonic() > end_s:
            raise TimeoutError(f"not all of {names} work")
        time.sleep(0.05)
