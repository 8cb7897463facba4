# SPDX-License-Identifier: Apache-2.0
"""Paces retries of operations that keep failing."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 60.0


@dataclass
class _Tried:
    at_s: float
    pause_s: float


class Attempts:
    """When each subject was last tried. Each pause is twice as long as the previous pause, up to a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._tried: dict[str, _Tried] = {}

    def due(self, subjects: Collection[str]) -> frozenset[str]:
        """Return the subjects to try now, and record the attempt. Forget subjects that are not in `subjects`."""
        now = self._clock()
        self._tried = {name: tried for name, tried in self._tried.items() if name in subjects}
        due = frozenset(name for name in subjects if self._is_due(name, now))
        for name in due:
            before = self._tried.get(name)
            pause_s = min(2 * before.pause_s, LONGEST_PAUSE_S) if before else FIRST_PAUSE_S
            self._tried[name] = _Tried(now, pause_s)
        return due

    def _is_due(self, name: str, now: float) -> bool:
        tried = self._tried.get(name)
        return tried is None or now - tried.at_s >= tried.pause_s
