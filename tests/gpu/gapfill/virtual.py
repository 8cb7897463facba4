# SPDX-License-Identifier: Apache-2.0
"""Two processes and one GPU on a virtual clock, with the gate between them or another way to share.

The gate is the one that serves real processes (`gate.Gate`). Only clock, GPU and hosts are models. A host launches
kernels one after the other and runs ahead of the GPU until it waits. The GPU executes whole kernels in launch order.
Under `TURNS`, it executes two contexts in turns of 2 ms that cost a switch. A grant and the report of a completed
kernel each take the gate some time. Times are in ns, from 0 on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from tests.gpu.gapfill.gate import MS, US, Client, Gate, GateParams, Role, strict
from vgpumgr.sched.core import ItemInfo

if TYPE_CHECKING:
    from vgpumgr.sim.workloads import Kernels

TURN_NS = 2 * MS
JITTER = 0.05


class Sharing(StrEnum):
    """How the two share. Under strict priority, the other may launch whenever the first has nothing pending."""

    GATE = "gap gate"
    PRIORITY = "strict priority"
    TURNS = "default sharing"
    QUEUE = "one queue"


GATED = (Sharing.GATE, Sharing.PRIORITY)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs that the model assumes. A real run measures them."""

    grant_ns: int = 10 * US
    news_ns: int = 3 * US
    switch_ns: int = 50 * US


@dataclass(frozen=True, kw_only=True)
class Program:
    """Requests of the same kernels. `period_ns`: the interval of requests. With 0, a request begins when the one before
    is done and the host has worked for `think_ns`. `batch_ns`: the most work of consecutive kernels that are asked for
    together.
    """

    kernels: Kernels
    period_ns: int = 0
    think_ns: int = 0
    batch_ns: int = 0


@dataclass(eq=False)
class Item:
    """Kernels that the process `host` launches together."""

    host: Host
    work_ns: list[int]
    left: int = 0


@dataclass(eq=False)
class Kernel:
    item: Item
    left_ns: int


class Clock:
    """Events in order of time, and in insertion order at the same time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when_ns: int, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(when_ns, self.now_ns), self._count, action))

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        self.at(self.now_ns + delay_ns, action)

    def run(self, until_ns: int) -> None:
        while self._events and self._events[0][0] < until_ns:
            self.now_ns, _, action = heapq.heappop(self._events)
            action()
        self.now_ns = until_ns


class Engine:
    """The GPU. Without turns, it executes whole kernels."""

    def __init__(self, clock: Clock, sharing: Sharing, switch_ns: int) -> None:
        self._clock = clock
        self._sharing = sharing
        self._switch_ns = switch_ns if sharing == Sharing.TURNS else 0
        self._ready: dict[Host, deque[Kernel]] = {}
        self._order: deque[Kernel] = deque()
        self._owner: Host | None = None
        self._turn_ends_ns = 0
        self._busy = False

    def launch(self, kernel: Kernel) -> None:
        self._ready.setdefault(kernel.item.host, deque()).append(kernel)
        self._order.append(kernel)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        kernel = self._choose()
        self._busy = kernel is not None
        if kernel is None:
            return
        host = kernel.item.host
        switch_ns = self._switch_ns if self._owner not in (None, host) else 0
        now = self._clock.now_ns + switch_ns
        if self._owner is not host or now >= self._turn_ends_ns:
            self._turn_ends_ns = now + TURN_NS
        self._owner = host
        piece_ns = kernel.left_ns
        if self._sharing == Sharing.TURNS:
            piece_ns = min(piece_ns, self._turn_ends_ns - now)
        self._clock.after(switch_ns + piece_ns, lambda: self._executed(kernel, piece_ns))

    def _choose(self) -> Kernel | None:
        waiting = [queue[0] for queue in self._ready.values() if queue]
        if not waiting:
            return None
        if self._sharing == Sharing.TURNS:
            ended = self._clock.now_ns >= self._turn_ends_ns
            return min(waiting, key=lambda kernel: (kernel.item.host is self._owner) == ended)
        return self._order[0]

    def _executed(self, kernel: Kernel, piece_ns: int) -> None:
        kernel.left_ns -= piece_ns
        host = kernel.item.host
        host.work_ns += piece_ns
        if not kernel.left_ns:
            self._ready[host].popleft()
            self._order.remove(kernel)
            kernel.item.left -= 1
            if not kernel.item.left:
                host.item_done()
            host.kernel_done()
        self._next()


class Host:
    """A process that launches, waits, and repeats. `latencies_ns`: begin and duration of each completed request."""

    def __init__(self, clock: Clock, engine: Engine, role: Role, program: Program, seed: int) -> None:
        self.role = role
        self.work_ns = 0
        self.latencies_ns: list[tuple[int, int]] = []
        self._clock = clock
        self._engine = engine
        self._program = program
        self._random = np.random.default_rng((seed, role == Role.FIRST))
        self._groups = _groups(program)
        self._requests = 0
        self._began_ns = 0
        self._under_way = 0
        self._then: Callable[[], None] | None = None
        self._turnstile: Turnstile | None = None
        clock.at(0, self._begin)

    def pass_through(self, turnstile: Turnstile) -> None:
        """Use this turnstile: ask it before each launch."""
        self._turnstile = turnstile

    def _begin(self) -> None:
        """Begin a request, and draw the deviation of each kernel's duration."""
        kernels = self._program.kernels
        factor = self._random.normal(1, JITTER, len(kernels.work_ns)).clip(0.5, 1.5)
        self._work = np.maximum(kernels.work_ns * factor, 1).astype(np.int64).tolist()
        self._launch = np.maximum(kernels.launch_ns * factor[::-1], 1).astype(np.int64).tolist()
        if self._program.period_ns:
            self._began_ns = self._requests * self._program.period_ns
        else:
            self._began_ns = self._clock.now_ns
        self._requests += 1
        self._go_on(0)

    def _go_on(self, group: int) -> None:
        """Ask for the next kernels and launch them."""
        if group == len(self._groups):
            self._wait(self._end)
            return
        first, last = self._groups[group]
        item = Item(self, self._work[first:last], last - first)
        info = ItemInfo(kernel_id=int(self._program.kernels.kernel_id[last - 1]), more=True)
        if last == len(self._work):
            info = ItemInfo(kernel_id=LAST_KERNEL, more=True)

        def granted() -> None:
            self._launch_from(item, first, last, group)

        if self._turnstile is None:
            granted()
        else:
            self._turnstile.ask(self, info, granted)

    def _launch_from(self, item: Item, at: int, last: int, group: int) -> None:
        def launched() -> None:
            self._under_way += 1
            self._engine.launch(Kernel(item, self._work[at]))
            if at + 1 < last:
                self._launch_from(item, at + 1, last, group)
                return
            sync_ns = int(self._program.kernels.sync_ns[at])
            if sync_ns:
                self._wait(lambda: self._clock.after(sync_ns, lambda: self._go_on(group + 1)))
            else:
                self._go_on(group + 1)

        self._clock.after(self._launch[at], launched)

    def _wait(self, then: Callable[[], None]) -> None:
        if self._under_way:
            self._then = then
        else:
            then()

    def kernel_done(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._then is not None:
            then, self._then = self._then, None
            then()

    def item_done(self) -> None:
        if self._turnstile is not None:
            self._turnstile.done(self)

    def _end(self) -> None:
        now = self._clock.now_ns
        self.latencies_ns.append((self._began_ns, now - self._began_ns))
        if self._program.period_ns:
            self._clock.at(self._requests * self._program.period_ns, self._begin)
        else:
            self._clock.after(self._program.think_ns, self._begin)


LAST_KERNEL = (1 << 20) - 1
"""Identity of a request's last kernels: what follows is the gap between requests."""


def _groups(program: Program) -> list[tuple[int, int]]:
    """First and end index of the kernels that are asked for together. A group never crosses a wait."""
    kernels, groups, first, sum_ns = program.kernels, [], 0, 0
    for at, work_ns in enumerate(kernels.work_ns.tolist()):
        if at > first and sum_ns + work_ns > program.batch_ns:
            groups.append((first, at))
            first, sum_ns = at, 0
        sum_ns += work_ns
        if kernels.sync_ns[at]:
            groups.append((first, at + 1))
            first, sum_ns = at + 1, 0
    if first < len(kernels.work_ns):
        groups.append((first, len(kernels.work_ns)))
    return groups


@dataclass
class Turnstile:
    """The gate on the virtual clock, with the delays of `costs`."""

    clock: Clock
    gate: Gate
    costs: Costs
    _clients: dict[Host, Client] = field(default_factory=dict)
    _waiting: dict[Client, Callable[[], None]] = field(default_factory=dict)
    _tick_at_ns: int | None = None

    def admit(self, host: Host) -> None:
        self._clients[host] = self.gate.attach(host.role.value, host.role, self.clock.now_ns)
        host.pass_through(self)

    def ask(self, host: Host, item: ItemInfo, granted: Callable[[], None]) -> None:
        client = self._clients[host]
        if host.role == Role.OTHER:
            self._waiting[client] = granted
        self.gate.ask(client, item, self.clock.now_ns)
        self._after()
        if host.role == Role.FIRST:
            granted()

    def done(self, host: Host) -> None:
        client = self._clients[host]

        def noticed() -> None:
            self.gate.done(client, self.clock.now_ns)
            self._after()

        self.clock.after(self.costs.news_ns, noticed)

    def _after(self) -> None:
        while self.gate.on_grant:
            self.clock.after(self.costs.grant_ns, self._waiting.pop(self.gate.on_grant.pop(0)))
        wake_at_ns = self.gate.wake_at_ns
        if wake_at_ns is not None and (self._tick_at_ns is None or wake_at_ns < self._tick_at_ns):
            self._tick_at_ns = wake_at_ns
            self.clock.at(wake_at_ns, self._tick)

    def _tick(self) -> None:
        self._tick_at_ns = None
        if self.gate.wake_at_ns is not None and self.clock.now_ns >= self.gate.wake_at_ns:
            self.gate.tick(self.clock.now_ns)
        self._after()


@dataclass(frozen=True, kw_only=True)
class Played:
    """The results of two programs. Latencies, in ns, are of the first's requests that began after the warm-up.
    `other_work_ns` is the other's work after the warm-up, and `inversion_ns` the gate's measured inversion.
    """

    latencies_ns: tuple[int, ...]
    other_work_ns: int
    inversion_ns: int = 0
    grants: int = 0


def play(
    first: Program | None,
    other: Program | None,
    sharing: Sharing,
    *,
    until_ns: int,
    warm_up_ns: int,
    seed: int,
    costs: Costs | None = None,
    params: GateParams | None = None,
) -> Played:
    """Play both programs, or one alone, from an idle GPU on."""
    costs = costs or Costs()
    clock = Clock()
    engine = Engine(clock, sharing, costs.switch_ns)
    wanted = [(Role.FIRST, first), (Role.OTHER, other)]
    hosts = {role: Host(clock, engine, role, program, seed) for role, program in wanted if program is not None}
    turnstile = None
    if sharing in GATED:
        gate_params = params or GateParams()
        gate = Gate(gate_params if sharing == Sharing.GATE else strict(gate_params), 0)
        turnstile = Turnstile(clock, gate, costs)
        for host in hosts.values():
            turnstile.admit(host)
    clock.run(warm_up_ns)
    before_ns = hosts[Role.OTHER].work_ns if other is not None else 0
    clock.run(until_ns)
    latencies = hosts[Role.FIRST].latencies_ns if first is not None else []
    stats = {client.role: turnstile.gate.stats(client) for client in turnstile.gate.clients} if turnstile else {}
    return Played(
        latencies_ns=tuple(length for began, length in latencies if began >= warm_up_ns),
        other_work_ns=hosts[Role.OTHER].work_ns - before_ns if other is not None else 0,
        inversion_ns=stats[Role.FIRST].inversion_ns if Role.FIRST in stats else 0,
        grants=sum(client.granted for client in turnstile.gate.clients) if turnstile else 0,
    )
