# SPDX-License-Identifier: Apache-2.0
"""How long orphans are kept. The API may still name them, and waiting costs nothing."""

from collections.abc import Callable

from vgpumgr_agent.reconcile import Orphans

GRACE_S = 300.0


class Grace:
    """Measures how long each orphan has been an orphan without a break.

    After a restart of the agent the time begins again.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s`: a monotonic clock."""
        self._now_s = now_s
        self._since_s: dict[object, float] = {}

    def overdue(self, found: Orphans) -> Orphans:
        """Return the present orphans that have been orphans for GRACE_S."""
        now_s = self._now_s()
        self._since_s = {each: self._since_s.get(each, now_s) for each in (*found.slices, *found.groups)}
        late = {each for each, since_s in self._since_s.items() if now_s - since_s >= GRACE_S}
        return Orphans(slices=found.slices & late, groups=found.groups & late)
