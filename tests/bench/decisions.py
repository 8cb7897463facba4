#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many decisions per second the simulator makes, the scheduler core among them.

Prints, for each number of groups, the best of some passes in processor time, so that whatever
else the machine does counts little: `build/venv/bin/python tests/bench/decisions.py`.
"""

import argparse
import time

import numpy as np

from vgpumgr.sim.engine import Backlog, EngineModel, GroupParams, Simulation, schedulers

US = 1_000
SECOND = 1_000_000_000


def backlogged(scheduler: str, groups: int, seed: int) -> Simulation:
    """Groups of all weights from 1 on, kernels of 50 us to 400 us, timeslices of 1 ms."""
    sim = Simulation(EngineModel(max_chunk_ns=400 * US), scheduler, record_runs=False)
    works = np.random.default_rng(seed).integers(50 * US, 400 * US, (groups, 97))
    for i in range(groups):
        group = sim.add_group(f"g{i}", GroupParams(weight=1 + i, timeslice_ns=1000 * US))
        sim.add_slice(group, Backlog(work_ns=works[i]))
    sim.run_until(SECOND)
    return sim


def rate(sim: Simulation, seconds: int) -> float:
    """Decisions per second of processor time over some simulated seconds."""
    before = sim.counters().decisions
    started = time.process_time()
    sim.run_until(sim.now_ns + seconds * SECOND)
    return (sim.counters().decisions - before) / (time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 16, 64, 256, 1024])
    parser.add_argument("--scheduler", default="vgpumgr", choices=list(schedulers()))
    parser.add_argument("--seconds", type=int, default=60, help="simulated, per pass")
    parser.add_argument("--passes", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(f"{arguments.scheduler}, {arguments.passes} passes of {arguments.seconds} simulated seconds")
    print("groups  decisions/s  ns per decision")
    for groups in arguments.groups:
        sim = backlogged(arguments.scheduler, groups, arguments.seed)
        best = max(rate(sim, arguments.seconds) for _ in range(arguments.passes))
        print(f"{groups:6}  {best / 1e6:9.2f} M  {1e9 / best:15.0f}")


if __name__ == "__main__":
    main()
