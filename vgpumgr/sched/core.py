# SPDX-License-Identifier: Apache-2.0
"""Python interface of the kernel module's scheduler core (kmod/sched).

Pure: no clock and no threads, the caller passes the time (nanoseconds) to every call. All rules and units are
documented in kmod/sched/vgpu_sched.h; this module only adds names and types. A `Scheduler` owns the memory of its
groups and slices. Not thread safe.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from vgpumgr.sched.refusals import CallError, Field, ParameterError, RefusedError
from vgpumgr.sched.values import (
    Band,
    CapParams,
    GroupParams,
    GroupStats,
    Idle,
    ItemInfo,
    Mode,
    Policy,
    RunReason,
    SchedParams,
    SchedStats,
    SliceParams,
    SliceStats,
    Yield,
)

try:
    from vgpumgr.sched._core import ffi, lib
except ImportError as error:
    raise ImportError(
        "the scheduler core is not compiled; run `python -m vgpumgr.sched._build`"
        " (needs cffi, a C compiler and Python's headers)"
    ) from error

__all__ = [
    "Band",
    "CallError",
    "CapParams",
    "Decision",
    "EndedRun",
    "Field",
    "Group",
    "GroupParams",
    "GroupStats",
    "Idle",
    "ItemInfo",
    "Lease",
    "Mode",
    "ParameterError",
    "Policy",
    "RefusedError",
    "RunReason",
    "SchedParams",
    "SchedStats",
    "Scheduler",
    "Slice",
    "SliceParams",
    "SliceStats",
    "Yield",
    "combination_fault",
    "histogram_bucket",
    "histogram_bucket_start_ns",
]


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
            if field.name not in _FIELD_OF:
                raise ValueError(f"{field.name}: {value!r} is not within its type") from None
            raise ParameterError(_FIELD_OF[field.name]) from None
    return c_params


def _item(item: ItemInfo) -> Any:
    _must_fit("kernel_id", item.kernel_id, 32)
    try:
        return ffi.new("struct vgpu_item_info *", (item.kernel_id, int(item.more), item.hint_ns))
    except OverflowError:
        raise ParameterError(Field.ITEM_HINT) from None


def combination_fault(policy: Policy, mode: Mode, band: Band) -> Field:
    """Return which of the three values is not legal with the others; NONE if the combination is legal."""
    for name, value in (("policy", policy), ("mode", mode), ("band", band)):
        _must_fit(name, value, 32)
    return Field(lib.vgpu_combination_check(policy, mode, band))


_FIELD_OF = {f"{field.name.lower()}_ns": field for field in Field} | {
    "weight": Field.WEIGHT,
    "policy": Field.POLICY,
    "places": Field.PLACES,
    "reserve_limit_permille": Field.RESERVE_LIMIT,
    "mode": Field.MODE,
    "band": Field.BAND,
    "inversion_permille": Field.INVERSION,
}


def _call(function: Any, *arguments: Any, subject: object = None) -> None:
    """Call the core. Only times are passed without a range check, so an OverflowError always means a time."""
    try:
        fault = function(*arguments)
    except OverflowError:
        raise CallError(Field.TIME, subject) from None
    if fault >= Field.TIME:
        raise CallError(Field(fault), subject)
    if fault:
        raise ParameterError(Field(fault))


def _must_fit(name: str, value: int, bits: int) -> None:
    if not 0 <= value < 2**bits:
        raise ValueError(f"{name}: {value} is outside 0..2^{bits}-1")


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
        lib.vgpu_group_settle(self.c)
        stats: GroupStats = _stats(self.c.stats, GroupStats)
        return stats

    @property
    def run_ns(self) -> int:
        lib.vgpu_group_settle(self.c)
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
        lib.vgpu_slice_settle(self.c)
        stats: SliceStats = _stats(self.c.stats, SliceStats)
        return stats

    @property
    def run_ns(self) -> int:
        lib.vgpu_slice_settle(self.c)
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
    """`struct vgpu_decision`. `wake_at_ns` is None for "never"; `idle` and `payer` are valid only without `slice`."""

    slice: Slice | None
    limit_ns: int
    wake_at_ns: int | None
    switched: bool
    ended: EndedRun | None
    idle: Idle
    payer: Slice | None
    band: Band


@dataclass(frozen=True, slots=True)
class Lease:
    """`struct vgpu_lease`. A time is None for "never"; `idle` and `payer` are valid only without `slice`."""

    slice: Slice | None
    number: int
    begun_ns: int
    expires_ns: int | None
    review_at_ns: int | None
    contended: bool
    switched: bool
    ended: EndedRun | None
    idle: Idle
    payer: Slice | None
    band: Band


_NEVER = 2**64 - 1


def _time_or_none(ns: int) -> int | None:
    return None if ns == _NEVER else ns


class Scheduler:
    """One engine (`struct vgpu_sched`). All times are nanoseconds."""

    def __init__(self, params: SchedParams, *, now_ns: int = 0) -> None:
        self.c: Any = ffi.new("struct vgpu_sched *")
        self._decision = ffi.new("struct vgpu_decision *")
        self._lease = ffi.new("struct vgpu_lease *")
        # The core returns addresses. These tables map addresses to objects, and keep the objects' memory alive.
        self._slices: dict[Any, Slice] = {}
        self._groups: dict[Any, Group] = {}
        _call(lib.vgpu_sched_init, self.c, _params("vgpu_sched_params", params), now_ns)

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
        """Set the virtual time before the first group is added. For tests."""
        if self._groups:
            raise ValueError("the engine has groups")
        _must_fit("vtime", vtime, 64)
        lib.sched_set_vtime(self.c, vtime)

    def set_params(self, params: SchedParams, now_ns: int) -> None:
        _call(lib.vgpu_sched_set_params, self.c, _params("vgpu_sched_params", params), now_ns)

    def add_group(self, params: GroupParams, now_ns: int, *, name: str = "") -> Group:
        group = Group(name)
        c_params = _params("vgpu_group_params", params)
        _call(lib.vgpu_group_add, self.c, group.c, c_params, now_ns)
        self._groups[group.c] = group
        return group

    def update_group(self, group: Group, params: GroupParams, now_ns: int) -> None:
        c_params = _params("vgpu_group_params", params)
        _call(lib.vgpu_group_update, self.c, group.c, c_params, now_ns, subject=group)

    def remove_group(self, group: Group, now_ns: int) -> None:
        """Remove a group, which must have no slices."""
        _call(lib.vgpu_group_remove, self.c, group.c, now_ns, subject=group)
        del self._groups[group.c]

    def add_slice(self, group: Group, params: SliceParams, now_ns: int, *, name: str = "") -> Slice:
        new = Slice(group, name)
        c_params = _params("vgpu_slice_params", params)
        _call(lib.vgpu_slice_add, self.c, group.c, new.c, c_params, now_ns, subject=group)
        self._slices[new.c] = new
        group.slices.append(new)
        return new

    def update_slice(self, target: Slice, params: SliceParams, now_ns: int) -> None:
        c_params = _params("vgpu_slice_params", params)
        _call(lib.vgpu_slice_update, self.c, target.c, c_params, now_ns, subject=target)

    def remove_slice(self, target: Slice, now_ns: int) -> None:
        _call(lib.vgpu_slice_remove, self.c, target.c, now_ns, subject=target)
        del self._slices[target.c]
        target.group.slices.remove(target)

    def wake(self, target: Slice, now_ns: int) -> None:
        _call(lib.vgpu_slice_wake, self.c, target.c, now_ns, subject=target)

    def announce(self, target: Slice, item: ItemInfo, now_ns: int) -> None:
        """Announce that the slice has a ready item, and that `item` is the first."""
        _call(lib.vgpu_slice_announce, self.c, target.c, _item(item), now_ns, subject=target)

    def item_done(self, target: Slice, now_ns: int, *, next_item: ItemInfo | None = None) -> None:
        """Complete the first item. Without `next_item` the slice sleeps."""
        c_next = ffi.NULL if next_item is None else _item(next_item)
        _call(lib.vgpu_slice_item_done, self.c, target.c, c_next, now_ns, subject=target)

    def end_request(self, target: Slice, now_ns: int) -> None:
        """Declare that no item follows the last item, although more items were announced."""
        _call(lib.vgpu_slice_end_request, self.c, target.c, now_ns, subject=target)

    def sleep(self, target: Slice, now_ns: int) -> None:
        _call(lib.vgpu_slice_sleep, self.c, target.c, now_ns, subject=target)

    def pick(self, now_ns: int) -> Decision:
        out = self._decision
        _call(lib.vgpu_sched_pick, self.c, now_ns, out)
        return Decision(
            self._slices[out.slice] if out.slice else None,
            out.limit_ns,
            _time_or_none(out.wake_at_ns),
            out.switched,
            self._ended(out.ended),
            Idle(out.idle),
            self._slices[out.payer] if out.payer else None,
            Band(out.band),
        )

    def _ended(self, c: Any) -> EndedRun | None:
        if not c.valid:
            return None
        return EndedRun(self._groups[c.group], c.start_ns, c.length_ns, c.timeslice_ns, RunReason(c.reason))

    # ---- leases

    def ready(self, target: Slice, now_ns: int, *, first: ItemInfo | None = None) -> None:
        """Declare that the slice's streams have work and no lease."""
        c_first = ffi.NULL if first is None else _item(first)
        _call(lib.vgpu_slice_ready, self.c, target.c, c_first, now_ns, subject=target)

    def lend(self, now_ns: int) -> Lease:
        """Lend the free engine: return which slice gets it, and until when."""
        _call(lib.vgpu_sched_lend, self.c, now_ns, self._lease)
        return self._lease_now()

    def review(self, now_ns: int) -> Lease:
        """Return how long the present lease lasts in the present state."""
        _call(lib.vgpu_sched_review, self.c, now_ns, self._lease)
        return self._lease_now()

    def _lease_now(self) -> Lease:
        out = self._lease
        return Lease(
            self._slices[out.slice] if out.slice else None,
            out.number,
            out.begun_ns,
            _time_or_none(out.expires_ns),
            _time_or_none(out.review_at_ns),
            out.contended,
            out.switched,
            self._ended(out.ended),
            Idle(out.idle),
            self._slices[out.payer] if out.payer else None,
            Band(out.band),
        )

    def yield_lease(self, target: Slice, now_ns: int, how: Yield = Yield()) -> None:  # noqa: B008
        """End the slice's lease, because its work has left the engine or the gate has closed."""
        _must_fit("kernel_id", how.kernel_id, 32)
        _must_fit("hint_ns", how.hint_ns, 64)
        flags = 0
        for name, flag in (("want", lib.VGPU_YIELD_WANT), ("more", lib.VGPU_YIELD_MORE), ("end", lib.VGPU_YIELD_END)):
            flags |= flag if getattr(how, name) else 0
        c_yield = ffi.new("struct vgpu_yield *", (flags, how.kernel_id, how.hint_ns))
        _call(lib.vgpu_slice_yield, self.c, target.c, c_yield, now_ns, subject=target)

    def unused(self, unused_ns: int, now_ns: int) -> None:
        """Report for how long the lease was not used since the last call."""
        _must_fit("unused_ns", unused_ns, 64)
        _call(lib.vgpu_sched_unused, self.c, unused_ns, now_ns)

    def owe(self, target: Slice, ns: int, now_ns: int) -> None:
        """Charge the slice for work that was found later and charged to no slice."""
        _must_fit("ns", ns, 64)
        _call(lib.vgpu_slice_owe, self.c, target.c, ns, now_ns, subject=target)

    def busy_until(self, until_ns: int) -> None:
        """Set the time at which the engine stops executing. After that time no slice is charged until the next pick."""
        _call(lib.vgpu_sched_busy_until, self.c, until_ns)

    @property
    def left_ns(self) -> int:
        """Time for which the executing slice may still be charged, given its timeslice, caps and reserved time."""
        return int(lib.vgpu_sched_left_ns(self.c))

    @property
    def is_urgent(self) -> bool:
        """Whether a pick would end the present run early for a group of band LATENCY."""
        return bool(lib.vgpu_sched_is_urgent(self.c))

    def predicted_ns(self, group: Group, item: ItemInfo) -> int | None:
        """Return the predicted duration of this item of the group; None for "unknown, very long"."""
        self._must_be_here(group, group.c in self._groups)
        ns = int(lib.vgpu_predict_duration_ns(group.c, _item(item)))
        return None if ns == _NEVER else ns

    def predicted_inversion_ns(self, group: Group, kernel_id: int, elapsed_ns: int, piece_ns: int) -> int | None:
        """Return how much longer than the rest of the gap a piece begun now is expected to take; None if unknown."""
        self._must_be_here(group, group.c in self._groups)
        _must_fit("kernel_id", kernel_id, 32)
        _must_fit("elapsed_ns", elapsed_ns, 64)
        _must_fit("piece_ns", piece_ns, 64)
        ns = int(lib.vgpu_predict_inversion_ns(group.c, kernel_id, elapsed_ns, piece_ns))
        return None if ns == _NEVER else ns

    def advance(self, now_ns: int) -> None:
        """Charge the time until now."""
        _call(lib.vgpu_sched_advance, self.c, now_ns)

    def group_lag_ns(self, group: Group, now_ns: int) -> int:
        self._must_be_here(group, group.c in self._groups)
        self.advance(now_ns)
        return int(lib.vgpu_group_lag_ns(self.c, group.c, now_ns))

    def slice_lag_ns(self, target: Slice, now_ns: int) -> int:
        self._must_be_here(target, target.c in self._slices)
        self.advance(now_ns)
        return int(lib.vgpu_slice_lag_ns(self.c, target.c, now_ns))

    @staticmethod
    def _must_be_here(subject: object, is_here: bool) -> None:
        if not is_here:
            raise CallError(Field.ABSENT, subject)


def histogram_bucket(length_ns: int) -> int:
    """Return the bucket of `GroupStats.histogram` that counts runs of this length."""
    _must_fit("length_ns", length_ns, 64)
    return int(lib.vgpu_hist_bucket(length_ns))


def histogram_bucket_start_ns(bucket: int) -> int:
    """Return the least run length that a bucket counts."""
    if not 0 <= bucket < lib.VGPU_HIST_BUCKETS:
        raise ValueError(f"bucket: {bucket} is outside 0..{lib.VGPU_HIST_BUCKETS - 1}")
    return int(lib.vgpu_hist_bucket_start_ns(bucket))
