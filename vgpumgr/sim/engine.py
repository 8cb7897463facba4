# SPDX-License-Identifier: Apache-2.0
"""One simulated engine, shared by groups under a scheduler. The event loop is C (native/sim.h).

    sim = Simulation(EngineModel(kind="splittable", max_chunk_ns=250_000), "vgpumgr", seed=1)
    tenant = sim.add_group("a", GroupParams(weight=3, timeslice_ns=1_000_000))
    device = sim.add_slice(tenant, Backlog(work_ns=400_000))
    sim.run_until(1_000_000_000)
    sim.update_group(tenant, GroupParams(weight=1, timeslice_ns=1_000_000))
    sim.run_until(2_000_000_000)
    sim.runs(), sim.requests(device), sim.counters()

Time begins at 0 and is in nanoseconds. `run_until(t)` simulates everything that happens before t. Changes made between
two calls take effect before the events at t itself, as if a controller had acted at t. The same calls with the same
seed give the same schedule, identified by `schedule_hash`. Not thread safe; C code runs without the interpreter's lock.

Every refusal is a ValueError that says what was expected, and changes nothing. An object that was removed, or that
belongs to another simulation, is refused too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vgpumgr.sched.core import Field, GroupParams, GroupStats, ParameterError, SliceParams
from vgpumgr.sim.sources import TIME_MAX_NS, Backlog, Claim, Program, requests_of_one_kernel
from vgpumgr.sim.values import (
    ITEM_DTYPE,
    KINDS,
    REQUEST_DTYPE,
    RUN_DTYPE,
    Counters,
    EngineModel,
    Reason,
    SchedulerParameter,
    SimGroup,
    SimSlice,
    SliceCounters,
)

try:
    from vgpumgr.sim._native import ffi, lib
except ImportError as error:
    raise ImportError(
        "the simulator's engine is not compiled; run `python -m vgpumgr.sim._build`"
        " (needs cffi, a C compiler and Python's headers)"
    ) from error

__all__ = [
    "Backlog",
    "Claim",
    "Counters",
    "EngineModel",
    "GroupParams",
    "Program",
    "Reason",
    "SchedulerParameter",
    "SimGroup",
    "SimSlice",
    "Simulation",
    "SliceCounters",
    "SliceParams",
    "requests_of_one_kernel",
    "schedulers",
]


def _parameters_of(scheduler: Any) -> dict[str, SchedulerParameter]:
    found = {}
    i = 0
    while scheduler.parameters and scheduler.parameters[i].name:
        row = scheduler.parameters[i]
        found[ffi.string(row.name).decode()] = SchedulerParameter(row.preset, row.least, row.most)
        i += 1
    return found


def _all_schedulers() -> dict[str, Any]:
    found = {}
    i = 0
    while lib.sim_schedulers[i]:
        found[ffi.string(lib.sim_schedulers[i].name).decode()] = lib.sim_schedulers[i]
        i += 1
    return found


def schedulers() -> dict[str, dict[str, SchedulerParameter]]:
    """All schedulers and their parameters. "vgpumgr" is the kernel module's core."""
    return {name: _parameters_of(scheduler) for name, scheduler in _all_schedulers().items()}


class Simulation:
    """One engine under one scheduler; see the module.

    `parameters` are the scheduler's own (`schedulers()` lists them). `record_runs` and `record_items` select whether
    `runs()` and `items()` are kept; each costs memory per entry.
    """

    def __init__(
        self,
        model: EngineModel,
        scheduler: str = "vgpumgr",
        *,
        parameters: Mapping[str, int] | None = None,
        seed: int = 0,
        record_runs: bool = True,
        record_items: bool = False,
    ) -> None:
        table = _all_schedulers()
        if scheduler not in table:
            raise ValueError(f"scheduler: {scheduler!r} is not one of {', '.join(table)}")
        self.model = model
        self.scheduler = scheduler
        self._groups: dict[SimGroup, list[SimSlice]] = {}
        self._kept: dict[SimSlice, Any] = {}
        self._removed: dict[SimSlice, Any] = {}
        values = ffi.new("u64[]", _values_of(scheduler, _parameters_of(table[scheduler]), parameters or {}))
        error = ffi.new("int *")
        c = lib.sim_new(_c_model(model), table[scheduler], values, _in_range("seed", seed, 0, 2**64 - 1), error)
        if not c:
            _raise(error[0])
        self._c: Any = ffi.gc(c, lib.sim_free)
        self._c.record_runs = record_runs
        self._c.record_items = record_items

    # ---- tenants

    @property
    def groups(self) -> list[SimGroup]:
        """The groups that were not removed."""
        return list(self._groups)

    def slices_of(self, group: SimGroup) -> list[SimSlice]:
        """The group's slices that were not removed."""
        return list(self._known_group(group))

    def add_group(self, name: str, params: GroupParams, *, priority: int = 0) -> SimGroup:
        """Add a tenant. A scheduler uses the `params` that it knows.

        `priority` (0 is served first) is for baselines with priorities. Names are labels and need not be unique."""
        index = lib.sim_add_group(self._c, _c_params("vgpu_group_params", params), _priority(priority))
        _raise_if(index)
        group = SimGroup(index, name)
        self._groups[group] = []
        return group

    def update_group(self, group: SimGroup, params: GroupParams, *, priority: int | None = None) -> None:
        """Replace all parameters. The priority stays unless it is given."""
        self._known_group(group)
        c_params = _c_params("vgpu_group_params", params)
        if priority is None:
            priority = self._c.groups[group.index].priority
        _raise_if(lib.sim_update_group(self._c, group.index, c_params, _priority(priority)))

    def remove_group(self, group: SimGroup) -> None:
        """Remove a group with all its slices."""
        for one in self.slices_of(group):
            self.remove_slice(one)
        _raise_if(lib.sim_remove_group(self._c, group.index))
        del self._groups[group]

    def add_slice(
        self, group: SimGroup, source: Program | Backlog, *, params: SliceParams | None = None, name: str = ""
    ) -> SimSlice:
        """Add a queue of the tenant, and the host program that fills it."""
        slices = self._known_group(group)
        compiled = source.compile()
        index = lib.sim_add_slice(
            self._c, group.index, _c_params("vgpu_slice_params", params or SliceParams()), _c_program(compiled)
        )
        _raise_if(index)
        new = SimSlice(index, group, name or f"{group.name}.{len(slices)}")
        slices.append(new)
        self._kept[new] = compiled
        return new

    def update_slice(self, target: SimSlice, params: SliceParams) -> None:
        self._known_slice(target)
        _raise_if(lib.sim_update_slice(self._c, target.index, _c_params("vgpu_slice_params", params)))

    def remove_slice(self, target: SimSlice) -> None:
        """Remove a slice with its host program and queue. An engine that executes for the slice is free at once.

        Results stay readable."""
        self._known_slice(target)
        lib.sim_remove_slice(self._c, target.index)
        self._removed[target] = self._kept.pop(target)
        self._groups[target.group].remove(target)

    def park_slice(self, target: SimSlice, *, parked: bool = True) -> None:
        """Withhold the slice's kernels from the scheduler, or release them.

        A piece in execution is finished. The host program continues until its queue is full."""
        self._known_slice(target)
        lib.sim_park_slice(self._c, target.index, parked)

    # ---- time

    @property
    def now_ns(self) -> int:
        return int(self._c.now_ns)

    def run_until(self, t_ns: int) -> None:
        """Simulate everything that happens before `t_ns`, which must not lie in the past."""
        if not self.now_ns <= t_ns <= TIME_MAX_NS:
            raise ValueError(f"t_ns: {t_ns} is not in {self.now_ns} (now)..{TIME_MAX_NS}")
        _raise_if(lib.sim_run(self._c, t_ns))

    @property
    def is_over(self) -> bool:
        """Whether every host program has ended and every kernel is done. Then nothing happens any more."""
        return all(self._c_slice(one).phase == lib.SIM_FINISHED for one in self._kept)

    # ---- results

    @property
    def schedule_hash(self) -> str:
        """Hash of all decisions until now (which slice, when, for how long), as 16 hex digits."""
        return f"{int(self._c.hash):016x}"

    def counters(self) -> Counters:
        c = self._c.counters
        return Counters(
            wall_ns=self.now_ns,
            idle_ns=c.idle_ns,
            decisions=c.decisions,
            picks=c.picks,
            switches=c.switches,
            preemptions=c.preemptions,
            events=c.events,
        )

    def slice_counters(self, target: SimSlice) -> SliceCounters:
        """Return a slice's counters, also of a removed slice."""
        c = self._c_slice(target).counters
        compiled = self._kept.get(target) or self._removed[target]
        if compiled.is_open:
            arrived = int(np.searchsorted(compiled.arrivals_ns, self.now_ns))
        else:
            arrived = c.requests_begun
        return SliceCounters(
            run_ns=c.work_ns + c.overhead_ns,
            work_ns=c.work_ns,
            overhead_ns=c.overhead_ns,
            hold_ns=c.hold_ns,
            switches=c.switches,
            items=c.items,
            wait_ns=c.wait_ns,
            max_wait_ns=c.max_wait_ns,
            requests_arrived=arrived,
            requests_done=c.requests_done,
        )

    def run_ns(self, group: SimGroup) -> int:
        """Return the engine time of the group's present slices."""
        return sum(self.slice_counters(one).run_ns for one in self.slices_of(group))

    def requests(self, target: SimSlice) -> npt.NDArray[Any]:
        """Return finished requests in order.

        Fields: arrival_ns, start_ns (of the first kernel on the engine), end_ns, work_ns (of all its kernels)."""
        return _copied(self._c_slice(target).requests, REQUEST_DTYPE)

    def runs(self) -> npt.NDArray[Any]:
        """Return the uninterrupted runs on the engine. The last run may still be going on.

        Fields: start_ns, length_ns, group, slice, reason (`Reason`), timeslice_ns (0: none)."""
        runs = _copied(self._c.runs, RUN_DTYPE)
        present = ffi.new("struct sim_run *")
        lib.sim_present_run(self._c, present)
        if self._c.record_runs and present.length_ns:
            last = np.frombuffer(ffi.buffer(present), dtype=RUN_DTYPE, count=1)
            runs = np.concatenate([runs, last])
        return runs

    def items(self) -> npt.NDArray[Any]:
        """Return finished kernels in order of completion, if `record_items` is set.

        Fields: submitted_ns, ready_ns (when all kernels before it were done), start_ns, end_ns, work_ns, kernel_id,
        slice."""
        return _copied(self._c.items, ITEM_DTYPE)

    def core_stats(self, group: SimGroup) -> GroupStats:
        """Return the core's own counters of a group; only for scheduler "vgpumgr"."""
        return _group_stats(self._core_group(group).stats)

    def core_lag_ns(self, group: SimGroup) -> int:
        """Return what the engine owes a group according to the core; only for scheduler "vgpumgr"."""
        c = self._core_group(group)
        sched = ffi.cast("struct vgpu_sched *", self._c.sched)
        return int(lib.vgpu_group_lag_ns(sched, c, self.now_ns))

    # ---- internals

    def _core_group(self, group: SimGroup) -> Any:
        self._known_group(group)
        c = lib.sim_core_group(self._c, group.index)
        if not c:
            raise ValueError(f"scheduler: {self.scheduler} is not the core; only scheduler vgpumgr has these")
        return c

    def _known_group(self, group: SimGroup) -> list[SimSlice]:
        if group not in self._groups:
            raise ValueError(f"group: {group.name!r} is not of this simulation, or was removed")
        return self._groups[group]

    def _known_slice(self, target: SimSlice) -> None:
        if target not in self._kept:
            raise ValueError(f"slice: {target.name!r} is not of this simulation, or was removed")

    def _c_slice(self, target: SimSlice) -> Any:
        if target not in self._removed:
            self._known_slice(target)
        return self._c.slices[target.index]


def _in_range(what: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError(f"{what}: {value} is not in {least}..{most}")
    return int(value)


def _priority(value: int) -> int:
    return _in_range("priority", value, 0, 2**32 - 1)


def _values_of(scheduler: str, known: Mapping[str, SchedulerParameter], given: Mapping[str, int]) -> list[int]:
    for name in given:
        if name not in known:
            takes = ", ".join(known) or "none"
            raise ValueError(f"parameters: {scheduler} has no {name!r}; it takes {takes}")
    return [
        _in_range(f"parameters: {name}", given.get(name, row.default), row.least, row.most)
        for name, row in known.items()
    ] or [0]


def _c_model(model: EngineModel) -> Any:
    if model.kind not in KINDS:
        raise ValueError(f"kind: {model.kind!r} is not one of {', '.join(KINDS)}")
    if model.split_cost_ns and model.kind != "splittable":
        raise ValueError(f"split_cost_ns: a {model.kind} engine does not split; leave it out")
    if model.preempt_latency_ns and model.kind != "preemptible":
        raise ValueError(f"preempt_latency_ns: a {model.kind} engine does not preempt; leave it out")
    c = ffi.new("struct sim_model *")
    c.kind = KINDS[model.kind]
    c.max_chunk_ns = _in_range("max_chunk_ns", model.max_chunk_ns, lib.VGPU_CHUNK_MIN_NS, lib.VGPU_CHUNK_MAX_NS // 2)
    c.min_chunk_ns = _in_range("min_chunk_ns", model.min_chunk_ns, 1, model.max_chunk_ns)
    for name in ("switch_cost_ns", "split_cost_ns", "preempt_latency_ns"):
        setattr(c, name, _in_range(name, getattr(model, name), 0, lib.VGPU_SWITCH_COST_MAX_NS))
    return c


def _c_params(struct: str, params: GroupParams | SliceParams) -> Any:
    c = ffi.new(f"struct {struct} *")
    for field in dataclasses.fields(params):
        try:
            setattr(c, field.name, getattr(params, field.name))
        except (OverflowError, TypeError):
            raise ValueError(f"{field.name}: {getattr(params, field.name)!r} is not a number it can be") from None
    return c


def _group_stats(c: Any) -> GroupStats:
    values = {field.name: getattr(c, field.name) for field in dataclasses.fields(GroupStats)}
    values["histogram"] = tuple(values["histogram"])
    return GroupStats(**values)


def _c_program(compiled: Any) -> Any:
    c = ffi.new("struct sim_program *")
    c.nr_kernels = len(compiled.work_ns)
    c.nr_requests = len(compiled.request_first) - 1
    for field in dataclasses.fields(compiled):
        value = getattr(compiled, field.name)
        if isinstance(value, np.ndarray):
            c_type = {"uint64": "u64", "uint32": "u32", "uint8": "unsigned char"}[str(value.dtype)]
            value = ffi.cast(f"const {c_type} *", value.ctypes.data)
        setattr(c, field.name, value)
    return c


def _copied(log: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if not log.nr:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(ffi.buffer(log.data, log.nr * dtype.itemsize), dtype=dtype).copy()


def _raise_if(result: int) -> None:
    if result < 0:
        _raise(result)


def _raise(error: int) -> None:
    if error <= lib.SIM_BAD_FIELD:
        raise ParameterError(Field(lib.SIM_BAD_FIELD - error))
    if error == lib.SIM_NO_MEMORY:
        raise MemoryError("the simulation ran out of memory; record less or simulate less")
    if error == lib.SIM_TOO_LONG:
        raise ValueError("work_ns: a non-preemptible engine takes no kernel longer than its max_chunk_ns")
    raise ValueError(f"the engine refused ({error})")
