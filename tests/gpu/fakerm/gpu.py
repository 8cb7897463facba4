# SPDX-License-Identifier: Apache-2.0
"""The fake GPU: one runlist of channel groups that take turns, on a clock that only `advance` moves."""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from vgpumgr.gpu.abi import quantised_us

Honour = Literal["yes", "ignore", "clamp"]
DEFAULT_TIMESLICE_US = 1024


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """How the GPU obeys requests. The driver returns OK for all of them."""

    honour: Honour = "yes"
    clamp_us: tuple[int, int] = (2000, 10_000)
    switch_ns: int = 100_000
    # Time that a memory-bound kernel loses when others used the caches in between.
    refill_ns: int = 0
    preempts: bool = True
    # Does a group without work keep its turns to itself?
    caps: bool = False
    # Are kernels preemptible only if somebody has asked for it?
    asks: bool = False
    # Does a group stop when its channels are disabled, and continue when they are enabled again?
    stops: bool = True
    resumes: bool = True
    # Consecutive turns of the oldest group. More than 1 makes the rig itself unfair.
    turns_of_first: int = 1

    def __post_init__(self) -> None:
        if self.honour not in get_args(Honour):
            raise ValueError(f"honour: {self.honour!r} is not one of {', '.join(get_args(Honour))}")
        if self.turns_of_first < 1 or min(self.switch_ns, self.refill_ns) < 0:
            raise ValueError("turns_of_first, switch_ns, refill_ns: at least 1, 0 and 0")


@dataclass
class Kernel:
    number: int
    length_ns: int
    left_ns: int
    memory_bound: bool

    @property
    def under_way(self) -> bool:
        return self.left_ns < self.length_ns


@dataclass
class Group:
    """A channel group with its queue. `noted_us`: the timeslice that the driver reports. `pid`: the owner."""

    index: int
    pid: int
    noted_us: int = DEFAULT_TIMESLICE_US
    timeslice_ns: int = DEFAULT_TIMESLICE_US * 1000
    unpreemptible: bool = False
    # `disabled`: the group's channels are disabled. `stuck`: two such calls came at once.
    disabled: bool = False
    stuck: bool = False
    ran_ns: int = 0
    queue: deque[Kernel] = field(default_factory=deque)
    submitted: int = 0
    done: int = 0
    waiting: list[tuple[int, Callable[[], None]]] = field(default_factory=list)


class Gpu:
    """Work-conserving round robin, unless the behaviour says otherwise."""

    def __init__(self, behaviour: Behaviour, show_time: Callable[[int], None]) -> None:
        """`show_time` receives the time before any other event of that time is reported."""
        self.behaviour = behaviour
        self._show_time = show_time
        self.now_ns = 1_000_000_000
        self._groups: list[Group] = []
        self._made: list[Group] = []
        self._numbers = itertools.count()
        self._sleepers: list[tuple[int, int, Callable[[], None]]] = []
        self._current: Group | None = None
        # The group whose state the engine holds, also while the engine idles.
        self._resident: Group | None = None
        self._slice_ends_ns = 0
        self._switching_until_ns = 0
        self._turns = 1

    def new_group(self, pid: int) -> Group:
        """Groups are ordered by the start of their processes, not by the time of this call."""
        group = Group(index=next(self._numbers), pid=pid, unpreemptible=self.behaviour.asks)
        self._made.append(group)
        bisect.insort(self._groups, group, key=lambda one: (one.pid, one.index))
        return group

    def remove_group(self, group: Group) -> None:
        self._groups.remove(group)
        group.queue.clear()
        if self._current is group:
            self._current = None

    def set_timeslice(self, group: Group, timeslice_us: int) -> None:
        """Takes effect at once: the current turn ends if it has already lasted for the new length."""
        group.noted_us = timeslice_us
        if self.behaviour.honour == "ignore":
            return
        wanted_us = quantised_us(timeslice_us)
        if self.behaviour.honour == "clamp":
            least, most = self.behaviour.clamp_us
            wanted_us = min(max(wanted_us, least), most)
        began_ns = self._slice_ends_ns - group.timeslice_ns
        group.timeslice_ns = wanted_us * 1000
        if self._current is group:
            self._slice_ends_ns = max(began_ns + group.timeslice_ns, self.now_ns)

    def disable(self, group: Group, *, disable: bool) -> None:
        """Takes effect at once, even in the middle of a kernel, which continues when the group is enabled again."""
        group.disabled = disable and self.behaviour.stops
        group.stuck = group.stuck or (not disable and not self.behaviour.resumes)

    @property
    def has_stopped(self) -> bool:
        """Is there work that can only continue after its channels are enabled?"""
        return any(group.queue and (group.disabled or group.stuck) for group in self._groups)

    def progress_ns(self, index: int) -> int:
        """Run time of the group with this index in order of creation, from 0."""
        return self._made[index].ran_ns

    def submit(self, group: Group, length_ns: int, *, memory_bound: bool) -> int:
        self._renew_of_one_alone(group)
        group.submitted += 1
        length_ns = max(length_ns, 1)
        group.queue.append(
            Kernel(number=group.submitted, length_ns=length_ns, left_ns=length_ns, memory_bound=memory_bound)
        )
        return group.submitted

    def _renew_of_one_alone(self, newcomer: Group) -> None:
        """A lone group started a new turn at each turn's end. The newcomer waits for the end of the present turn."""
        current = self._current
        if current is None or current is newcomer or self._must_share(current) or self.now_ns < self._slice_ends_ns:
            return
        missed = (self.now_ns - self._slice_ends_ns) // current.timeslice_ns + 1
        self._slice_ends_ns += missed * current.timeslice_ns

    def wait(self, group: Group, number: int, answer: Callable[[], None]) -> bool:
        """Register a wait. Returns False if there is nothing to wait for."""
        if group.done >= number or number > group.submitted:
            return False
        group.waiting.append((number, answer))
        return True

    def sleep(self, length_ns: int, answer: Callable[[], None]) -> None:
        heapq.heappush(self._sleepers, (self.now_ns + length_ns, next(self._numbers), answer))

    def advance(self) -> bool:
        """Advance to the next event. Returns False if there will never be one."""
        self._choose()
        ends = [self._sleepers[0][0]] if self._sleepers else []
        current = self._current
        running = None
        if current is not None and self.now_ns < self._switching_until_ns:
            ends.append(self._switching_until_ns)
        elif current is not None:
            if current.queue and self._wants(current):
                running = current
                ends.append(self.now_ns + current.queue[0].left_ns)
            if self._must_share(current) and self.now_ns < self._slice_ends_ns:
                ends.append(self._slice_ends_ns)
        if not ends:
            return False
        length_ns = min(ends) - self.now_ns
        self.now_ns = min(ends)
        self._show_time(self.now_ns)
        if running is not None:
            self._run(running, length_ns)
        while self._sleepers and self._sleepers[0][0] <= self.now_ns:
            heapq.heappop(self._sleepers)[2]()
        return True

    def _run(self, group: Group, length_ns: int) -> None:
        kernel = group.queue[0]
        kernel.left_ns -= length_ns
        group.ran_ns += length_ns
        if kernel.left_ns > 0:
            return
        group.queue.popleft()
        group.done = kernel.number
        ready = [answer for number, answer in group.waiting if number <= group.done]
        group.waiting = [entry for entry in group.waiting if entry[0] > group.done]
        for answer in ready:
            answer()

    def _wants(self, group: Group) -> bool:
        if group.disabled or group.stuck:
            # A kernel that cannot be preempted runs to its end.
            return group.unpreemptible and bool(group.queue) and group.queue[0].under_way
        return bool(group.queue) or self.behaviour.caps

    def _must_share(self, group: Group) -> bool:
        return any(other is not group and self._wants(other) for other in self._groups)

    def _choose(self) -> None:
        """End a turn that is over and begin the next one."""
        current = self._current
        if current is not None:
            if self.now_ns < self._switching_until_ns:
                return
            if self._wants(current) and (self.now_ns < self._slice_ends_ns or self._goes_on(current)):
                return
        following = self._next_after(current)
        if following is None:
            self._current = None
            return
        self._turns = 1
        self._switching_until_ns = self.now_ns
        if following is not self._resident:
            self._switching_until_ns += self.behaviour.switch_ns
            if following.queue and following.queue[0].memory_bound:
                following.queue[0].length_ns += self.behaviour.refill_ns
                following.queue[0].left_ns += self.behaviour.refill_ns
        self._slice_ends_ns = self._switching_until_ns + following.timeslice_ns
        self._current = self._resident = following

    def _goes_on(self, group: Group) -> bool:
        """Does the group continue although its timeslice is over?"""
        preempts = self.behaviour.preempts and not group.unpreemptible
        if not preempts and group.queue and group.queue[0].under_way:
            return True
        again = group is self._groups[0] and self._turns < self.behaviour.turns_of_first
        if again or not self._must_share(group):
            self._turns += 1
            self._slice_ends_ns = self.now_ns + group.timeslice_ns
            return True
        return False

    def _next_after(self, current: Group | None) -> Group | None:
        start = self._groups.index(current) + 1 if current in self._groups else 0
        order = self._groups[start:] + self._groups[:start]
        return next((group for group in order if group is not current and self._wants(group)), None)
