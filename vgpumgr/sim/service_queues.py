# SPDX-License-Identifier: Apache-2.0
"""Requests of services in queues, executed one at a time: FIFO, time slices, deadlines, shedding."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence

from vgpumgr.policy.edf import FLOOR_PERMILLE, Ledger, Request, moore_hodgson, plan
from vgpumgr.sim.services import Call, Engine, Served, Service


def fifo(services: Sequence[Service], calls: Sequence[Call], engine: Engine) -> Served:
    del engine
    now = 0.0
    for call in calls:
        now = max(now, call.arrival_ns) + call.left_ns
        call.left_ns, call.end_ns = 0.0, now
    return Served(services, calls)


def timeslice(services: Sequence[Service], calls: Sequence[Call], engine: Engine) -> Served:
    queues: list[deque[Call]] = [deque() for _ in services]
    coming = deque(calls)
    now, turn, last = 0.0, 0, -1
    while coming or any(queues):
        if not any(queues):
            now = max(now, coming[0].arrival_ns)
        while coming and coming[0].arrival_ns <= now:
            queues[coming[0].service].append(coming.popleft())
        while not queues[turn]:
            turn = (turn + 1) % len(queues)
        now += engine.switch_ns if last != turn else 0
        last, slice_ns = turn, float(engine.timeslice_ns)
        while queues[turn] and slice_ns > 0:
            call = queues[turn][0]
            run_ns = min(slice_ns, call.left_ns)
            now, slice_ns, call.left_ns = now + run_ns, slice_ns - run_ns, call.left_ns - run_ns
            if call.left_ns <= 0:
                call.end_ns = now
                queues[turn].popleft()
        turn = (turn + 1) % len(queues)
    return Served(services, calls)


def edf(services: Sequence[Service], calls: Sequence[Call], engine: Engine) -> Served:
    ready: list[tuple[float, int, Call]] = []
    coming = deque(calls)
    now = 0.0
    while coming or ready:
        if not ready:
            now = max(now, coming[0].arrival_ns)
        _take(coming, now, lambda call: heapq.heappush(ready, (call.deadline_ns, call.number, call)))
        call = ready[0][2]
        now += _run(call, now, coming, engine)
        if call.left_ns <= 0:
            call.end_ns = now
            heapq.heappop(ready)
    return Served(services, calls)


def edf_shed(
    services: Sequence[Service], calls: Sequence[Call], engine: Engine, *, floor_permille: int | None = None
) -> Served:
    """EDF with shedding, fair among services if there is a floor. The plan uses the services' mean times."""
    ledger = None if floor_permille is None else Ledger(floor_permille=floor_permille)
    ready: dict[Hashable, Call] = {}
    done: dict[Hashable, float] = {}
    coming = deque(calls)
    now = 0.0

    def arrive(call: Call) -> None:
        ready[call.number] = call
        if ledger is not None:
            ledger.offer(call.service)

    while coming or ready:
        if not ready:
            now = max(now, coming[0].arrival_ns)
        _take(coming, now, arrive)
        queue = [
            Request(
                key=call.number,
                service=call.service,
                deadline_ns=int(call.deadline_ns),
                left_ns=max(1, int(services[call.service].work_ns - done.get(call.number, 0))),
            )
            for call in ready.values()
        ]
        planned = moore_hodgson(queue, math.ceil(now)) if ledger is None else plan(queue, math.ceil(now), ledger)
        for request in planned.drop:
            del ready[request.key]
        for request in planned.run:
            call = ready[request.key]
            ran_ns = _run(call, now, coming, engine)
            now += ran_ns
            done[call.number] = done.get(call.number, 0) + ran_ns
            if call.left_ns <= 0:
                call.end_ns = now
                del ready[call.number]
                if ledger is not None and now > call.deadline_ns:
                    ledger.lose(call.service)
            if coming and coming[0].arrival_ns <= now:
                break
    return Served(services, calls)


def edf_fair(services: Sequence[Service], calls: Sequence[Call], engine: Engine) -> Served:
    return edf_shed(services, calls, engine, floor_permille=FLOOR_PERMILLE)


def _take(coming: deque[Call], now: float, arrive: Callable[[Call], None]) -> None:
    while coming and coming[0].arrival_ns <= now:
        arrive(coming.popleft())


def _run(call: Call, now: float, coming: deque[Call], engine: Engine) -> float:
    """Run `call` to its end, or to the end of the present kernel at the next arrival. Return the time taken."""
    run_ns = call.left_ns
    if coming and coming[0].arrival_ns < now + run_ns:
        kernels = math.ceil((coming[0].arrival_ns - now) / engine.kernel_ns)
        run_ns = min(run_ns, max(1, kernels) * engine.kernel_ns)
    call.left_ns -= run_ns
    return run_ns
