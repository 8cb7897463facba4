# SPDX-License-Identifier: Apache-2.0
"""The kernel module in virtual time, beside itself with other schedulers: tables, and build/bench/kmod.json.

    python -m tests.bench.kmod [--strict] [--measured FILE]

Compiles the module with each baseline's scheduler (modules.py), boots a lab host under `--icount`, and runs the same
workload on one module after the other (inside.py). A missed target is a failure only with --strict. --measured uses the
measurements of an earlier run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.kmod.lag import furthest, lags
from tests.bench.kmod.modules import BASELINES, OURS, build
from tests.bench.kmod.workload import (
    BATCHES,
    BOUND_NS,
    CHUNK_US,
    MAX_CHUNK_NS,
    MS,
    SEED,
    SIZES,
    TIMESLICE_NS,
    URGENT_US,
    US,
    Change,
    Stay,
    members,
)
from tests.bench.sched.__main__ import ROOT, empty_document, missed
from tests.bench.sched.result import digest, show, target

MEASURED = Path("build/bench/kmod-measured.json")
OUTPUT = ROOT / "build" / "bench" / "kmod.json"
INSTRUCTIONS_MAX = {1: 17_600, 8: 16_200, 32: 16_100}
"""The limit for the instructions of the module's threads per empty item, by items per doorbell: measured, plus 10 %."""
EACH_MAX, EACH = 1.01, "<= 1.01: one, and batches cut by the measured window"
"""The limit for doorbells and for trapped accesses, per batch of items."""
ITEM_NS = URGENT_US * US
DECISION_NS = 100_000
"""The most that wakeup, decision and answer may add to the wait for a piece that cannot be interrupted."""

Found = dict[str, Any]
Figures = dict[str, Any]
Targets = list[dict[str, Any]]


def measured() -> Found:
    """Return the measurements of each module from a lab host in virtual time. Raises CalledProcessError."""
    build()
    (ROOT / MEASURED.parent).mkdir(parents=True, exist_ok=True)
    inside = ("python3", "-m", "tests.bench.kmod.inside", str(MEASURED), OURS, *BASELINES)
    started = time.monotonic()
    subprocess.run(("tests/lab/lab", "run", "--icount", "--timeout", "3600", "--", *inside), check=True, cwd=ROOT)
    found: Found = json.loads((ROOT / MEASURED).read_text()) | {"seconds": round(time.monotonic() - started, 1)}
    for module in (OURS, *BASELINES):
        for size in SIZES:
            add_lags(found[module][f"fairness {size}"])
    (ROOT / MEASURED).write_text(json.dumps(found, indent=1) + "\n")
    return found


def add_lags(row: Figures) -> None:
    """Add the lags that follow from the stays. This happens outside the lab, because exact arithmetic is slow in
    virtual time.
    """
    stays = [Stay(**stay) for stay in row["stays"]]
    changes = [Change(**change) for change in row["changes"]]
    row["worst_lag_ns"], row["worst_spread_ns"] = furthest(lags(stays, changes))


def fairness(found: Found) -> tuple[Figures, Targets]:
    """Return the ten seconds with changes, under each scheduler."""
    figures: Figures = {}
    targets = []
    for size in SIZES:
        rows = {"the module": found[OURS]} | {baseline.name: found[key] for key, baseline in BASELINES.items()}
        ten_seconds = {name: row[f"fairness {size}"] for name, row in rows.items()}
        ours = ten_seconds["the module"]
        figures[f"{size} tenants that stay, one that leaves, one that joins"] = {
            name: {
                "worst lag, ms": round(row["worst_lag_ns"] / MS, 2),
                "times the module's": round(row["worst_lag_ns"] / ours["worst_lag_ns"], 1),
                "lag moves by, ms": round(row["worst_spread_ns"] / MS, 2),
                "longest run, ms": round(row["longest_run_ns"] / MS, 2),
                "runs": row["runs"],
                "engine idle, %": row["idle_permille"] / 10,
            }
            for name, row in ten_seconds.items()
        }
        figures[f"lengths of runs, {size} tenants"] = {name: row["lengths"] for name, row in ten_seconds.items()}
        worst_ms, bound_ms = ours["worst_lag_ns"] / MS, BOUND_NS / MS
        what = f"{size} tenants: worst lag either way, ms"
        targets.append(target(what, f"<= {bound_ms:g}, timeslice and item", worst_ms, met=worst_ms <= bound_ms))
        longest_ms, limit_ms = ours["longest_run_ns"] / MS, (TIMESLICE_NS + MAX_CHUNK_NS) / MS
        what = f"{size} tenants: longest run, ms"
        targets.append(target(what, f"<= {limit_ms:g}, timeslice and item", longest_ms, met=longest_ms <= limit_ms))
    return figures, targets


def costs(ours: Found) -> tuple[Figures, Targets]:
    """Return the cost of an item, and of idling."""
    table, targets = {}, []
    for batch in BATCHES:
        row = ours[f"cost {batch}"]
        total = row["engine"] + row["worker"]
        table[f"{batch} per doorbell"] = {
            "instructions per item": total,
            "of the engine's thread": row["engine"],
            "of the slice's worker": row["worker"],
            "items/s": row["items_per_s"],
            "doorbells per item": row["doorbells"],
            "trapped accesses per item": ours[f"traps {batch}"]["per_item"],
            "interrupts per item": row["interrupts"],
        }
        most = INSTRUCTIONS_MAX[batch]
        targets.append(target(f"instructions per item, {batch} per doorbell", f"<= {most}", total, met=total <= most))
        doorbells = row["doorbells"] * batch
        targets.append(target(f"doorbells per {batch} items", EACH, doorbells, met=doorbells <= EACH_MAX))
        traps = ours[f"traps {batch}"]["per_item"] * batch
        targets.append(target(f"trapped accesses per {batch} items", EACH, traps, met=traps <= EACH_MAX))
    wakeups = ours["idle"]["wakeups"]
    targets.append(target("wakeups in 2 s with open slices and no work", "0", wakeups, met=not wakeups))
    return {"an item that does nothing": table}, targets


def priority(ours: Found) -> tuple[Figures, Targets]:
    """Return how long a tenant of the latency band waits for a piece that cannot be interrupted."""
    table = {
        f"band {band}": {
            name: round((ours[f"priority {band}"][f"{name}_ns"] - ITEM_NS) / 1000, 1) for name in ("p50", "p99", "max")
        }
        for band in ("latency", "fair")
    }
    wait_ns = ours["priority latency"]["max_ns"] - ITEM_NS
    limit_ns = CHUNK_US * US + DECISION_NS
    wanted = f"<= {limit_ns / 1000:g}, chunk and decision"
    return (
        {"wait of a 50 us item beside four tenants with 400 us items, us": table},
        [target("longest wait in band latency, us", wanted, wait_ns / 1000, met=wait_ns <= limit_ns)],
    )


def result(found: Found) -> dict[str, Any]:
    """Return the result in the form of tests/bench/sched/result.py."""
    ours = found[OURS]
    shares, share_targets = fairness(found)
    cost, cost_targets = costs(ours)
    waits, wait_targets = priority(ours)
    return {
        "name": "The kernel module",
        "command": "make bench-kmod",
        "seconds": found["seconds"],
        "model": f"engine {ours['engine']} of the module, Linux {ours['kernel']}, virtual time, one processor, VFIO"
        f" clients; items of 20 us to 20 ms in one piece, timeslices {TIMESLICE_NS // MS} ms, 10 s",
        "seeds": [SEED],
        "baselines": [f"{baseline.name}, in the same module" for baseline in BASELINES.values()],
        "hashes": {"workload": digest(*(members(size) for size in SIZES))},
        "figures": shares | cost | waits,
        "targets": [*share_targets, *cost_targets, *wait_targets],
        "losing": [
            "GVT-g's policy has shorter runs with short items: it ends them at ticks of 1 ms",
            "plain round robin and the unscheduled engine ignore weights",
            "one seed: lengths of items and weights are drawn once",
        ],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make bench-kmod", description=__doc__.partition("\n")[0])
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    parser.add_argument("--measured", type=Path, help=f"of an earlier run: {MEASURED}")
    options = parser.parse_args(arguments)
    found = json.loads(options.measured.read_text()) if options.measured else measured()
    document = empty_document(quick=False)
    document["experiments"]["kmod"] = result(found)
    show(document["experiments"]["kmod"])
    count = missed(document)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{count} missed; all figures: {OUTPUT}")
    return 1 if options.strict and count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
