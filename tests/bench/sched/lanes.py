# SPDX-License-Identifier: Apache-2.0
"""Memory lanes (Salus): how many applications fit one device, and whether memory ever runs out.

    python -m tests.bench.sched.lanes [--json]

Random jobs come, iterate and leave on a device under pressure. A witness that does not know the lanes adds up the
resident and the running memory. Baseline: every application keeps all its memory, like in separate contexts.
"""

from __future__ import annotations

import os
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from tests.bench.sched.result import digest, interval, main, target
from vgpumgr.policy.lanes import Demand, Lanes
from vgpumgr.sim.job_sets import MIB, inference_apps

SEEDS = range(8)
ADMISSIONS = 1_000_000
CAPACITY_BYTES = 14 << 30
MAX_LANES = 4
CONTEXT_BYTES = 300 * MIB
MEAN_RESIDENT = 24


def _random_demand(rng: random.Random) -> Demand:
    """Return a demand: mostly small ones, some up to the whole device."""
    total = min(CAPACITY_BYTES, round(CAPACITY_BYTES * rng.lognormvariate(-3, 1.2)))
    persistent = round(total * rng.uniform(0.02, 0.6))
    return Demand(persistent_bytes=persistent, ephemeral_bytes=total - persistent)


def _life(seed: int, admissions: int) -> dict[str, float]:
    """Run one device until this many jobs were admitted. Count the instants at which more memory was used than
    exists.
    """
    rng = random.Random(seed)
    lanes: Lanes[int] = Lanes(capacity_bytes=CAPACITY_BYTES, max_lanes=MAX_LANES)
    demands: dict[int, Demand] = {}
    here: list[int] = []
    running: set[int] = set()
    resident: set[int] = set()
    used = admitted = out_of_memory = naive = 0
    most = longest_wait_ns = now_ns = 0
    side_by_side = resident_sum = 0
    asked: dict[int, int] = {}
    number = 0

    def enter(keys: list[int]) -> None:
        nonlocal used, admitted, side_by_side, longest_wait_ns
        for key in keys:
            resident.add(key)
            used += demands[key].persistent_bytes
            side_by_side += demands[key].total_bytes
            longest_wait_ns = max(longest_wait_ns, now_ns - asked.pop(key))
        admitted += len(keys)

    while admitted < admissions:
        now_ns += 250_000_000
        act = rng.random()
        if (len(here) < MEAN_RESIDENT and act < 0.5) or not here:
            number += 1
            demands[number] = _random_demand(rng)
            here.append(number)
            asked[number] = now_ns
            enter(lanes.request(number, demands[number], now_ns))
        else:
            place = rng.randrange(len(here))
            key = here[place]
            if act < 0.75:
                here[place] = here[-1]
                here.pop()
                used -= demands[key].ephemeral_bytes if key in running else 0
                if key in resident:
                    used -= demands[key].persistent_bytes
                    side_by_side -= demands[key].total_bytes
                running.discard(key)
                resident.discard(key)
                asked.pop(key, None)
                enter(lanes.leave(key, now_ns))
                del demands[key]
            elif key in running:
                running.discard(key)
                used -= demands[key].ephemeral_bytes
                enter(lanes.end_iteration(key, now_ns))
            elif key in resident and lanes.begin_iteration(key):
                running.add(key)
                used += demands[key].ephemeral_bytes
        out_of_memory += used > CAPACITY_BYTES
        naive += side_by_side > CAPACITY_BYTES
        most = max(most, used)
        resident_sum += len(resident)
    return {
        "admissions": admitted,
        "out of memory": out_of_memory,
        "fullest, part of the device": most / CAPACITY_BYTES,
        "requests": number,
        "longest wait, s": longest_wait_ns / 1e9,
        "instants at which the resident jobs would not fit side by side, part": naive / (now_ns / 250_000_000),
    }


def _first_fit(demands: list[int]) -> int:
    """Return the devices needed if each application keeps `demands` bytes, the largest first."""
    devices: list[int] = []
    for size in sorted(demands, reverse=True):
        for place, free in enumerate(devices):
            if size <= free:
                devices[place] -= size
                break
        else:
            devices.append(CAPACITY_BYTES - size)
    return len(devices)


def _inference(seed: int) -> dict[str, float]:
    """Admit the 42 applications in random order: how many fit, in how many lanes, and how full the device is."""
    apps = list(inference_apps().items())
    random.Random(seed).shuffle(apps)
    lanes: Lanes[str] = Lanes(capacity_bytes=CAPACITY_BYTES, max_lanes=MAX_LANES)
    admitted = sum(len(lanes.request(name, demand, 0)) for name, demand in apps)
    return {"admitted": admitted, "lanes": len(lanes.lanes), "free GiB": lanes.free_bytes / (1 << 30)}


def measure(*, quick: bool = False) -> dict[str, Any]:
    admissions = 2_000 if quick else ADMISSIONS
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        lives = list(pool.map(partial(_life, admissions=-(-admissions // len(SEEDS))), SEEDS))
    fits = [_inference(seed) for seed in SEEDS]
    apps = list(inference_apps().values())
    alone = len(apps)
    static = _first_fit([demand.total_bytes for demand in apps])
    contexts = _first_fit([demand.total_bytes + CONTEXT_BYTES for demand in apps])
    total = round(sum(life["admissions"] for life in lives))
    failures = round(sum(life["out of memory"] for life in lives))
    longest = max(life["longest wait, s"] for life in lives)
    fitted = min(fit["admitted"] for fit in fits)
    return {
        "name": "Memory lanes",
        "model": f"memory accounts only, {CAPACITY_BYTES >> 30} GiB, at most {MAX_LANES} lanes; demands log-normal, up"
        " to the whole device; applications: persistent from public parameter counts, scratch bounded by family",
        "seeds": list(SEEDS),
        "baselines": ["one application per device", "all memory kept", "all memory kept and a context of 300 MiB each"],
        "hashes": {"workload": digest(apps, list(SEEDS), admissions), "schedule": digest(lives, fits)},
        "figures": {
            f"devices of {CAPACITY_BYTES >> 30} GiB for 42 inference applications": {
                "memory lanes": 1 if fitted == alone else 2,
                "all memory kept": static,
                "all memory kept, and a context": contexts,
                "one application per device": alone,
            },
            "42 applications in random order": {key: interval([fit[key] for fit in fits]) for key in fits[0]},
            f"{total} random admissions": {key: interval([life[key] for life in lives]) for key in lives[0]},
        },
        "targets": [
            target("inference applications on one device, worst order", "42", fitted, met=fitted == alone),
            target(
                f"out of memory in {total} random admissions",
                "0 in 10^6",
                failures,
                met=not failures and total >= ADMISSIONS,
            ),
        ],
        "losing": [
            "jobs of one lane take turns, so each waits for an iteration of each neighbour; no latency is claimed",
            (
                "no job overtakes one that has waited 10 s, so the device empties before a large job starts; the"
                f" longest wait: {longest:.0f} s"
            ),
        ],
    }


if __name__ == "__main__":
    main(measure)
