# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs of the scheduler core: its enumerations and plain structures.

All rules and units are documented in kmod/sched/vgpu_sched.h.
"""

import enum
from dataclasses import dataclass


class Policy(enum.IntEnum):
    """What happens to time that no group uses (`enum vgpu_policy`)."""

    BEST_EFFORT = 0
    EQUAL_SHARE = 1
    FIXED_SHARE = 2


class Mode(enum.IntEnum):
    """What a tenant was sold (`enum vgpu_mode`)."""

    FAIR = 0
    STRICT = 1


class Band(enum.IntEnum):
    """How a group competes (`enum vgpu_band`)."""

    FAIR = 0
    LATENCY = 1


class Idle(enum.IntEnum):
    """Why an engine idles (`enum vgpu_idle`)."""

    EMPTY = 0
    HOLD = 1
    GHOST = 2


class RunReason(enum.IntEnum):
    """Why a run ended (`enum vgpu_run_reason`)."""

    TIMESLICE = 0
    DRY = 1
    CAP = 2
    REMOVED = 3
    LATENCY = 4
    BUDGET = 5


@dataclass(frozen=True, kw_only=True)
class SchedParams:
    """`struct vgpu_sched_params`"""

    max_chunk_ns: int
    min_chunk_ns: int = 1_000
    switch_cost_ns: int = 0
    splits: bool = False
    policy: Policy = Policy.BEST_EFFORT
    places: int = 0
    reserve_limit_permille: int = 0


@dataclass(frozen=True, kw_only=True)
class CapParams:
    """The cap of a group or slice; `cap_ns` 0 for none."""

    cap_ns: int = 0
    cap_period_ns: int = 0
    burst_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupParams(CapParams):
    """`struct vgpu_group_params`"""

    weight: int
    timeslice_ns: int
    mode: Mode = Mode.FAIR
    band: Band = Band.FAIR
    reserve_ns: int = 0
    reserve_period_ns: int = 0
    hold_max_ns: int = 0
    inversion_permille: int = 0
    inversion_burst_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class SliceParams(CapParams):
    """`struct vgpu_slice_params`"""

    weight: int = 1


@dataclass(frozen=True, kw_only=True)
class ItemInfo:
    """`struct vgpu_item_info`; `more` is VGPU_ITEM_MORE."""

    kernel_id: int = 0
    more: bool = False
    hint_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Yield:
    """`struct vgpu_yield`: how a lease ends; by default the slice ran dry."""

    want: bool = False
    more: bool = False
    end: bool = False
    kernel_id: int = 0
    hint_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class SchedStats:
    """`struct vgpu_sched_stats`"""

    wall_ns: int
    idle_ns: int
    picks: int
    switches: int


@dataclass(frozen=True, kw_only=True)
class SliceStats:
    """`struct vgpu_slice_stats`"""

    run_ns: int
    runs: int
    throttles: int
    throttled_ns: int
    switches: int
    ghost_ns: int
    debt_ns: int


@dataclass(frozen=True, kw_only=True)
class GroupStats(SliceStats):
    """`struct vgpu_group_stats`"""

    uncut_runs: int
    short_uncut_runs: int
    longest_run_ns: int
    histogram: tuple[int, ...]
    latency_ns: int
    demotions: int
    holds: int
    hold_ns: int
    fills: int
    inversion_ns: int
