# SPDX-License-Identifier: Apache-2.0
"""An arbiter with simulated children and gates. Everything happens in virtual time.

The children's side of the lease protocol is the product's code (executor/child/lease_client.c). Their computing is
simulated. A `Rig` checks that children of two tenants never compute at the same time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.compute.arbiter_native import ffi, lib

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000
NEVER = 2**64 - 1
LENT, RECALLED, EXPIRED = 1, 2, 3

# The next step of a program: compute for a duration, or do something else for a duration.
Compute = tuple[str, int]
Program = Iterable[Compute]


def backlog(kernel_ns: int) -> Iterator[Compute]:
    """A program that always has work."""
    return itertools.repeat(("compute", kernel_ns))


def eager(kernel_ns: int, pause_ns: int, *, times: int | None = None) -> Iterator[Compute]:
    """A program that waits for each kernel and then pauses."""
    pair = [("compute", kernel_ns), ("pause", pause_ns)]
    return itertools.chain.from_iterable(itertools.repeat(pair) if times is None else itertools.repeat(pair, times))


@dataclass(kw_only=True)
class Delays:
    """`wake_ns`: from wake-up until the child runs. `message_ns`: of a datagram. `gate_ns`: of a gate operation."""

    wake_ns: int = 20 * US
    message_ns: int = 10 * US
    gate_ns: int = 50 * US


class Child:
    """One process of a tenant. `width`: processors that its kernels use. `deaf`: computes even without a lease."""

    def __init__(self, rig: Rig, tenant: Tenant, program: Program, *, width: int = 2, deaf: bool = False) -> None:
        self.rig = rig
        self.tenant = tenant
        self.program = iter(program)
        self.width = width
        self.deaf = deaf
        self.c: Any = ffi.new("struct vgpu_stream *")
        self.machine: Any = ffi.new("struct vgpu_lease_client *")
        self.pages: Any = ffi.new("struct pages *")
        self.queued: int | None = None
        self.left_ns: int | None = None
        self.since_ns = 0
        self.finish_event: list[Any] | None = None
        self.wake_pending = False
        self.done_ns = 0
        self.kernels = 0
        self.processor_ns = 0
        self.asked_at = 0
        self.latencies: list[int] = []
        self.ended = False

    # ---- the program

    def advance(self) -> None:
        """Take the program's next step if that is possible now."""
        if self.queued is not None or self.ended:
            return
        step = next(self.program, None)
        if step is None:
            self.ended = True
        elif step[0] == "compute":
            self.queued = step[1]
            self.asked_at = self.rig.now
        else:
            self.rig.at(self.rig.now + step[1], self.resume)

    def resume(self) -> None:
        if self not in self.tenant.children:
            return
        self.advance()
        self.run()

    # ---- the child's side of the protocol

    def see(self) -> None:
        page = self.tenant.page
        self.pages.wake, self.pages.lease = page.wake, page.lease
        self.pages.begun_ns, self.pages.expires_ns = page.begun_ns, page.expires_ns

    def operate(self, operation: int, flags: int = 0) -> int:
        self.see()
        result = lib.operate(self.machine, self.pages, operation, self.rig.now, flags)
        if self.pages.sends:
            request = ffi.new("struct vgpu_stream_request *", self.pages.request)
            self.rig.at(self.rig.now + self.rig.delays.message_ns, lambda: self.rig.request(self, request))
        return int(result)

    def run(self) -> None:
        """Do everything that is possible now."""
        if self.tenant.frozen or self.tenant.rig is None:
            return
        if self.deaf:
            if self.left_ns is None and self.queued is not None:
                self.submit()
            return
        while True:
            need = lib.vgpu_lease_need(
                self.machine, self.queued is not None, self.left_ns is not None, self.tenant.page.wake
            )
            if need == lib.VGPU_LEASE_NEED_SLEEP:
                return
            if need == lib.VGPU_LEASE_NEED_START:
                self.operate(lib.VGPU_LEASE_START)
            elif need == lib.VGPU_LEASE_NEED_CHECK:
                if self.left_ns is not None:
                    return  # one kernel at a time
                if self.operate(lib.VGPU_LEASE_CHECK) == lib.VGPU_LEASE_GO:
                    self.submit()
            elif need == lib.VGPU_LEASE_NEED_DRY:
                self.operate(lib.VGPU_LEASE_DRY)
            else:
                self.operate(lib.VGPU_LEASE_STOP, flags=1 if self.queued is not None else 0)

    def submit(self) -> None:
        self.left_ns, self.queued = self.queued, None
        self.execute()

    # ---- the accelerator

    def execute(self) -> None:
        """Run the current kernel until it ends or the child is frozen."""
        if self.left_ns is None or self.finish_event is not None:
            return
        self.since_ns = self.rig.now
        self.rig.computing(self)
        self.finish_event = self.rig.at(self.rig.now + self.left_ns, self.finish)

    def account(self) -> None:
        if self.left_ns is None or self.finish_event is None:
            return
        ran_ns = self.rig.now - self.since_ns
        self.since_ns = self.rig.now
        self.left_ns -= ran_ns
        self.done_ns += ran_ns
        self.processor_ns += ran_ns * self.width

    def pause(self) -> None:
        self.account()
        if self.finish_event is not None:
            self.finish_event[-1] = None
            self.finish_event = None

    def finish(self) -> None:
        self.account()
        self.left_ns = None
        self.finish_event = None
        self.kernels += 1
        self.latencies.append(self.rig.now - self.asked_at)
        self.advance()
        self.run()

    def woken(self) -> None:
        if self.wake_pending:
            return
        self.wake_pending = True
        self.rig.at(self.rig.now + self.rig.delays.wake_ns, self.wake)

    def wake(self) -> None:
        self.wake_pending = False
        if self in self.tenant.children:
            self.run()


@dataclass
class Page:
    wake: int = 0
    lease: int = 0
    begun_ns: int = 0
    expires_ns: int = 0


class Tenant:
    """A tenant with its lease page and its gate."""

    def __init__(self, rig: Rig, name: str) -> None:
        self.rig = rig
        self.name = name
        self.c: Any = ffi.new("struct vgpu_party *")
        self.group: Any = ffi.new("struct vgpu_group *")
        self.slice: Any = ffi.new("struct vgpu_slice *")
        self.page = Page()
        self.children: list[Child] = []
        self.frozen = False
        self.gate_works = True
        self.asked_to_close = 0
        self.lost = False
        self.past_processor_ns = 0
        self.published = 0
        self.requests = 0

    @property
    def charged_ns(self) -> int:
        lib.vgpu_arbiter_settle(self.rig.c, self.rig.now)
        return int(self.group.stats.run_ns)

    @property
    def stats(self) -> Any:
        lib.vgpu_arbiter_settle(self.rig.c, self.rig.now)
        return self.c.stats

    @property
    def done_ns(self) -> int:
        for child in self.children:
            child.account()
        return sum(child.done_ns for child in self.children)

    def gate(self, close: bool, sequence: int) -> None:
        if close:
            self.asked_to_close = sequence
        if not self.gate_works:
            return
        rig = self.rig
        rig.at(rig.now + rig.delays.gate_ns, lambda: self.gate_done(close, sequence))

    def gate_done(self, close: bool, sequence: int) -> None:
        rig = self.rig
        for child in self.children:
            child.account()
        if close != self.frozen:
            self.frozen = close
            for child in self.children:
                if close:
                    child.pause()
                else:
                    child.execute()
                    child.run()
        processor_ns = self.past_processor_ns + sum(child.processor_ns for child in self.children)
        rig.at(rig.now + rig.delays.message_ns, lambda: self.answer(sequence, processor_ns))

    def answer(self, sequence: int, processor_ns: int) -> None:
        lib.vgpu_arbiter_gate_answer(self.rig.c, self.c, sequence, True, processor_ns, self.rig.now)


@dataclass
class Rig:
    """One accelerator. `watch`: settings of watch.h; the watch is off without them."""

    max_chunk_ns: int = 5 * MS
    min_chunk_ns: int = 100 * US
    switch_cost_ns: int = 0
    reserve_limit_permille: int = 500
    grace_ns: int = 1 * MS
    watch: dict[str, int] = field(default_factory=dict)
    delays: Delays = field(default_factory=Delays)

    def __post_init__(self) -> None:
        self.now = 0
        self.events: list[list[Any]] = []
        self.order = itertools.count()
        self.tenants: dict[Any, Tenant] = {}
        self.slices: dict[Any, Tenant] = {}
        self.streams: dict[Any, Child] = {}
        self.armed_ns = NEVER
        self.timers = 0
        self.overlaps: list[tuple[int, str, str]] = []
        self.sched: Any = ffi.new("struct vgpu_sched *")
        self.c: Any = ffi.new("struct vgpu_arbiter *")
        assert lib.vgpu_sched_init(self.sched, self.params(), 0) == lib.VGPU_FIELD_NONE
        lib.vgpu_arbiter_init(self.c, self.sched, lib.python_ops(), self.settings(), 0)
        _rigs.append(self)

    def settings(self) -> Any:
        return ffi.new(
            "struct vgpu_arbiter_settings *",
            {"grace_ns": self.grace_ns, "early_ns": 200 * US, "gate_limit_ns": 1 * SECOND, "watch": self.watch},
        )

    def params(self) -> Any:
        return ffi.new(
            "struct vgpu_sched_params *",
            {
                "max_chunk_ns": self.max_chunk_ns,
                "min_chunk_ns": self.min_chunk_ns,
                "switch_cost_ns": self.switch_cost_ns,
                "reserve_limit_permille": self.reserve_limit_permille,
            },
        )

    # ---- tenants and children

    def tenant(self, name: str, *, weight: int = 1, timeslice_ns: int = 5 * MS, **more: int) -> Tenant:
        tenant = Tenant(self, name)
        self.tenants[tenant.c] = tenant
        self.slices[tenant.slice] = tenant
        self.enter(tenant, self.terms(weight, timeslice_ns, more))
        return tenant

    def enter(self, tenant: Tenant, terms: Any, **whole: int) -> None:
        """Add the tenant's group, slice and party. `whole`: fields of the slice."""
        slice_params = ffi.new("struct vgpu_slice_params *", {"weight": 1, **whole})
        with self.change():
            assert not lib.vgpu_group_add(self.sched, tenant.group, terms, self.now)
            assert not lib.vgpu_slice_add(self.sched, tenant.group, tenant.slice, slice_params, self.now)
            lib.vgpu_arbiter_party_add(self.c, tenant.c, tenant.slice, self.now)

    def leave(self, tenant: Tenant) -> None:
        """Remove what `enter` added, and detach the tenant's streams."""
        lib.vgpu_arbiter_party_remove(self.c, tenant.c, self.now)
        with self.change():
            assert not lib.vgpu_slice_remove(self.sched, tenant.slice, self.now)
            assert not lib.vgpu_group_remove(self.sched, tenant.group, self.now)

    def come_back(self, tenant: Tenant, **whole: int) -> None:
        """Add again what `leave` removed, with the streams of the remaining children."""
        self.enter(tenant, self.terms(1, 5 * MS, {}), **whole)
        for child in tenant.children:
            lib.vgpu_arbiter_stream_add(self.c, tenant.c, child.c, child.c.want, self.now)

    @contextmanager
    def change(self) -> Iterator[None]:
        assert lib.vgpu_arbiter_settle(self.c, self.now) == self.now
        yield
        lib.vgpu_arbiter_changed(self.c, self.now)

    def update(self, tenant: Tenant, *, weight: int = 1, timeslice_ns: int = 5 * MS, **more: int) -> int:
        """Return the invalid field, or VGPU_FIELD_NONE."""
        terms = self.terms(weight, timeslice_ns, more)
        with self.change():
            return int(lib.vgpu_group_update(self.sched, tenant.group, terms, self.now))

    @staticmethod
    def terms(weight: int, timeslice_ns: int, more: dict[str, int]) -> Any:
        return ffi.new("struct vgpu_group_params *", {"weight": weight, "timeslice_ns": timeslice_ns, **more})

    def child(self, tenant: Tenant, program: Program, *, width: int = 2, deaf: bool = False) -> Child:
        child = Child(self, tenant, program, width=width, deaf=deaf)
        self.streams[child.c] = child
        tenant.children.append(child)
        lib.vgpu_arbiter_stream_add(self.c, tenant.c, child.c, False, self.now)
        self.at(self.now, child.resume)
        return child

    def remove(self, child: Child) -> None:
        """Kill the child."""
        child.pause()
        child.tenant.children.remove(child)
        child.tenant.past_processor_ns += child.processor_ns
        lib.vgpu_arbiter_stream_remove(self.c, child.c, self.now)

    def remove_tenant(self, tenant: Tenant) -> None:
        for child in list(tenant.children):
            self.remove(child)
        self.leave(tenant)
        del self.tenants[tenant.c]

    @property
    def holder(self) -> Tenant | None:
        found = lib.vgpu_arbiter_holder(self.c)
        return self.tenants[found] if found else None

    # ---- time

    def at(self, when: int, what: Callable[[], None]) -> list[Any]:
        event = [when, next(self.order), what]
        heapq.heappush(self.events, event)
        return event

    def run_until(self, end: int) -> None:
        while True:
            event = self.events[0][0] if self.events else NEVER
            if min(event, self.armed_ns) >= end:
                break
            if self.armed_ns < event:
                self.now = max(self.now, self.armed_ns)
                self.armed_ns = NEVER
                self.timers += 1
                lib.vgpu_arbiter_timer(self.c, self.now)
                continue
            when, _, what = heapq.heappop(self.events)
            self.now = when
            if what is not None:
                what()
        self.now = end

    # ---- events

    def request(self, child: Child, request: Any) -> None:
        child.tenant.requests += 1
        if child in child.tenant.children:
            assert lib.vgpu_arbiter_request(self.c, child.c, request, self.now)

    def computing(self, child: Child) -> None:
        for other in self.tenants.values():
            if other is child.tenant or child.deaf:
                continue
            if any(one.finish_event is not None and not one.deaf for one in other.children):
                self.overlaps.append((self.now, child.tenant.name, other.name))


_rigs: list[Rig] = []


def _owner(tenant: Any) -> Tenant:
    return next(rig.tenants[tenant] for rig in reversed(_rigs) if tenant in rig.tenants)


@ffi.def_extern()  # type: ignore[untyped-decorator]
def on_party(c_slice: Any) -> Any:
    return next(rig.slices[c_slice] for rig in reversed(_rigs) if c_slice in rig.slices).c


@ffi.def_extern()  # type: ignore[untyped-decorator]
def on_publish(c_tenant: Any, lease: Any, wake: bool) -> None:
    tenant = _owner(c_tenant)
    page = tenant.page
    page.begun_ns, page.expires_ns = lease.begun_ns, lease.expires_ns
    page.lease = lease.number << 2 | lease.state
    tenant.published += 1
    if wake:
        page.wake += 1
        for child in tenant.children:
            child.woken()


@ffi.def_extern()  # type: ignore[untyped-decorator]
def on_read(c_stream: Any, view: Any) -> None:
    child = next(rig.streams[c_stream] for rig in reversed(_rigs) if c_stream in rig.streams)
    view.state = child.pages.state
    view.dry_since_ns = child.pages.dry_since_ns
    view.idle_ns = child.pages.idle_ns


@ffi.def_extern()  # type: ignore[untyped-decorator]
def on_gate(c_tenant: Any, close: bool, sequence: int) -> None:
    _owner(c_tenant).gate(close, sequence)


@ffi.def_extern()  # type: ignore[untyped-decorator]
def on_gate_lost(c_tenant: Any) -> None:
    tenant = _owner(c_tenant)
    tenant.lost = True
    tenant.rig.at(tenant.rig.now, lambda: lose(tenant))


def lose(tenant: Tenant) -> None:
    """Kill the tenant's supervisor together with its children, and start another supervisor."""
    tenant.frozen = False
    tenant.gate_works = True
    lib.vgpu_arbiter_gate_reset(tenant.rig.c, tenant.c, tenant.rig.now)
    for child in list(tenant.children):
        tenant.rig.remove(child)
    tenant.past_processor_ns = 0


@ffi.def_extern()  # type: ignore[untyped-decorator]
def on_arm(c_arbiter: Any, at_ns: int) -> None:
    for rig in reversed(_rigs):
        if rig.c == c_arbiter:
            rig.armed_ns = at_ns
            return
