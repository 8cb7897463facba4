# SPDX-License-Identifier: Apache-2.0
"""How long to leave the API alone after it has failed, so that a fleet neither hammers it nor comes back as one."""

import random

from vgpumgr_agent.api import ApiRefusedError

RETRY_AFTER_MAX_S = 300.0
"""Whatever stands before the API and wants more than this is not believed."""


class Pauses:
    """Twice as long each time, never the same on two hosts, and never less than the API has asked for."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = least_s
        self._most_s = most_s
        self._failures = 0

    def over(self) -> None:
        """Begin anew: it has answered."""
        self._failures = 0

    def after(self, error: Exception) -> float:
        """Return how long to wait now that this has happened."""
        longest_s = min(self._most_s, self._least_s * 2 ** min(self._failures, 10))
        self._failures += 1
        asked_s = error.retry_after_s if isinstance(error, ApiRefusedError) else 0.0
        asked_s = min(asked_s, RETRY_AFTER_MAX_S)
        return max(random.uniform(longest_s / 2, longest_s), asked_s * random.uniform(1, 1.25))
