# SPDX-License-Identifier: Apache-2.0
"""The kernel module's scheduler core (kmod/sched), to be driven from Python.

Pure: no clock and no threads, the caller passes the time (nanoseconds) to every call. All rules
and units are documented in kmod/sched/vgpu_sched.h; here are only names and types. A `Scheduler`
owns the memory of its groups and slices; an object that was removed must not be used again.
Not thread safe.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

try:
    from vgpumgr.sched._core import ffi, lib
except ImportError as error:
    raise ImportError(
        "the scheduler core is not compiled; run `python -m vgpumgr.sched._build`"
        " (needs cffi, a C compiler and Python's headers)"
    ) from error

__all__ = [
    "CapParams",
    "Decision",
    "EndedRun",
    "Field",
    "Group",
    "GroupParams",
    "GroupStats",
    "ParameterError",
    "RunReason",
    "SchedParams",
    "SchedStats",
    "Scheduler",
    "Slice",
    "SliceParams",
    "SliceStats",
    "histogram_bucket",
    "histogram_bucket_start_ns",
]


class Field(enum.IntEnum):
    """The parameter at fault (`enum vgpu_sched_field`)."""

    NONE = 0
    MAX_CHUNK = 1
    MIN_CHUNK = 2
    SWITCH_COST = 3
    WEIGHT = 4
    TIMESLICE = 5
    CAP = 6
    CAP_PERIOD = 7
    BURST = 8


class RunReason(enum.IntEnum):
    """Why a run ended (`enum vgpu_run_reason`)."""

    TIMESLICE = 0
    DRY = 1
    CAP = 2
    REMOVED = 3


class ParameterError(ValueError):
    """Parameters the core refuses; nothing was changed. `field` names the first at fault."""

    def __init__(self, field: Field) -> None:
        super().__init__(f"bad {field.name.lower()}")
        self.field = field


@dataclass(frozen=True, kw_only=True)
class SchedParams:
    """`struct vgpu_sched_params`"""

    max_chunk_ns: int
    min_chunk_ns: int = 1_000
    switch_cost_ns: int = 0
    splits: bool = False


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


@dataclass(frozen=True, kw_only=True)
class SliceParams(CapParams):
    """`struct vgpu_slice_params`"""

    weight: int = 1


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


@dataclass(frozen=True, kw_only=True)
class GroupStats(SliceStats):
    """`struct vgpu_group_stats`"""

    uncut_runs: int
    short_uncut_runs: int
    longest_run_ns: int
    histogram: tuple[int, ...]


def _stats(c_stats: Any, cls: type[Any]) -> Any:
    values = {field.name: getattr(c_stats, field.name) for field in dataclasses.fields(cls)}
    if "histogram" in values:
        values["histogram"] = tuple(values["histogram"])
    return cls(**values)


def _params(struct: str, params: Any) -> Any:
    c_params = ffi.new(f"struct {struct} *")
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        try:
            setattr(c_params, field.name, value)
        except OverflowError:
            raise ParameterError(_FIELD_OF[field.name]) from None
    return c_params


_FIELD_OF = {f"{field.name.lower()}_ns": field for field in Field} | {"weight": Field.WEIGHT}


def _raise_if(fault: int) -> None:
    if fault:
        raise ParameterError(Field(fault))


class Group:
    """All slices of one tenant on the engine. Made by `Scheduler.add_group()`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.c: Any = ffi.new("struct vgpu_group *")
        self.slices: list[Slice] = []

    def __repr__(self) -> str:
        return f"Group({self.name})"

    @property
    def stats(self) -> GroupStats:
        stats: GroupStats = _stats(self.c.stats, GroupStats)
        return stats

    @property
    def run_ns(self) -> int:
        return int(self.c.stats.run_ns)


class Slice:
    """One device of a group. Made by `Scheduler.add_slice()`."""

    def __init__(self, group: Group, name: str) -> None:
        self.name = name
        self.group = group
        self.c: Any = ffi.new("struct vgpu_slice *")

    def __repr__(self) -> str:
        return f"Slice({self.name})"

    @property
    def stats(self) -> SliceStats:
        stats: SliceStats = _stats(self.c.stats, SliceStats)
        return stats

    @property
    def run_ns(self) -> int:
        return int(self.c.stats.run_ns)


@dataclass(frozen=True, slots=True)
class EndedRun:
    """`struct vgpu_ended_run`"""

    group: Group
    start_ns: int
    length_ns: int
    timeslice_ns: int
    reason: RunReason


@dataclass(frozen=True, slots=True)
class Decision:
    """`struct vgpu_decision`; `wake_at_ns` is None for "never"."""

    slice: Slice | None
    limit_ns: int
    wake_at_ns: int | None
    switched: bool
    ended: EndedRun | None


_NEVER = 2**64 - 1


class Scheduler:
    """One engine (`struct vgpu_sched`). All times are nanoseconds."""

    def __init__(self, params: SchedParams, *, now_ns: int = 0) -> None:
        self.c: Any = ffi.new("struct vgpu_sched *")
        self._decision = ffi.new("struct vgpu_decision *")
        # The core hands back addresses; these also keep its memory alive.
        self._slices: dict[Any, Slice] = {}
        self._groups: dict[Any, Group] = {}
        _raise_if(lib.vgpu_sched_init(self.c, _params("vgpu_sched_params", params), now_ns))

    @property
    def now_ns(self) -> int:
        return int(self.c.now_ns)

    @property
    def stats(self) -> SchedStats:
        stats: SchedStats = _stats(self.c.stats, SchedStats)
        return stats

    @property
    def groups(self) -> list[Group]:
        return list(self._groups.values())

    @property
    def timeslice_floor_ns(self) -> int:
        return int(lib.vgpu_sched_timeslice_floor(self.c))

    def set_virtual_time(self, vtime: int) -> None:
        """For tests: where virtual time stands, before the first group is added."""
        if self._groups:
            raise ValueError("the engine has groups")
        lib.sched_set_vtime(self.c, vtime)

    def set_params(self, params: SchedParams, now_ns: int) -> None:
        _raise_if(lib.vgpu_sched_set_params(self.c, _params("vgpu_sched_params", params), now_ns))

    def add_group(self, params: GroupParams, now_ns: int, *, name: str = "") -> Group:
        group = Group(name)
        c_params = _params("vgpu_group_params", params)
        _raise_if(lib.vgpu_group_add(self.c, group.c, c_params, now_ns))
        self._groups[group.c] = group
        return group

    def update_group(self, group: Group, params: GroupParams, now_ns: int) -> None:
        c_params = _params("vgpu_group_params", params)
        _raise_if(lib.vgpu_group_update(self.c, group.c, c_params, now_ns))

    def remove_group(self, group: Group, now_ns: int) -> None:
        """Raises ValueError while the group has slices."""
        if not lib.vgpu_group_remove(self.c, group.c, now_ns):
            raise ValueError(f"{group} still has slices")
        del self._groups[group.c]

    def add_slice(self, group: Group, params: SliceParams, now_ns: int, *, name: str = "") -> Slice:
        new = Slice(group, name)
        c_params = _params("vgpu_slice_params", params)
        _raise_if(lib.vgpu_slice_add(self.c, group.c, new.c, c_params, now_ns))
        self._slices[new.c] = new
        group.slices.append(new)
        return new

    def update_slice(self, target: Slice, params: SliceParams, now_ns: int) -> None:
        c_params = _params("vgpu_slice_params", params)
        _raise_if(lib.vgpu_slice_update(self.c, target.c, c_params, now_ns))

    def remove_slice(self, target: Slice, now_ns: int) -> None:
        lib.vgpu_slice_remove(self.c, target.c, now_ns)
        del self._slices[target.c]
        target.group.slices.remove(target)

    def wake(self, target: Slice, now_ns: int) -> None:
        lib.vgpu_slice_wake(self.c, target.c, now_ns)

    def sleep(self, target: Slice, now_ns: int) -> None:
        lib.vgpu_slice_sleep(self.c, target.c, now_ns)

    def pick(self, now_ns: int) -> Decision:
        out = self._decision
        lib.vgpu_sched_pick(self.c, now_ns, out)
        ended = None
        if out.ended.valid:
            ended = EndedRun(
                self._groups[out.ended.group],
                out.ended.start_ns,
                out.ended.length_ns,
                out.ended.timeslice_ns,
                RunReason(out.ended.reason),
            )
        return Decision(
            self._slices[out.slice] if out.slice else None,
            out.limit_ns,
            None if out.wake_at_ns == _NEVER else out.wake_at_ns,
            out.switched,
            ended,
        )

    def busy_until(self, until_ns: int) -> None:
        """Say when the engine stops executing: from then on nobody is charged, until the next pick."""
        lib.vgpu_sched_busy_until(self.c, until_ns)

    def group_lag_ns(self, group: Group, now_ns: int) -> int:
        return int(lib.vgpu_group_lag_ns(self.c, group.c, now_ns))

    def slice_lag_ns(self, target: Slice, now_ns: int) -> int:
        return int(lib.vgpu_slice_lag_ns(self.c, target.c, now_ns))


def histogram_bucket(length_ns: int) -> int:
    """The bucket of `GroupStats.histogram` that counts runs of this length."""
    return int(lib.vgpu_hist_bucket(length_ns))


def histogram_bucket_start_ns(bucket: int) -> int:
    """The least run length that a bucket counts."""
    return int(lib.vgpu_hist_bucket_start_ns(bucket))
