# SPDX-License-Identifier: Apache-2.0
"""Memory lanes: many jobs stay resident on one device and share scratch memory, without running out of memory.

A job holds its persistent memory (the model) as long as it is resident, and its ephemeral memory (scratch) only during
an iteration. The jobs of a lane take turns, one iteration at a time, so a lane needs

    sum of persistent + max of ephemeral

bytes. The needs of all lanes never add up to more than the device's capacity. Switching between resident jobs copies
nothing. Salus: Yu and Chowdhury, MLSys 2020, sections 3.3 and 4; lanemgr.cpp of its source.

Differences from Salus' source:
- A lane is an account, not an address range: it grows with each job that joins and shrinks with each job that leaves.
- When nothing else fits, lanes are merged. Otherwise lanes that were opened while there was room would keep out jobs
  that the device can hold. Two lanes that are both in an iteration are not merged, because both use their scratch.
- The pending queue ages: no request overtakes one that has waited for `patience_ns`, so big requests never starve.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

PATIENCE_NS = 10_000_000_000


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The memory that one job needs, in bytes."""

    persistent_bytes: int
    ephemeral_bytes: int

    def __post_init__(self) -> None:
        if self.persistent_bytes < 0 or self.ephemeral_bytes < 0:
            raise ValueError(f"negative memory: {self.persistent_bytes} persistent, {self.ephemeral_bytes} ephemeral")

    @property
    def total_bytes(self) -> int:
        return self.persistent_bytes + self.ephemeral_bytes


@dataclass(eq=False)
class Lane(Generic[Key]):
    """Jobs that take turns. `owner` is the job whose iteration is under way."""

    number: int
    members: dict[Key, Demand] = field(default_factory=dict)
    owner: Key | None = None
    persistent_bytes: int = 0
    scratch_bytes: int = 0

    @property
    def needs_bytes(self) -> int:
        return self.persistent_bytes + self.scratch_bytes

    def growth_bytes(self, demand: Demand) -> int:
        """Return how many more bytes the lane needs with one more job."""
        return demand.persistent_bytes + max(0, demand.ephemeral_bytes - self.scratch_bytes)

    def add(self, jobs: Iterable[tuple[Key, Demand]]) -> None:
        self.members.update(jobs)
        self._add_up()

    def remove(self, key: Key) -> None:
        del self.members[key]
        if self.owner == key:
            self.owner = None
        self._add_up()

    def _add_up(self) -> None:
        self.persistent_bytes = sum(demand.persistent_bytes for demand in self.members.values())
        self.scratch_bytes = max((demand.ephemeral_bytes for demand in self.members.values()), default=0)


class Lanes(Generic[Key]):
    """The lanes of one device, and the jobs that wait for its memory.

    Every method that may free memory returns the jobs that it admitted, in order. Times are ns and never go back.
    """

    def __init__(self, *, capacity_bytes: int, max_lanes: int, patience_ns: int = PATIENCE_NS) -> None:
        if capacity_bytes <= 0:
            raise ValueError(f"a capacity of {capacity_bytes} bytes holds nothing")
        if max_lanes < 1:
            raise ValueError(f"max_lanes {max_lanes}: there must be at least one lane")
        if patience_ns < 0:
            raise ValueError(f"patience_ns {patience_ns} is negative")
        self.capacity_bytes = capacity_bytes
        self.max_lanes = max_lanes
        self.patience_ns = patience_ns
        self._lanes: list[Lane[Key]] = []
        self._home: dict[Key, Lane[Key]] = {}
        self._pending: dict[Key, tuple[int, Demand]] = {}
        self._now_ns = 0
        self._opened = 0

    @property
    def lanes(self) -> tuple[Lane[Key], ...]:
        """The lanes. The caller must not change them."""
        return tuple(self._lanes)

    @property
    def pending(self) -> tuple[Key, ...]:
        """The jobs that wait for memory, the longest waiting first."""
        return tuple(self._pending)

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - sum(lane.needs_bytes for lane in self._lanes)

    def lane_of(self, key: Key) -> Lane[Key] | None:
        """Return the job's lane, None while the job is pending. ValueError if the job is unknown."""
        if key not in self._home and key not in self._pending:
            raise ValueError(f"job {key!r} is not here")
        return self._home.get(key)

    def request(self, key: Key, demand: Demand, now_ns: int) -> list[Key]:
        """Admit a job, or let it wait for memory."""
        if key in self._home or key in self._pending:
            raise ValueError(f"job {key!r} is here already")
        if demand.total_bytes > self.capacity_bytes:
            raise ValueError(
                f"job {key!r} needs {demand.total_bytes} bytes, the device has {self.capacity_bytes}: it can never fit"
            )
        self._advance(now_ns)
        self._pending[key] = (now_ns, demand)
        return self._admit()

    def leave(self, key: Key, now_ns: int) -> list[Key]:
        """Remove a job that ends or gives up waiting. Its iteration, if any, ends too."""
        lane = self.lane_of(key)
        self._advance(now_ns)
        if lane is None:
            del self._pending[key]
        else:
            del self._home[key]
            lane.remove(key)
            if not lane.members:
                self._lanes.remove(lane)
        return self._admit()

    def begin_iteration(self, key: Key) -> bool:
        """Reserve the lane's scratch memory for one iteration; return False while another job of the lane uses it."""
        lane = self.lane_of(key)
        if lane is None:
            raise ValueError(f"job {key!r} still waits for memory")
        if lane.owner == key:
            raise ValueError(f"job {key!r} is in an iteration already")
        if lane.owner is not None:
            return False
        lane.owner = key
        return True

    def end_iteration(self, key: Key, now_ns: int) -> list[Key]:
        """Release the lane's scratch memory."""
        lane = self.lane_of(key)
        if lane is None or lane.owner != key:
            raise ValueError(f"job {key!r} is in no iteration")
        self._advance(now_ns)
        lane.owner = None
        return self._admit()

    def _advance(self, now_ns: int) -> None:
        if now_ns < self._now_ns:
            raise ValueError(f"time goes back from {self._now_ns} to {now_ns} ns")
        self._now_ns = now_ns

    def _admit(self) -> list[Key]:
        admitted = []
        for key, (since_ns, demand) in list(self._pending.items()):
            lane = self._place(demand)
            if lane is not None:
                del self._pending[key]
                lane.add([(key, demand)])
                self._home[key] = lane
                admitted.append(key)
            elif self._now_ns - since_ns >= self.patience_ns:
                break
        return admitted

    def _place(self, demand: Demand) -> Lane[Key] | None:
        """Choose a new lane, else the existing lane that grows least, else merge lanes until the job fits."""
        free = self.free_bytes
        if len(self._lanes) < self.max_lanes and demand.total_bytes <= free:
            self._opened += 1
            self._lanes.append(Lane(self._opened))
            return self._lanes[-1]
        fitting = [lane for lane in self._lanes if lane.growth_bytes(demand) <= free]
        if fitting:
            return min(fitting, key=lambda lane: (lane.growth_bytes(demand), lane.scratch_bytes, lane.number))
        return self._merge_for(demand, free)

    def _merge_for(self, demand: Demand, free_bytes: int) -> Lane[Key] | None:
        """Merge lanes until the job fits; return None if it cannot fit.

        Merging two lanes saves the smaller of their scratch memories. So merging the lanes with the largest scratch
        first keeps the most lanes.
        """
        scratch = max([demand.ephemeral_bytes, *(lane.scratch_bytes for lane in self._lanes)])
        if sum(lane.persistent_bytes for lane in self._lanes) + demand.persistent_bytes + scratch > self.capacity_bytes:
            return None
        chosen: list[Lane[Key]] = []
        saved_bytes = 0
        for lane in sorted(self._lanes, key=lambda lane: (-lane.scratch_bytes, lane.number)):
            if lane.owner is not None and any(other.owner is not None for other in chosen):
                continue
            saved_bytes += lane.scratch_bytes if chosen else 0
            chosen.append(lane)
            if chosen[0].growth_bytes(demand) <= free_bytes + saved_bytes:
                return self._merge(chosen)
        return None

    def _merge(self, lanes: list[Lane[Key]]) -> Lane[Key]:
        into, *others = lanes
        for lane in others:
            into.add(lane.members.items())
            into.owner = lane.owner if into.owner is None else into.owner
            self._home.update(dict.fromkeys(lane.members, into))
            self._lanes.remove(lane)
        return into
