# SPDX-License-Identifier: Apache-2.0
"""Runs a story on a simulated engine, under the core, and checks the rules.

The host plays the kernel module: it executes what the core picked, wakes and sleeps slices, and passes on changes. For
every story it checks at every pick everything that `Model` predicts (invariants 1 to 7), the sums of invariant 1, and
the run length of invariant 6. `Usage` records the data of the cap test.
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
    Claim,
    CloseSlice,
    Depart,
    EndRequest,
    Event,
    Latency,
    NewCap,
    NewReserve,
    NewTimeslice,
    OpenSlice,
    Reweight,
    SliceOf,
    Story,
    Tenant,
    Withdraw,
    Work,
)
from vgpumgr.sched.core import (
    Band,
    CapParams,
    Decision,
    EndedRun,
    Field,
    Group,
    GroupParams,
    ItemInfo,
    ParameterError,
    RunReason,
    Scheduler,
    Slice,
    SliceParams,
)

WRAP = 2**64


def group_params(tenant: Tenant) -> GroupParams:
    cap = tenant.cap
    params = GroupParams(
        weight=tenant.weight,
        timeslice_ns=tenant.timeslice_ns,
        cap_ns=cap.cap_ns,
        cap_period_ns=cap.cap_period_ns,
        burst_ns=cap.burst_ns,
        mode=tenant.mode,
    )
    return with_latency(params, tenant.latency)


def with_latency(params: GroupParams, latency: Latency | None) -> GroupParams:
    return replace(
        params,
        band=Band.LATENCY if latency else Band.FAIR,
        reserve_ns=latency.reserve_ns if latency else 0,
        reserve_period_ns=latency.period_ns if latency else 0,
        hold_max_ns=latency.hold_max_ns if latency else 0,
        inversion_permille=latency.inversion_permille if latency else 0,
        inversion_burst_ns=latency.inversion_burst_ns if latency else 0,
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
    """The (start, end) of each stay on the engine under one setting of a cap, in order.

    For a reservation: the times of its use. `cap` is then its rate, and `burst_ns` the most it may accumulate.
    """

    cap: CapParams
    burst_ns: int
    stays: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False)
class Device:
    """A slice and its work."""

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
    reserve_usage: list[Usage] = field(default_factory=list)
    latency_ns: int = 0

    def note_reserve(self) -> None:
        """New terms of the reservation, from now on."""
        params = self.params
        rate = CapParams(cap_ns=params.reserve_ns, cap_period_ns=params.reserve_period_ns)
        self.reserve_usage.append(Usage(rate, 2 * params.reserve_ns))


class Host:
    """`origin` and `vtime` are the start of the clock and of virtual time; `probe` is called often."""

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
        self.model = self.make_model() if with_model else None
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

    def make_model(self) -> Model:
        return Model(self.story.engine, 0)

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
        """Advance the time and run its events; False if the running slice was removed."""
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
                decision.band,
                decision.idle,
            )
        )
        if decision.ended is not None:
            self.check_run(decision.ended)
        self.note_reserves()
        if self.model is not None:
            wake_at = decision.wake_at_ns
            if wake_at is not None:
                decision = replace(decision, wake_at_ns=(wake_at - self.origin) % WRAP)
            payer = self.devices[decision.payer] if decision.payer is not None else None
            self.model.picked(self.now, decision, device.model if device else None, payer.model if payer else None)
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
        naps = work.nap_every and device.done % work.nap_every == 0
        if work.request and device.is_awake:
            self.item_done(device, None if naps else work.item(device.done))
        elif naps:
            self.sleep(device)
        if naps:
            self.at(self.now + work.nap_ns, lambda: self.wake(device))

    def note_stay(self) -> None:
        """Record the stay since the last call under the settings in force until now."""
        if self.running is not None:
            for usage in (self.running.usage[-1], self.running.tenant.usage[-1]):
                usage.stays.append((self.stay_start, self.now))
            self.stay_start = self.now

    def note_reserves(self) -> None:
        """Record the use of reservations since the last pick; only one can have been used."""
        for tenant in self.tenants:
            latency_ns = tenant.core.c.stats.latency_ns
            used = latency_ns - tenant.latency_ns
            tenant.latency_ns = latency_ns
            if used:
                tenant.reserve_usage[-1].stays.append((self.now - used, self.now))

    # ---- what happens

    def is_refused(self, call: Callable[[], object]) -> bool:
        """Make the call. It may be refused only for promising more than the engine can keep, or for what the policy
        does not sell."""
        engine = self.story.engine
        fault = Field.NONE
        try:
            call()
        except ParameterError as error:
            fault = error.field
        reasons = (Field.CAP, Field.MODE, Field.PLACES) if engine.policy else (Field.RESERVE, Field.WEIGHT)
        assert not fault or fault in reasons
        assert not fault or engine.policy or engine.reserve_limit_permille
        return bool(fault)

    def wake(self, device: Device) -> None:
        if device.core in self.devices:
            self.say(device, device.work.item(device.done))

    def say(self, device: Device, item: ItemInfo | None) -> None:
        device.is_awake = True
        if item is None:
            self.core.wake(device.core, self.clock())
        else:
            self.core.announce(device.core, item, self.clock())
        if self.model is not None and device.model is not None:
            self.model.wake(device.model, self.now, item)

    def end_request(self, device: Device) -> None:
        self.core.end_request(device.core, self.clock())
        if self.model is not None and device.model is not None:
            self.model.end_request(device.model, self.now)

    def item_done(self, device: Device, next_item: ItemInfo | None) -> None:
        device.is_awake = next_item is not None
        self.core.item_done(device.core, self.clock(), next_item=next_item)
        if self.model is not None and device.model is not None:
            self.model.item_done(device.model, self.now, next_item)

    def sleep(self, device: Device) -> None:
        device.is_awake = False
        self.core.sleep(device.core, self.clock())
        if self.model is not None and device.model is not None:
            self.model.sleep(device.model, self.now)

    def arrive(self, tenant: Tenant) -> None:
        name = f"t{next(self.names)}"
        params = group_params(tenant)
        if self.is_refused(lambda: self.core.add_group(params, self.clock(), name=name)):
            return
        core = self.core.groups[-1]
        model = self.model.add_group(name, params, self.now) if self.model else None
        live = LiveTenant(name, core, model, params)
        live.note_reserve()
        live.usage.append(Usage(tenant.cap, params.burst_ns or params.timeslice_ns))
        self.tenants.append(live)
        for one in tenant.slices:
            self.open(live, one)

    def open(self, tenant: LiveTenant, one: SliceOf) -> None:
        name = f"{tenant.name}.s{next(self.names)}"
        params = slice_params(one.weight, one.cap)
        if self.is_refused(lambda: self.core.add_slice(tenant.core, params, self.clock(), name=name)):
            return
        core = tenant.core.slices[-1]
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
        if self.is_refused(lambda: self.core.update_group(tenant.core, params, self.clock())):
            return
        if self.model is not None and tenant.model is not None:
            self.model.update_group(tenant.model, params, self.now)
        old, tenant.params = tenant.params, params
        self.note_stay()
        self.note_reserves()
        tenant.note_reserve()
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
        elif isinstance(event, NewReserve):
            self.update(tenant, with_latency(tenant.params, event.latency))
        elif isinstance(event, OpenSlice):
            self.open(tenant, event.slice)
        elif isinstance(event, Depart):
            self.depart(tenant)
        elif tenant.devices:
            self.happen_to_slice(tenant, event)

    def happen_to_slice(self, tenant: LiveTenant, event: Event) -> None:
        assert isinstance(event, CloseSlice | Claim | EndRequest | Withdraw | ChangeSlice)
        device = tenant.devices[event.which % len(tenant.devices)]
        if isinstance(event, CloseSlice):
            self.close(device)
        elif isinstance(event, Claim):
            self.say(device, event.item)
        elif isinstance(event, EndRequest):
            self.end_request(device)
        elif isinstance(event, Withdraw):
            self.sleep(device)
            self.at(self.now + event.nap_ns, lambda: self.wake(device))
        else:
            self.note_stay()
            params = slice_params(event.weight, event.cap)
            if self.is_refused(lambda: self.core.update_slice(device.core, params, self.clock())):
                return
            device.params = params
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
        engine = self.core.stats
        assert engine.wall_ns == self.now
        charged = sum(tenant.core.run_ns for tenant in self.tenants) + self.departed_ns
        assert engine.idle_ns + charged == engine.wall_ns
        if self.model is not None:
            assert engine.idle_ns == self.model.idle_ns
            for tenant in self.tenants:
                assert tenant.model is not None
                stats = tenant.core.c.stats
                assert tenant.core.run_ns == tenant.model.run_ns
                for name in ("latency_ns", "hold_ns", "inversion_ns", "ghost_ns"):
                    assert getattr(stats, name) == getattr(tenant.model, name), name
                for device in tenant.devices:
                    assert device.model is not None
                    assert device.core.run_ns == device.model.run_ns

    def check_lags(self) -> None:
        assert self.model is not None
        now = self.clock()
        models = [tenant.model for tenant in self.tenants if tenant.model is not None]
        lags = self.model.lags(self.model.level, [model.party for model in models])
        for tenant, model, (exact, slack) in zip(self.tenants, models, lags, strict=True):
            lag = self.core.group_lag_ns(tenant.core, now)
            assert abs(lag - exact) <= slack, f"{tenant.name}: lag {lag}, exactly {float(exact)}"
            parties = [device.model.party for device in tenant.devices if device.model is not None]
            for device, (inner, inner_slack) in zip(tenant.devices, self.model.lags(model.level, parties), strict=True):
                lag = self.core.slice_lag_ns(device.core, now)
                assert abs(lag - inner) <= inner_slack, device.core.name
