# SPDX-License-Identifier: Apache-2.0
"""For how long orphans stay: the API may yet name them, and nothing is lost by waiting."""

from collections.abc import Callable

from vgpumgr_agent.reconcile import Orphans

GRACE_S = 300.0


class Grace:
    """Since when each orphan has been one, without a break. Not kept across starts: it then begins anew."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s`: a clock that nobody sets."""
        self._now_s = now_s
        self._since_s: dict[object, float] = {}

    def overdue(self, found: Orphans) -> Orphans:
        """Return which of all orphans of this moment have been orphans for GRACE_S."""
        now_s = self._now_s()
        self._since_s = {each: self._since_s.get(each, now_s) for each in (*found.slices, *found.groups)}
        late = {each for each, since_s in self._since_s.items() if now_s - since_s >= GRACE_S}
        return Orphans(slices=found.slices & late, groups=found.groups & late)
