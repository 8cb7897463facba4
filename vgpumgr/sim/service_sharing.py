# SPDX-License-Identifier: Apache-2.0
"""Services that share the engine, each at its own rate. Each serves its requests first come first served."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from vgpumgr.policy.reserve_controller import (
    PERIOD_NS,
    PPM,
    Bounds,
    Measured,
    ReserveController,
    ServiceTimes,
)
from vgpumgr.sim.services import SECOND_NS, Call, Engine, Served, Service

# The least number of requests for a 95th percentile.
TAIL_REQUESTS = 40


class _Sharing:
    """Generalized processor sharing: the services that have a request share the engine by weight."""

    def __init__(self, services: Sequence[Service], calls: Sequence[Call], *, interference: float) -> None:
        self.services = services
        self.interference = interference
        self.coming = deque(calls)
        self.queues: list[deque[Call]] = [deque() for _ in services]
        self.weights = [PPM // len(services)] * len(services)
        self.dropping = False
        self.arrived = [0] * len(services)
        self.ended: list[deque[tuple[float, float]]] = [deque() for _ in services]
        self.started_ns = [0.0] * len(services)
        self.times = [ServiceTimes() for _ in services]
        self.now = 0.0

    def run_until(self, until_ns: float) -> None:
        while self.now < until_ns:
            active = [number for number, queue in enumerate(self.queues) if queue]
            total = sum(self.weights[number] for number in active)
            speed = 1.0 - (self.interference if len(active) > 1 else 0.0)
            rates = {number: speed * self.weights[number] / total for number in active}
            steps = [self.queues[number][0].left_ns / rate for number, rate in rates.items()]
            if self.coming:
                steps.append(self.coming[0].arrival_ns - self.now)
            if not steps and until_ns == math.inf:
                return
            step = min([*steps, until_ns - self.now])
            self.now += step
            for number, rate in rates.items():
                self.queues[number][0].left_ns -= step * rate
                if self.queues[number][0].left_ns <= 1e-3:
                    self._end(number)
            while self.coming and self.coming[0].arrival_ns <= self.now:
                call = self.coming.popleft()
                self.arrived[call.service] += 1
                self.queues[call.service].append(call)
                if len(self.queues[call.service]) == 1:
                    self._drop(call.service)

    def _end(self, number: int) -> None:
        call = self.queues[number].popleft()
        call.end_ns = self.now
        self.ended[number].append((self.now, self.now - call.arrival_ns))
        took_ns = max(1, round(self.now - self.started_ns[number]))
        self.times[number].add(batch=1, share_ppm=self.weights[number], took_ns=took_ns)
        self._drop(number)

    def _drop(self, number: int) -> None:
        """Drop requests from the head that would end late. The last request is kept if it could end in time alone."""
        queue, service = self.queues[number], self.services[number]
        while self.dropping and queue:
            alone_ns = service.work_ns
            if len(queue) > 1 and self.times[number].samples:
                alone_ns = self.times[number].predict_ns(batch=1, share_ppm=self.weights[number])
            if self.now + alone_ns <= queue[0].deadline_ns:
                break
            queue.popleft()
            self.ended[number].append((self.now, float(service.qos_ns)))
        self.started_ns[number] = self.now

    def measure(self, number: int) -> Measured:
        """Return the measurement that a controller gets once in each period."""
        ended = self.ended[number]
        while len(ended) > TAIL_REQUESTS and ended[0][0] <= self.now - SECOND_NS:
            ended.popleft()
        requests, self.arrived[number] = self.arrived[number], 0
        times = sorted(took_ns for _, took_ns in ended)
        return Measured(
            requests=requests,
            work_ns=self.services[number].work_ns,
            tail_ns=round(times[int(0.95 * len(times))]) if len(times) >= TAIL_REQUESTS else None,
        )


def shared(services: Sequence[Service], calls: Sequence[Call], engine: Engine) -> Served:
    _Sharing(services, calls, interference=engine.interference).run_until(math.inf)
    return Served(services, calls)


def reserved(services: Sequence[Service], calls: Sequence[Call], engine: Engine) -> Served:
    """Like the core over seconds, the engine splits time exactly, so there is no interference."""
    del engine
    sharing = _Sharing(services, calls, interference=0.0)
    sharing.dropping = True
    controller = ReserveController({number: Bounds(qos_ns=service.qos_ns) for number, service in enumerate(services)})
    history = []
    while sharing.coming or any(sharing.queues):
        now_ppm = controller.reservations_ppm()
        sharing.weights = [now_ppm[number] for number in range(len(services))]
        history.append((sharing.now, tuple(sharing.weights)))
        sharing.run_until(sharing.now + PERIOD_NS)
        controller.step({number: sharing.measure(number) for number in range(len(services))})
    return Served(services, calls, history)
