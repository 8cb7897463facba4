# SPDX-License-Identifier: Apache-2.0
"""What goes into a simulation and what comes out: engine models, handles, counters, result arrays."""

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
    splittable: a scheduler may have it run in pieces of `min_chunk_ns`..`max_chunk_ns`; each
        piece but the last of a kernel costs `split_cost_ns`.
    preemptible: a kernel can also be interrupted at any moment; whoever is switched in then
        pays `preempt_latency_ns` on top of the switch.
    Who is switched in (another slice than the last one) pays `switch_cost_ns`.
    Work of a piece never exceeds `max_chunk_ns`, except under baselines that never split.
    """

    kind: EngineKind = "non_preemptible"
    max_chunk_ns: int = 10_000_000
    min_chunk_ns: int = 1_000
    switch_cost_ns: int = 0
    split_cost_ns: int = 0
    preempt_latency_ns: int = 0


class Reason(enum.IntEnum):
    """Why a run in `Simulation.runs()` ended. Those below 16 are the core's `RunReason`s."""

    TIMESLICE = 0
    DRY = 1
    CAP = 2
    REMOVED = 3
    LATENCY = 4
    BUDGET = 5
    SLICE = 16  # another slice of the group goes on in the same run of the group
    PREEMPTED = 17
    STILL_RUNNING = 18


@dataclass(frozen=True, slots=True, eq=False)
class SimGroup:
    """A tenant. `index` is what results call it."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class SimSlice:
    """One queue of a tenant. `index` is what results call it."""

    index: int
    group: SimGroup
    name: str


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Of the engine, at `Simulation.now_ns`.

    wall_ns == idle_ns + the sum over all slices (removed ones too) of run_ns + hold_ns, exactly.

    decisions: times the scheduler gave the engine to a slice
    picks: times it was asked
    events: steps of host programs
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
    """Of one slice.

    run_ns: engine time it was given: work_ns + overhead_ns
    overhead_ns: of it, switches, splits and preemptions it paid for
    hold_ns: time the engine was kept idle for it, at its expense
    items: kernels done
    max_wait_ns: the longest a kernel stood ready (all before it done) until it started
    wait_ns: sum of those waits
    requests_arrived: open loop: whose time has come; closed loop: begun
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
