# SPDX-License-Identifier: Apache-2.0
"""The same tenants, items and changes under other schedulers, on a simulated engine.

It executes one item after the other to its end and charges nothing for decisions.
"""

from typing import Any

from tests.bench.kmod.workload import (
    EPOCH_NS,
    MAX_CHUNK_NS,
    SEED,
    TIMESLICE_NS,
    Member,
    Stay,
    lengths,
    members,
    worst_spread_ns,
)
from vgpumgr.sim.engine import Backlog, EngineModel, GroupParams, SimGroup, Simulation

SCHEDULERS = {
    "the same core, simulated": "vgpumgr",
    "GVT-g's policy": "gvt_g",
    "plain round robin": "kernel_rr",
    "unscheduled": "fifo",
}


def play(scheduler: str, size: int) -> dict[str, Any]:
    """Ten seconds and the margin after them."""
    played = members(size)
    sim = Simulation(EngineModel(kind="non_preemptible", max_chunk_ns=MAX_CHUNK_NS), scheduler, seed=SEED)
    groups: dict[str, SimGroup] = {}
    names: dict[int, str] = {}

    def change(one: Member, epoch: int) -> None:
        before, now = one.weights[epoch - 1] if epoch else 0, one.weights[epoch]
        if now == before:
            return
        params = GroupParams(weight=now or 1, timeslice_ns=TIMESLICE_NS)
        if not now:
            sim.remove_group(groups[one.name])
        elif before:
            sim.update_group(groups[one.name], params)
        else:
            group = groups[one.name] = sim.add_group(one.name, params)
            names[group.index] = one.name
            sim.add_slice(group, Backlog(work_ns=one.item_ns))

    for epoch in range(4):
        for one in played:
            change(one, epoch)
        sim.run_until((epoch + 1) * EPOCH_NS)
    runs = sim.runs()
    stays = [Stay(names[int(run["group"])], int(run["start_ns"]), int(run["length_ns"])) for run in runs]
    return {
        "worst_spread_ns": worst_spread_ns(stays, played),
        "longest_run_ns": max(stay.length_ns for stay in stays),
        "runs": len(stays),
        "lengths": lengths(stays),
        "hash": sim.schedule_hash,
    }
