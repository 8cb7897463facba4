# SPDX-License-Identifier: Apache-2.0
"""When groups with requests have work on an ideal engine, which is divisible without limit and loses no time.

All work of a request is present from its arrival on, and is done at the rate that its group is due at each moment
(generalized processor sharing, Parekh and Gallager, 1993). All groups of a class have the same rate, so it is enough to
count, per class, how much work one group of it has received.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vgpumgr.sim.played import Asked, Intervals

ENDLESS = float("inf")
# Work below this is a rounding error, too short to be visible.
_NOTHING_NS = 1e-3

Rates = Callable[[tuple[int, ...]], Sequence[float]]
"""Maps the numbers of groups with work, one for each class, to the rates of one group of each class."""


@dataclass(frozen=True)
class Span:
    """A time in which every group keeps its class. `classes`: the class of each present group, by name."""

    start_ns: int
    end_ns: int
    classes: Mapping[str, int]
    rates: Rates


@dataclass
class _State:
    """`left`: remaining work of each group that has some. `since`: when that group's work began."""

    left: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    busy: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def done(self, name: str, at_ns: float) -> None:
        del self.left[name]
        self.busy.setdefault(name, []).append((self.since.pop(name), at_ns))


def busy(spans: Sequence[Span], asked: Mapping[str, Asked]) -> dict[str, Intervals]:
    """Return when each group had work. Work of groups that are not present is dropped."""
    arrivals = sorted(
        (float(at_ns), name, float(work_ns))
        for name, requests in asked.items()
        for at_ns, work_ns in zip(*requests, strict=True)
    )
    state = _State()
    position = 0
    for span in spans:
        position = _play(span, arrivals, position, state)
        for name in [name for name in state.left if name not in span.classes]:
            state.done(name, span.start_ns)
    for name in list(state.left):
        state.done(name, spans[-1].end_ns)
    return {name: _whole(state.busy.get(name, [])) for name in asked}


def _play(span: Span, arrivals: Sequence[tuple[float, str, float]], position: int, state: _State) -> int:
    """Simulate one span and return the position of the next arrival."""
    counts = [0] * (max(span.classes.values(), default=-1) + 1)
    received = [0.0] * len(counts)
    ends: list[list[tuple[float, str]]] = [[] for _ in counts]
    until: dict[str, float] = {}
    for name, left in state.left.items():
        if name in span.classes:
            _add(span.classes[name], name, left, counts, ends, until)
    now = float(span.start_ns)
    while now < span.end_ns:
        rates = span.rates(tuple(counts))
        then = float(span.end_ns)
        if position < len(arrivals):
            then = min(then, max(arrivals[position][0], now))
        for one, rate in enumerate(rates):
            if ends[one] and rate > 0:
                then = min(then, now + max(ends[one][0][0] - received[one], 0.0) / rate)
        for one, rate in enumerate(rates):
            received[one] += rate * (then - now)
        now = then
        for one, queue in enumerate(ends):
            while queue and queue[0][0] <= received[one] + _NOTHING_NS:
                _, name = heapq.heappop(queue)
                if until[name] > received[one] + _NOTHING_NS:  # more work has arrived since
                    heapq.heappush(queue, (until[name], name))
                    continue
                counts[one] -= 1
                del until[name]
                state.done(name, now)
        while position < len(arrivals) and arrivals[position][0] <= now < span.end_ns:
            _, name, work = arrivals[position]
            position += 1
            if name not in span.classes:
                continue
            one = span.classes[name]
            if name in until:
                until[name] += work
            else:
                state.left[name], state.since[name] = work, now
                _add(one, name, received[one] + work, counts, ends, until)
    for name, end in until.items():
        state.left[name] = end - received[span.classes[name]]
    return position


def _add(
    one: int,
    name: str,
    end: float,
    counts: list[int],
    ends: list[list[tuple[float, str]]],
    until: dict[str, float],
) -> None:
    counts[one] += 1
    until[name] = end
    heapq.heappush(ends[one], (end, name))


def _whole(intervals: list[tuple[float, float]]) -> Intervals:
    """Return the intervals in whole nanoseconds, without those that become empty."""
    found = np.rint(np.array(intervals, dtype=np.float64).reshape(-1, 2)).astype(np.int64)
    return found[found[:, 1] > found[:, 0]]
