# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of a simulation: engine models, handles, counters, result arrays."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

import numpy as np

EngineKind = Literal["non_preemptible", "splittable", "preemptible"]
KINDS: dict[str, int] = {"non_preemptible": 0, "splittable": 1, "preemptible": 2}


@dataclass(frozen=True, kw_only=True)
class EngineModel:
    """How the engine executes kernels.

    non_preemptible: a kernel runs to its end; none may be longer than `max_chunk_ns`.
    splittable: a scheduler may run it in pieces of `min_chunk_ns`..`max_chunk_ns`; each piece
        but the last of a kernel costs `split_cost_ns`.
    preemptible: a kernel can also be interrupted at any moment; the slice that is switched in then
        pays `preempt_latency_ns` in addition to the switch.

    The slice that is switched in (another one than the last) pays `switch_cost_ns`. Work of a piece never exceeds
    `max_chunk_ns`, except under baselines that never split.
    """

    kind: EngineKind = "non_preemptible"
    max_chunk_ns: int = 10_000_000
    min_chunk_ns: int = 1_000
    switch_cost_ns: int = 0
    split_cost_ns: int = 0
    preempt_latency_ns: int = 0


class Reason(enum.IntEnum):
    """Why a run in `Simulation.runs()` ended. Values below 16 are the core's `RunReason`s."""

    TIMESLICE = 0
    DRY = 1
    CAP = 2
    REMOVED = 3
    LATENCY = 4
    BUDGET = 5
    SLICE = 16  # another slice of the group continues in the same run of the group
    PREEMPTED = 17
    STILL_RUNNING = 18


@dataclass(frozen=True, slots=True, eq=False)
class SimGroup:
    """A tenant. `index` is its number in the results."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class SimSlice:
    """One queue of a tenant. `index` is its number in the results."""

    index: int
    group: SimGroup
    name: str


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Counters of the engine, at `Simulation.now_ns`.

    wall_ns == idle_ns + the sum over all slices (including removed ones) of run_ns + hold_ns, exactly.

    decisions: number of times that the scheduler gave the engine to a slice
    picks: number of times that the engine asked the scheduler for a decision
    events: number of steps of host programs
    """

    wall_ns: int
    idle_ns: int
    decisions: int
    picks: int
    switches: int
    preemptions: int
    events: int


@dataclass(frozen=True, kw_only=True)
class SliceCounters:
    """Counters of one slice.

    run_ns: engine time given to the slice: work_ns + overhead_ns
    overhead_ns: the part of run_ns for switches, splits and preemptions
    hold_ns: time in which the engine was kept idle for the slice, charged to the slice
    items: kernels done
    max_wait_ns: the longest time from ready (all kernels before it done) to start of a kernel
    wait_ns: sum of those waits
    requests_arrived: open loop: requests whose time has come; closed loop: requests begun
    """

    run_ns: int
    work_ns: int
    overhead_ns: int
    hold_ns: int
    switches: int
    items: int
    wait_ns: int
    max_wait_ns: int
    requests_arrived: int
    requests_done: int


@dataclass(frozen=True, slots=True)
class SchedulerParameter:
    """A parameter of a scheduler, an integer in least..most."""

    default: int
    least: int
    most: int


REQUEST_DTYPE = np.dtype([("arrival_ns", "i8"), ("start_ns", "i8"), ("end_ns", "i8"), ("work_ns", "i8")])
ITEM_DTYPE = np.dtype(
    [
        ("submitted_ns", "i8"),
        ("ready_ns", "i8"),
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("work_ns", "i8"),
        ("kernel_id", "u4"),
        ("slice", "i4"),
    ]
)
RUN_DTYPE = np.dtype(
    [
        ("start_ns", "i8"),
        ("length_ns", "i8"),
        ("group", "i4"),
        ("slice", "i4"),
        ("reason", "i4"),
        ("timeslice_ns", "i8"),
    ],
    align=True,
)
