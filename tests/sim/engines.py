# SPDX-License-Identifier: Apache-2.0
"""Helpers of the engine's tests."""

from __future__ import annotations

from typing import Any

from vgpumgr.sim.engine import EngineModel, GroupParams, SimGroup, SimSlice, Simulation

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

WHOLE = EngineModel(kind="non_preemptible", max_chunk_ns=100 * MS)


def params(weight: int = 1, *, cap_permille: int = 0, timeslice_ns: int = MS) -> GroupParams:
    """The settings of a group; its cap, if any, is per 10 ms."""
    return GroupParams(weight=weight, timeslice_ns=timeslice_ns, cap_ns=10 * US * cap_permille, cap_period_ns=10 * MS)


def tenant(sim: Simulation, source: Any, *, weight: int = 1, priority: int = 0, cap_permille: int = 0) -> SimSlice:
    """A group with one slice."""
    name = f"t{len(sim.groups)}"
    group = sim.add_group(name, params(weight, cap_permille=cap_permille), priority=priority)
    return sim.add_slice(group, source)


def runs_of(sim: Simulation) -> list[tuple[int, int, int]]:
    """(slice, start, length) of every run, in order."""
    return [(int(run["slice"]), int(run["start_ns"]), int(run["length_ns"])) for run in sim.runs()]


def share(sim: Simulation, one: SimSlice) -> float:
    """A group's part of the engine's time."""
    return sim.slice_counters(one).run_ns / sim.now_ns


def check_sums(sim: Simulation, slices: list[SimSlice]) -> None:
    """wall = idle + sum of charges, exactly."""
    of_slices = [sim.slice_counters(one) for one in slices]
    counters = sim.counters()
    assert counters.wall_ns == sim.now_ns
    assert counters.wall_ns == counters.idle_ns + sum(c.run_ns + c.hold_ns for c in of_slices)
    assert counters.switches == sum(c.switches for c in of_slices)
    assert all(c.run_ns == c.work_ns + c.overhead_ns for c in of_slices)


__all__ = ["MS", "SECOND", "US", "WHOLE", "SimGroup", "check_sums", "params", "runs_of", "share", "tenant"]
