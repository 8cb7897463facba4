# SPDX-License-Identifier: Apache-2.0
"""Executors from the agent's view: when to restart an executor that ended, and what to report about it.

An executor that ends is restarted at once. If it soon ends again, each pause is longer than the pause before, up to a
minute. Restarts are counted from the agent's start.
"""

import os
import select
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from vgpumgr_agent.backends import Observed

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
STEADY_S = 300.0
"""An executor that has run this long is restarted at once when it ends."""

STARTING_PAUSE_S = 1.0
"""How soon to check whether an executor has become ready."""

ABSENT, STARTING, RUNNING, FAILED = "absent", "starting", "running", "failed"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """State of a slice's executor. `absent`: its GPU's engine needs no executor. `reason`: the last failure.

    `pause_s`: time from the last attempt to the restart of a failed executor. `memory_*`: see `ObservedExecutor`.
    """

    state: str
    restarts: int = 0
    reason: str = ""
    pause_s: int = 0
    memory_used_bytes: int = 0
    memory_bytes: int = 0


@dataclass
class _Tried:
    at_s: float
    pause_s: float


class Executions:
    """Schedules restarts. Used by the agent's main thread only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._tried: dict[UUID, _Tried] = {}
        self._restarts: dict[UUID, int] = {}
        self._reasons: dict[UUID, str] = {}
        self._lacking: frozenset[UUID] = frozenset()

    def due(self, lacking: Mapping[UUID, str]) -> frozenset[UUID]:
        """Return the slices whose executor should be started now, and record the attempt.

        `lacking`: slices without a running executor, with the reason.
        """
        now_s = self._clock()
        self._lacking = frozenset(lacking)
        self._reasons |= {uuid: reason for uuid, reason in lacking.items() if reason}
        due = frozenset(uuid for uuid in lacking if self._wait_s(uuid, now_s) <= 0)
        for uuid in due:
            before = self._tried.get(uuid)
            steady = before is None or now_s - before.at_s >= STEADY_S
            pause_s = FIRST_PAUSE_S if before is None or steady else min(2 * before.pause_s, LONGEST_PAUSE_S)
            self._tried[uuid] = _Tried(now_s, pause_s)
        return due

    def restarted(self, uuid: UUID) -> None:
        """Count a restart."""
        self._restarts[uuid] = self._restarts.get(uuid, 0) + 1

    def failed(self, uuid: UUID, reason: str) -> None:
        """Record that an executor could not be started."""
        self._reasons[uuid] = reason

    def keep_only(self, present: Collection[UUID]) -> None:
        """Forget slices that are gone."""
        self._tried = {uuid: tried for uuid, tried in self._tried.items() if uuid in present}
        self._restarts = {uuid: count for uuid, count in self._restarts.items() if uuid in present}
        self._reasons = {uuid: reason for uuid, reason in self._reasons.items() if uuid in present}

    def standings(self, observed: Observed) -> dict[UUID, Standing]:
        """Return the state of each slice's executor."""
        return {uuid: self._standing(uuid, observed) for uuid in observed.slices}

    def _standing(self, uuid: UUID, observed: Observed) -> Standing:
        if not observed.lends(uuid):
            return Standing(state=ABSENT)
        found = observed.executors.get(uuid)
        reason = (found.reason if found is not None else "") or self._reasons.get(uuid, "")
        state = found.state if found is not None else FAILED
        tried = self._tried.get(uuid) if state == FAILED else None
        return Standing(
            state=state,
            restarts=self._restarts.get(uuid, 0),
            reason=reason,
            pause_s=int(tried.pause_s) if tried is not None else 0,
            memory_used_bytes=found.memory_used_bytes if found is not None else 0,
            memory_bytes=found.memory_bytes if found is not None else 0,
        )

    def look_again_s(self, standings: Mapping[UUID, Standing]) -> float:
        """Return the seconds until an executor next needs attention, or infinity."""
        now_s = self._clock()
        failed = {uuid for uuid, each in standings.items() if each.state == FAILED}
        waits = [self._wait_s(uuid, now_s) for uuid in failed & self._lacking]
        waits += [STARTING_PAUSE_S for each in standings.values() if each.state == STARTING]
        return max(0.0, min(waits, default=float("inf")))

    def _wait_s(self, uuid: UUID, now_s: float) -> float:
        tried = self._tried.get(uuid)
        return 0.0 if tried is None else tried.at_s + tried.pause_s - now_s


class Ends:
    """Calls `ended` soon after any of the watched processes has ended. `follow` and `watch` run in one thread each."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._epoll = select.epoll()
        self._files: dict[int, int] = {}

    def follow(self, pids: Collection[int]) -> None:
        """Watch these processes instead of the previous ones. A process that has ended already is reported too."""
        for pid in self._files.keys() - set(pids):
            os.close(self._files.pop(pid))
        for pid in pids:
            if pid in self._files:
                self._epoll.modify(self._files[pid], select.EPOLLIN | select.EPOLLONESHOT)
                continue
            with suppress(ProcessLookupError):
                self._files[pid] = os.pidfd_open(pid)
                self._epoll.register(self._files[pid], select.EPOLLIN | select.EPOLLONESHOT)

    def watch(self, stop: threading.Event) -> None:
        """Report ends until `stop` is set."""
        while not stop.is_set():
            if self._epoll.poll(1.0):
                self._ended()
