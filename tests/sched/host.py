# SPDX-License-Identifier: Apache-2.0
"""Lets a story happen on a simulated engine, under the core, and watches that the rules hold.

The host plays the kernel module: it executes what the core picked, wakes and sleeps slices, and
passes on changes. Checked at every pick, whatever the story: everything `Model` predicts
(invariants 1 to 7), the sums of invariant 1, and the run length of invariant 6; `Usage` holds
what the cap test looks at afterwards.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.sched.model import Model, ModelGroup, ModelSlice
from tests.sched.story import (
    Arrive,
    ChangeSlice,
    CloseSlice,
    Depart,
    Event,
    NewCap,
    NewTimeslice,
    OpenSlice,
    Reweight,
    SliceOf,
    Story,
    Tenant,
    Work,
)
from vgpumgr.sched.core import (
    CapParams,
    Decision,
    EndedRun,
    Group,
    GroupParams,
    RunReason,
    Scheduler,
    Slice,
    SliceParams,
)

WRAP = 2**64


def group_params(tenant: Tenant) -> GroupParams:
    cap = tenant.cap
    return GroupParams(
        weight=tenant.weight,
        timeslice_ns=tenant.timeslice_ns,
        cap_ns=cap.cap_ns,
        cap_period_ns=cap.cap_period_ns,
        burst_ns=cap.burst_ns,
    )


def slice_params(weight: int, cap: CapParams) -> SliceParams:
    return SliceParams(
        weight=weight,
        cap_ns=cap.cap_ns,
        cap_period_ns=cap.cap_period_ns,
        burst_ns=cap.burst_ns,
    )


@dataclass
class Usage:
    """When somebody ran under one setting of its cap: (start, end) in order."""

    cap: CapParams
    burst_ns: int
    stays: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False)
class Device:
    """A slice, and the work it has."""

    core: Slice
    model: ModelSlice | None
    tenant: LiveTenant
    params: SliceParams
    work: Work
    left_ns: int = 0
    done: int = 0
    is_awake: bool = False
    usage: list[Usage] = field(default_factory=list)

    def next_item(self) -> None:
        self.left_ns = self.work.items[self.done % len(self.work.items)]


@dataclass(eq=False)
class LiveTenant:
    name: str
    core: Group
    model: ModelGroup | None
    params: GroupParams
    devices: list[Device] = field(default_factory=list)
    usage: list[Usage] = field(default_factory=list)


class Host:
    """`origin` and `vtime` say where clock and virtual time begin; `probe` is called often."""

    def __init__(
        self,
        story: Story,
        *,
        origin: int = 0,
        vtime: int | None = None,
        with_model: bool = True,
        probe: Callable[[Host], None] | None = None,
        at_pick: Callable[[Host], None] | None = None,
    ) -> None:
        self.story = story
        self.origin = origin
        self.now = 0
        self.core = Scheduler(story.engine, now_ns=origin)
        if vtime is not None:
            self.core.set_virtual_time(vtime)
        self.model = Model(story.engine, 0) if with_model else None
        self.probe = probe
        self.at_pick = at_pick
        self.tenants: list[LiveTenant] = []
        self.devices: dict[Slice, Device] = {}
        self.departed_ns = 0
        self.runs: list[tuple[str, EndedRun]] = []
        self.transcript: list[object] = []
        self.agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.names = itertools.count()
        self.running: Device | None = None
        self.stay_start = 0
        for tenant in story.tenants:
            self.arrive(tenant)
        for event in story.sorted_events():
            self.at(event.at_ns, lambda event=event: self.happen(event))  # type: ignore[misc]

    # ---- the clock

    def clock(self) -> int:
        return (self.origin + self.now) % WRAP

    def at(self, when: int, what: Callable[[], None]) -> None:
        heapq.heappush(self.agenda, (when, next(self.order), what))

    def run(self) -> Host:
        while self.now < self.story.duration_ns:
            decision = self.pick()
            if decision.slice is not None:
                self.execute(self.devices[decision.slice], decision)
            else:
                times = [self.agenda[0][0]] if self.agenda else []
                if decision.wake_at_ns is not None:
                    times.append(self.now + (decision.wake_at_ns - self.clock()) % WRAP)
                times.append(self.story.duration_ns)
                self.pass_until(min(times))
        self.pick()
        return self

    def pass_until(self, end: int) -> bool:
        """Let time pass and things happen; False if the running slice was removed."""
        running = self.running
        while self.agenda and self.agenda[0][0] <= end:
            when, _, what = heapq.heappop(self.agenda)
            self.now = max(self.now, when)
            if self.probe is not None:
                self.probe(self)
            what()
            if self.running is not running:
                return False
        self.now = end
        return True

    # ---- the engine

    def pick(self) -> Decision:
        decision = self.core.pick(self.clock())
        device = self.devices[decision.slice] if decision.slice is not None else None
        self.transcript.append(
            (
                self.now,
                device.core.name if device else None,
                decision.limit_ns,
                None if decision.wake_at_ns is None else (decision.wake_at_ns - self.origin) % WRAP,
                decision.switched,
            )
        )
        if decision.ended is not None:
            self.check_run(decision.ended)
        if self.model is not None:
            wake_at = decision.wake_at_ns
            if wake_at is not None:
                decision = replace(decision, wake_at_ns=(wake_at - self.origin) % WRAP)
            self.model.picked(self.now, decision, device.model if device else None)
            decision = replace(decision, wake_at_ns=wake_at)
            self.check_lags()
        self.check_sums()
        if self.at_pick is not None:
            self.at_pick(self)
        return decision

    def execute(self, device: Device, decision: Decision) -> None:
        piece = device.left_ns
        if device.work.splittable:
            piece = min(piece, decision.limit_ns)
        self.stay_start = self.now
        self.running = device
        if not self.pass_until(self.now + piece):
            return
        self.note_stay()
        self.running = None
        device.left_ns -= piece
        if device.left_ns:
            return
        device.done += 1
        device.next_item()
        work = device.work
        if work.nap_every and device.done % work.nap_every == 0:
            self.sleep(device)
            self.at(self.now + work.nap_ns, lambda: self.wake(device))

    def note_stay(self) -> None:
        """Book what ran since the last time for the settings in force until now."""
        if self.running is not None:
            for usage in (self.running.usage[-1], self.running.tenant.usage[-1]):
                usage.stays.append((self.stay_start, self.now))
            self.stay_start = self.now

    # ---- what happens

    def wake(self, device: Device) -> None:
        if device.core in self.devices:
            device.is_awake = True
            self.core.wake(device.core, self.clock())
            if self.model is not None and device.model is not None:
                self.model.wake(device.model, self.now)

    def sleep(self, device: Device) -> None:
        device.is_awake = False
        self.core.sleep(device.core, self.clock())
        if self.model is not None and device.model is not None:
            self.model.sleep(device.model, self.now)

    def arrive(self, tenant: Tenant) -> None:
        name = f"t{next(self.names)}"
        params = group_params(tenant)
        core = self.core.add_group(params, self.clock(), name=name)
        model = self.model.add_group(name, params, self.now) if self.model else None
        live = LiveTenant(name, core, model, params)
        live.usage.append(Usage(tenant.cap, params.burst_ns or params.timeslice_ns))
        self.tenants.append(live)
        for one in tenant.slices:
            self.open(live, one)

    def open(self, tenant: LiveTenant, one: SliceOf) -> None:
        name = f"{tenant.name}.s{next(self.names)}"
        params = slice_params(one.weight, one.cap)
        core = self.core.add_slice(tenant.core, params, self.clock(), name=name)
        model = None
        if self.model is not None and tenant.model is not None:
            model = self.model.add_slice(tenant.model, name, params, self.now)
        device = Device(core, model, tenant, params, one.work)
        device.next_item()
        device.usage.append(Usage(one.cap, params.burst_ns or tenant.params.timeslice_ns))
        self.devices[core] = device
        tenant.devices.append(device)
        if one.work.starts_ns:
            self.at(self.now + one.work.starts_ns, lambda: self.wake(device))
        else:
            self.wake(device)

    def close(self, device: Device) -> None:
        self.core.remove_slice(device.core, self.clock())
        if self.model is not None and device.model is not None:
            self.model.remove_slice(device.model, self.now)
        del self.devices[device.core]
        device.tenant.devices.remove(device)
        if self.running is device:
            self.note_stay()
            self.running = None

    def depart(self, tenant: LiveTenant) -> None:
        for device in list(tenant.devices):
            self.close(device)
        self.core.remove_group(tenant.core, self.clock())
        if self.model is not None and tenant.model is not None:
            self.model.remove_group(tenant.model, self.now)
        self.departed_ns += tenant.core.run_ns
        self.tenants.remove(tenant)

    def update(self, tenant: LiveTenant, params: GroupParams) -> None:
        self.core.update_group(tenant.core, params, self.clock())
        if self.model is not None and tenant.model is not None:
            self.model.update_group(tenant.model, params, self.now)
        old, tenant.params = tenant.params, params
        self.note_stay()
        cap = CapParams(cap_ns=params.cap_ns, cap_period_ns=params.cap_period_ns, burst_ns=params.burst_ns)
        tenant.usage.append(Usage(cap, params.burst_ns or params.timeslice_ns))
        if old.timeslice_ns != params.timeslice_ns:
            for device in tenant.devices:
                burst = max(device.params.burst_ns or params.timeslice_ns, device.usage[-1].burst_ns)
                device.usage.append(Usage(device.usage[-1].cap, burst))

    def happen(self, event: Event) -> None:
        if isinstance(event, Arrive):
            self.arrive(event.tenant)
            return
        if not self.tenants:
            return
        tenant = self.tenants[event.who % len(self.tenants)]
        if isinstance(event, Reweight):
            self.update(tenant, replace(tenant.params, weight=event.weight))
        elif isinstance(event, NewTimeslice):
            self.update(tenant, replace(tenant.params, timeslice_ns=event.timeslice_ns))
        elif isinstance(event, NewCap):
            cap = event.cap
            self.update(
                tenant,
                replace(
                    tenant.params,
                    cap_ns=cap.cap_ns,
                    cap_period_ns=cap.cap_period_ns,
                    burst_ns=cap.burst_ns,
                ),
            )
        elif isinstance(event, OpenSlice):
            self.open(tenant, event.slice)
        elif isinstance(event, Depart):
            self.depart(tenant)
        elif tenant.devices:
            self.happen_to_slice(tenant, event)

    def happen_to_slice(self, tenant: LiveTenant, event: Event) -> None:
        if isinstance(event, CloseSlice):
            self.close(tenant.devices[event.which % len(tenant.devices)])
        elif isinstance(event, ChangeSlice):
            device = tenant.devices[event.which % len(tenant.devices)]
            self.note_stay()
            device.params = slice_params(event.weight, event.cap)
            self.core.update_slice(device.core, device.params, self.clock())
            if self.model is not None and device.model is not None:
                self.model.update_slice(device.model, device.params, self.now)
            burst = device.params.burst_ns or tenant.params.timeslice_ns
            device.usage.append(Usage(event.cap, burst))

    # ---- what must hold

    def check_run(self, run: EndedRun) -> None:
        """R9: a run that was not cut lasts its timeslice, and none lasts a chunk longer."""
        self.runs.append((run.group.name, run))
        engine = self.story.engine
        chunk = engine.min_chunk_ns if engine.splits else engine.max_chunk_ns
        assert run.length_ns <= run.timeslice_ns + chunk
        if run.reason is RunReason.TIMESLICE:
            assert run.length_ns >= run.timeslice_ns

    def check_sums(self) -> None:
        """R3: wall = sum(charged) + idle, exactly, at both levels."""
        stats = self.core.stats
        assert stats.wall_ns == self.now
        charged = sum(tenant.core.run_ns for tenant in self.tenants) + self.departed_ns
        assert stats.idle_ns + charged == stats.wall_ns
        if self.model is not None:
            assert stats.idle_ns == self.model.idle_ns
            for tenant in self.tenants:
                assert tenant.model is not None
                assert tenant.core.run_ns == tenant.model.run_ns
                for device in tenant.devices:
                    assert device.model is not None
                    assert device.core.run_ns == device.model.run_ns

    def check_lags(self) -> None:
        assert self.model is not None
        now = self.clock()
        for tenant in self.tenants:
            assert tenant.model is not None
            lag = self.core.group_lag_ns(tenant.core, now)
            exact = self.model.level.lag(tenant.model.party)
            slack = self.model.slack(self.model.level)
            assert abs(lag - exact) <= slack, f"{tenant.name}: lag {lag}, exactly {float(exact)}"
            inner = tenant.model.level
            for device in tenant.devices:
                assert device.model is not None
                lag = self.core.slice_lag_ns(device.core, now)
                exact = inner.lag(device.model.party)
                assert abs(lag - exact) <= self.model.slack(inner), device.core.name
