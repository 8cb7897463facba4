# SPDX-License-Identifier: Apache-2.0
"""Tracks permits from a VM's start until its slices are open.

The kernel does not say why a permit is gone. A permit that is gone before its time is over was used. A permit that is
gone when its time is over, and whose slice is not open, has expired. Threads may share a `Permits`.
"""

import threading
from collections.abc import Callable, Iterable
from uuid import UUID

from vgpumgr_agent.backends import Observed

PERMIT_S = 120.0
"""How long a permit of the kernel is valid unless it is renewed."""

_ROUNDED_S = 1.0
"""The kernel reports whole seconds, so the remaining time may be up to this much too long."""


class Permits:
    """Permits that were given, and neither used nor expired as far as is known."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s`: a monotonic clock."""
        self._now_s = now_s
        self._guard = threading.Lock()
        self._ends_s: dict[UUID, float] = {}

    def given(self, uuids: Iterable[UUID]) -> None:
        """Record that a starting VM has just got permits for these slices."""
        with self._guard:
            self._ends_s |= dict.fromkeys(uuids, self._now_s() + PERMIT_S)

    def over(self, uuids: Iterable[UUID]) -> None:
        """Forget the permits of these slices."""
        with self._guard:
            for uuid in uuids:
                self._ends_s.pop(uuid, None)

    def expired(self, observed: Observed) -> list[UUID]:
        """Return the slices whose permit expired unused since the last look, each once.

        A permit from before the agent's restart is tracked from the first look that sees it.
        """
        ended = []
        with self._guard:
            for uuid, each in observed.slices.items():
                if each.recorded and each.permit_s and not each.open:
                    self._ends_s.setdefault(uuid, self._now_s() + each.permit_s)
            for uuid, ends_s in list(self._ends_s.items()):
                found = observed.slices.get(uuid)
                over = self._now_s() >= ends_s - _ROUNDED_S
                if found is not None and found.permit_s and not found.open:
                    self._ends_s[uuid] = self._now_s() + found.permit_s
                elif found is not None or over:  # a look that began before the slice was created does not see it
                    del self._ends_s[uuid]
                    if over and found is not None and not found.open:
                        ended.append(uuid)
        return ended
