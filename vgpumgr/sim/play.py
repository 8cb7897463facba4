# SPDX-License-Identifier: Apache-2.0
"""Plays a scenario with one seed: builds the engine and its tenants, makes the changes at their times, and collects the
results.

The results leave out the warm-up. A value that only the engine or the scheduler can refuse raises a
ScenarioError that names the field.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vgpumgr.sched.core import GroupParams, ParameterError, Policy
from vgpumgr.sim import schema
from vgpumgr.sim.due import changed
from vgpumgr.sim.engine import SimGroup, SimSlice, Simulation, schedulers
from vgpumgr.sim.limits import engine_model, group_params, refusal, slice_params, timeslice
from vgpumgr.sim.played import Asked, GroupPlayed, Played, Progress, part_of
from vgpumgr.sim.programs import Source, source
from vgpumgr.sim.quantity import format_time, parse_time
from vgpumgr.sim.scenario import Loaded, tenant_names
from vgpumgr.sim.sources import Program

MAX_DECISIONS = 20_000_000
PIECES = 50
EXCLUSIVE = "fifo"
"""The scheduler for a tenant on an engine of its own: it runs kernels in order and splits none."""

RESERVE_LIMIT = 750_000
"""The part of the engine that can be reserved, in millionths, if a scenario does not set it."""

Path = tuple[str | int, ...]


@dataclass
class Exclusives:
    """Results of tenants on engines of their own, cached for scenarios that differ only in the scheduler."""

    _kept: dict[tuple[Any, ...], NDArray[np.int64]] = field(default_factory=dict)

    def of(self, loaded: Loaded, tenant: int, copy: int, sources: list[Source], seed: int) -> NDArray[np.int64]:
        """Return the latencies of requests that arrive after the warm-up."""
        scenario = loaded.scenario
        part = scenario.tenants[tenant]
        key = (
            scenario.engine.model_dump_json(),
            part.workload.model_dump_json(),
            (part.starts, part.leaves, scenario.duration, scenario.warm_up, len(part.slices)),
            (tenant, copy, seed),
        )
        if key not in self._kept:
            self._kept[key] = _alone(scenario, part, sources, seed)
        return self._kept[key]


def _alone(scenario: schema.Scenario, tenant: schema.Tenant, sources: list[Source], seed: int) -> NDArray[np.int64]:
    sim = Simulation(engine_model(scenario.engine), EXCLUSIVE, seed=seed, record_runs=False)
    group = sim.add_group(tenant.name, GroupParams(weight=1, timeslice_ns=timeslice(tenant)))
    slices = [sim.add_slice(group, one) for one in sources]
    sim.run_until(min(scenario.duration, tenant.leaves or scenario.duration))
    return _latencies(sim, slices, scenario.warm_up)


def play(loaded: Loaded, seed: int, *, exclusives: Exclusives, progress: Progress = lambda _: None) -> Played:
    """Play a scenario with one seed. `progress` is called with the fraction done."""
    return _Play(loaded, seed).outcome(exclusives, progress)


def play_all(loaded: Loaded, *, exclusives: Exclusives, progress: Progress = lambda _: None) -> list[Played]:
    """Play a scenario with each of its seeds."""
    first, count = loaded.scenario.seed, loaded.scenario.seeds
    played = []
    for index in range(count):
        told = part_of(progress, index, count)
        played.append(play(loaded, first + index, exclusives=exclusives, progress=told))
    return played


@dataclass
class _Member:
    """A group while it is played. `limits`: the tenant's limits, with the changes so far."""

    tenant: int
    copy: int
    name: str
    limits: schema.Limits
    group: SimGroup
    sources: list[Source]
    slices: list[SimSlice]
    gone: bool = False


class _Play:
    def __init__(self, loaded: Loaded, seed: int) -> None:
        self._loaded = loaded
        self._scenario = loaded.scenario
        self._seed = seed
        self._sim = self._simulation()
        self._members: list[_Member] = []
        for index, tenant in enumerate(self._scenario.tenants):
            for copy, name in enumerate(tenant_names(tenant)):
                self._members.append(self._member(index, copy, name))

    def outcome(self, exclusives: Exclusives, progress: Progress) -> Played:
        scenario = self._scenario
        self._run_to(scenario.warm_up, progress)
        before = self._sim.counters()
        used = [self._used(member) for member in self._members]
        self._run_to(scenario.duration, progress)
        after = self._sim.counters()
        return Played(
            seed=self._seed,
            schedule_hash=self._sim.schedule_hash,
            start_ns=scenario.warm_up,
            end_ns=scenario.duration,
            idle_ns=after.idle_ns - before.idle_ns,
            decisions=after.decisions - before.decisions,
            switches=after.switches - before.switches,
            groups=[
                self._collected(member, earlier, exclusives)
                for member, earlier in zip(self._members, used, strict=True)
            ],
            runs=self._sim.runs(),
        )

    # ---- building

    @property
    def _reserves(self) -> bool:
        """Whether any tenant has a reservation, now or after a change."""
        scenario = self._scenario
        return scenario.scheduler.name in schema.CORE_SCHEDULERS and any(
            limits.reservation is not None for limits in (*scenario.tenants, *scenario.changes)
        )

    def _simulation(self) -> Simulation:
        part = self._scenario.scheduler
        known = schedulers()
        if part.name not in known:
            expected = ", ".join(known)
            raise self._loaded.error(("scheduler", "name"), f"{part.name[:80]!r}: expected one of {expected}")
        values: dict[str, int] = {}
        if part.policy != "best_effort":
            values["policy"] = Policy[part.policy.upper()]
        if part.places is not None:
            values["places"] = part.places
        if part.reserve_limit is not None or self._reserves:
            values["reserve_limit_permille"] = (part.reserve_limit or RESERVE_LIMIT) // 1000
        for name, value in part.parameters.items():
            values[name] = self._parameter(name, value)
        engine = engine_model(self._scenario.engine)
        try:
            return Simulation(engine, part.name, parameters=values, seed=self._seed)
        except ParameterError as error:
            name = error.field.name.lower()
            where: Path = ("scheduler", name) if name in schema.Scheduler.model_fields else ("engine", name)
            raise self._loaded.error(where, f"the scheduler refuses it: {str(error).partition(': ')[2]}") from None
        except ValueError as error:
            about_parameters = str(error).startswith("parameters")
            path: Path = ("scheduler", "parameters") if about_parameters else ("engine",)
            raise self._loaded.error(path, str(error).removeprefix("parameters: ")) from None

    def _parameter(self, name: str, value: object) -> int:
        """Return a whole number, or convert a time to the unit at the end of the parameter's name."""
        path = ("scheduler", "parameters", name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        units = {"_ns": 1, "_us": 1_000, "_ms": 1_000_000}
        divisor = next((factor for suffix, factor in units.items() if name.endswith(suffix)), None)
        if divisor is not None:
            try:
                time_ns = parse_time(value)
            except ValueError as error:
                raise self._loaded.error(path, f"{str(value)[:80]!r}: {error}") from None
            return time_ns // divisor
        raise self._loaded.error(path, f"{str(value)[:80]!r}: expected a whole number")

    def _member(self, index: int, copy: int, name: str) -> _Member:
        tenant = self._scenario.tenants[index]
        path: Path = ("tenants", index)
        with self._refusals(path, tenant):
            group = self._sim.add_group(name, group_params(tenant), priority=tenant.priority or 0)
        sources, slices = [], []
        for number, part in enumerate(tenant.slices):
            with self._refusals((*path, "workload"), tenant):
                program = source(
                    tenant,
                    seed=self._seed,
                    who=(index, copy, number),
                    duration_ns=self._scenario.duration,
                    folder=self._loaded.folder,
                )
                program.compile()
            with self._refusals((*path, "slices", number), part):
                slices.append(self._sim.add_slice(group, program, params=slice_params(part, tenant)))
            sources.append(program)
        return _Member(index, copy, name, tenant, group, sources, slices)

    @contextlib.contextmanager
    def _refusals(self, path: Path, part: schema.Limits | schema.Slice) -> Iterator[None]:
        """Turn a refusal into an error at the field that caused it."""
        try:
            yield
        except ParameterError as error:
            below, reason = refusal(error, self._scenario, part)
            raise self._loaded.error((*path, *below), reason) from None
        except ValueError as error:
            raise self._loaded.error(path, str(error)) from None

    # ---- time

    def _run_to(self, end_ns: int, progress: Progress) -> None:
        """Run until `end_ns`, in pieces, to report progress and to stop a scenario that is too large."""
        scenario = self._scenario
        stops = {scenario.duration * piece // PIECES for piece in range(PIECES)} | {end_ns}
        stops |= {change.at for change in scenario.changes}
        stops |= {tenant.leaves for tenant in scenario.tenants if tenant.leaves is not None}
        for stop_ns in sorted(stop for stop in stops if self._sim.now_ns < stop <= end_ns):
            self._sim.run_until(stop_ns)
            self._change_at(stop_ns)
            decisions = self._sim.counters().decisions
            if decisions > MAX_DECISIONS:
                raise self._loaded.error(
                    ("duration",),
                    f"{decisions} decisions until {format_time(stop_ns)}: expected at most {MAX_DECISIONS} in all;"
                    " shorten it, or give larger items or chunks",
                )
            progress(stop_ns / scenario.duration)

    def _change_at(self, now_ns: int) -> None:
        for index, change in enumerate(self._scenario.changes):
            if change.at != now_ns:
                continue
            for member in self._members:
                if change.tenant not in (member.name, self._scenario.tenants[member.tenant].name) or member.gone:
                    continue
                member.limits = member.limits.model_copy(update=changed(change))
                with self._refusals(("changes", index), member.limits):
                    priority = member.limits.priority or 0
                    self._sim.update_group(member.group, group_params(member.limits), priority=priority)
        for member in self._members:
            if self._scenario.tenants[member.tenant].leaves == now_ns and not member.gone:
                member.gone = True
                self._sim.remove_group(member.group)

    # ---- collecting

    def _used(self, member: _Member) -> tuple[int, int, int, int]:
        counters = [self._sim.slice_counters(one) for one in member.slices]
        return (
            sum(counter.run_ns for counter in counters),
            sum(counter.hold_ns for counter in counters),
            sum(counter.overhead_ns for counter in counters),
            sum(counter.switches for counter in counters),
        )

    def _collected(self, member: _Member, earlier: tuple[int, ...], exclusives: Exclusives) -> GroupPlayed:
        run_ns, hold_ns, overhead_ns, switches = (
            now - before for now, before in zip(self._used(member), earlier, strict=True)
        )
        exclusive_ns, asked, offered_ns, unfinished = None, None, None, 0
        if not self._scenario.tenants[member.tenant].workload.always:
            exclusive_ns = exclusives.of(self._loaded, member.tenant, member.copy, member.sources, self._seed)
            of_slices = [self._asked(member, index) for index in range(len(member.slices))]
            asked = np.concatenate([one[0] for one in of_slices]), np.concatenate([one[1] for one in of_slices])
            unfinished = len(asked[0]) - sum(self._sim.slice_counters(one).requests_done for one in member.slices)
            if all(isinstance(one, Program) and one.arrivals_ns is not None for one in member.sources):
                offered_ns = int(asked[1][asked[0] >= self._scenario.warm_up].sum())
        return GroupPlayed(
            name=member.name,
            tenant=member.tenant,
            index=member.group.index,
            run_ns=run_ns,
            hold_ns=hold_ns,
            overhead_ns=overhead_ns,
            switches=switches,
            latencies_ns=_latencies(self._sim, member.slices, self._scenario.warm_up),
            unfinished=unfinished,
            exclusive_ns=exclusive_ns,
            asked=asked,
            offered_ns=offered_ns,
        )

    def _asked(self, member: _Member, index: int) -> Asked:
        """Return the requests that came while the slice was present. An unfinished one counts as all its kernels."""
        requests = self._sim.requests(member.slices[index])
        counters = self._sim.slice_counters(member.slices[index])
        arrivals_ns, work_ns = requests["arrival_ns"].astype(np.int64), requests["work_ns"].astype(np.int64)
        missing = counters.requests_arrived - counters.requests_done
        if not missing:
            return arrivals_ns, work_ns
        program = member.sources[index].compile()
        sums = np.add.reduceat(program.work_ns, program.request_first[:-1]).astype(np.int64)
        numbers = np.arange(counters.requests_done, counters.requests_arrived)
        if program.is_open:
            late_ns = program.arrivals_ns[numbers].astype(np.int64)
            late_ns = late_ns[late_ns < (self._scenario.tenants[member.tenant].leaves or self._scenario.duration)]
            numbers = numbers[: len(late_ns)]
        else:
            end_ns = int(requests["end_ns"][-1]) if len(requests) else program.start_ns
            late_ns = np.full(missing, end_ns, dtype=np.int64)
        return np.concatenate([arrivals_ns, late_ns]), np.concatenate([work_ns, sums[numbers % len(sums)]])


def _latencies(sim: Simulation, slices: list[SimSlice], start_ns: int) -> NDArray[np.int64]:
    """Return the latencies of finished requests that arrived from `start_ns` on."""
    found = [requests[requests["arrival_ns"] >= start_ns] for requests in map(sim.requests, slices)]
    return np.concatenate([requests["end_ns"] - requests["arrival_ns"] for requests in found]).astype(np.int64)
