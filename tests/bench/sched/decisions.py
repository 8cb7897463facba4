# SPDX-License-Identifier: Apache-2.0
"""The cost of one decision of the scheduler: instructions, nanoseconds, and decisions per second of the simulator.

    python -m tests.bench.sched.decisions [--json]

A decision is a charge and a pick. Instructions are counted by callgrind and are the same in every run; the unit lane
keeps them below `CEILINGS`. Times depend on the machine and its present load: the best of several passes is reported,
and all passes.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.bench.sched.result import digest, interval, main, target
from vgpumgr.sched._build import CORE, ROOT, SOURCES
from vgpumgr.sim.engine import Backlog, EngineModel, GroupParams, Simulation

US = 1_000
SECOND = 1_000_000_000

DRIVER = ROOT / "tests" / "sched" / "decisions.c"
GROUPS = (4, 64, 1024)
# Instructions per decision: about a tenth above the measurement when they were set.
CEILINGS = {
    ("chunk", 4): 1300,
    ("chunk", 64): 2050,
    ("chunk", 1024): 2750,
    ("switch", 4): 2050,
    ("switch", 64): 3300,
    ("switch", 1024): 4500,
    ("lease", 4): 4150,
    ("lease", 64): 5100,
    ("lease", 1024): 6900,
    ("review", 4): 1650,
    ("review", 64): 2750,
    ("review", 1024): 3900,
}
PICKS = ("chunk", "switch")
MODES = {
    "chunk": "runs of several pieces",
    "switch": "every decision hands the engine over",
    "lease": "a yield, and a lease to another tenant",
    "review": "the end of a lease that goes on",
}
COUNTED = 5000
TIMED = 400_000
PASSES = 9
SIMULATED_S = 30
BASELINES = ("drr", "stride", "gvt_g", "fifo")


def compile_driver(folder: Path) -> Path:
    """Build the driver together with the core, optimized like the kernel."""
    program = folder / "decisions"
    sources = [str(ROOT / CORE / name) for name in SOURCES]
    options = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / CORE))
    subprocess.run([os.environ.get("CC", "cc"), *options, "-o", str(program), str(DRIVER), *sources], check=True)
    return program


def counted(function: str, program: Path, *arguments: str) -> int:
    """Return the instructions inside a program's functions of this name, from callgrind."""
    command = ["valgrind", "--tool=callgrind", f"--toggle-collect={function}", "--callgrind-out-file=/dev/null"]
    done = subprocess.run([*command, str(program), *arguments], capture_output=True, text=True, check=True)
    collected = re.search(r"Collected : (\d+)", done.stderr)
    if not collected:
        raise RuntimeError(f"callgrind counted nothing: {done.stderr}")
    return int(collected[1])


def instructions(program: Path, mode: str, groups: int, *, decisions: int = COUNTED) -> float:
    """Return the instructions per decision."""
    return counted("decide_*", program, "count", mode, str(groups), str(decisions)) / decisions


def _times(program: Path, mode: str, groups: int, decisions: int) -> dict[str, float]:
    """Return nanoseconds; see the driver."""
    command = [str(program), "time", mode, str(groups), str(decisions)]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(("mean", "p50", "p99", "p99.9", "clock"), map(float, words), strict=True))


def _backlogged(scheduler: str, groups: int, seed: int) -> Simulation:
    """Groups with all weights from 1 up, kernels of 50 us to 400 us, timeslices of 1 ms."""
    sim = Simulation(EngineModel(max_chunk_ns=400 * US), scheduler, record_runs=False)
    works = np.random.default_rng(seed).integers(50 * US, 400 * US, (groups, 97))
    for i in range(groups):
        group = sim.add_group(f"g{i}", GroupParams(weight=1 + i, timeslice_ns=1000 * US))
        sim.add_slice(group, Backlog(work_ns=works[i]))
    sim.run_until(SECOND)
    return sim


def _rate(sim: Simulation, seconds: int) -> float:
    """Return decisions per second of processor time, over some simulated seconds."""
    before = sim.counters().decisions
    started = time.process_time()
    sim.run_until(sim.now_ns + seconds * SECOND)
    return (sim.counters().decisions - before) / (time.process_time() - started)


def measure(*, quick: bool = False) -> dict[str, Any]:
    sizes, counted, timed, passes = ((4,), 200, 2000, 2) if quick else (GROUPS, COUNTED, TIMED, PASSES)
    cases = [(mode, groups) for mode in MODES for groups in sizes]
    with tempfile.TemporaryDirectory() as scratch:
        program = compile_driver(Path(scratch))
        counts = {case: instructions(program, *case, decisions=counted) for case in cases}
        times = {case: [_times(program, *case, timed) for _ in range(passes)] for case in cases}
    rates: dict[str, Any] = {}
    hashes = []
    for scheduler in ("vgpumgr", *BASELINES):
        for groups in sizes if quick else sorted({*sizes, 256}):
            if scheduler == "vgpumgr" or groups <= 256:
                sim = _backlogged(scheduler, groups, 1)
                seconds = 1 if quick else SIMULATED_S
                found = [_rate(sim, seconds) / 1e6 for _ in range(2 if quick else 5)]
                rates[f"{scheduler}, {groups} groups"] = {"millions": interval(found), "best": round(max(found), 2)}
                hashes.append(sim.schedule_hash)

    def best(mode: str, groups: int, figure: str) -> float:
        return min(one[figure] for one in times[mode, groups])

    middle, large = (sizes[0], sizes[0]) if quick else (64, 1024)
    targets = [
        target(
            f"instructions, {mode}, {groups} groups",
            f"<= {CEILINGS[mode, groups]}",
            counts[mode, groups],
            met=counts[mode, groups] <= CEILINGS[mode, groups],
        )
        for mode, groups in cases
    ]
    for mode in PICKS:
        mean, p99 = best(mode, middle, "mean"), best(mode, large, "p99")
        targets += [
            target(f"ns, mean, {mode}, {middle} groups, best pass", "<= 300", mean, met=mean <= 300),
            target(f"ns, p99, {mode}, {large} groups, best pass", "<= 1000", p99, met=p99 <= 1000),
        ]
    for groups in sizes:
        fastest = rates[f"vgpumgr, {groups} groups"]["best"]
        targets.append(target(f"simulator, M decisions/s, {groups} groups, best", ">= 3", fastest, met=fastest >= 3))
    return {
        "name": "Cost of decisions",
        "model": "the core by itself, compiled with -O2, backlogged groups with one slice each: pieces of 50 to 400 us,"
        " timeslices of 1 ms, weights 1 to 8 (chunk), or timeslices of 50 us, equal weights"
        " (switch, lease); review is like chunk",
        "seeds": {"passes": passes, "decisions per pass": timed, "counted": counted},
        "baselines": [*BASELINES, "as simulated: they look at all slices, and were not written to be fast"],
        "hashes": {"workload": digest(DRIVER.read_bytes(), cases), "schedule": digest(hashes)},
        "figures": {
            "instructions per charge and pick": {
                f"{MODES[mode]}, {groups} groups": {"counted": round(counts[mode, groups]), "ceiling": ceiling}
                for (mode, groups), ceiling in CEILINGS.items()
                if groups in sizes
            },
            "ns per charge and pick": {
                f"{MODES[mode]}, {groups} groups": {
                    "mean": interval([one["mean"] for one in times[mode, groups]], digits=0),
                    "p50": interval([one["p50"] for one in times[mode, groups]], digits=0),
                    "p99": interval([one["p99"] for one in times[mode, groups]], digits=0),
                    "p99.9": round(best(mode, groups, "p99.9")),
                    "of them reading the clock": round(best(mode, groups, "clock")),
                }
                for mode, groups in cases
            },
            "decisions per second of processor time, whole simulator": rates,
        },
        "targets": targets,
        "losing": [
            (
                "times are of a busy machine if its load says so: caches are cold, and p99 includes the effect of other"
                " load"
            ),
            "the percentiles include reading the clock, the mean does not; a kernel adds its lock and its interrupt",
            "with few clients a baseline that looks at all of them is faster",
        ],
    }


if __name__ == "__main__":
    main(measure)
