# SPDX-License-Identifier: Apache-2.0
"""Permits from a VM's start until its slices are open: what became of each that was given.

The kernel does not say why there is no permit any more. One that was there with time left at the last look was used in
between; one whose time was over by then has expired. Threads may share it.
"""

import threading
from collections.abc import Callable, Iterable
from uuid import UUID

from vgpumgr_agent.backends import Observed

PERMIT_S = 120.0
"""For how long the kernel's are good unless they are renewed."""

_ROUNDED_S = 1.0
"""By how much the kernel may say too much, in whole seconds."""


class Permits:
    """Those that were given and of which neither use nor end has been seen."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s`: a clock that never goes back."""
        self._now_s = now_s
        self._guard = threading.Lock()
        self._ends_s: dict[UUID, float] = {}

    def given(self, uuids: Iterable[UUID]) -> None:
        """A VM that starts has just been permitted these."""
        with self._guard:
            self._ends_s |= dict.fromkeys(uuids, self._now_s() + PERMIT_S)

    def over(self, uuids: Iterable[UUID]) -> None:
        """Nobody waits for the use of these any more."""
        with self._guard:
            for uuid in uuids:
                self._ends_s.pop(uuid, None)

    def expired(self, observed: Observed) -> list[UUID]:
        """Return those that ended unused since the last look, each once.

        One that an agent of before gave is watched from the first look that sees it.
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
                elif found is not None or over:  # a look that began before the slice was made does not see it
                    del self._ends_s[uuid]
                    if over and found is not None and not found.open:
                        ended.append(uuid)
        return ended
