# SPDX-License-Identifier: Apache-2.0
"""How long to pause after the API has failed, so that a fleet neither floods it nor returns all at once."""

import random

from vgpumgr_agent.api import ApiRefusedError

RETRY_AFTER_MAX_S = 300.0
"""Longer Retry-After values are cut to this, because a proxy in front of the API may send any value."""


class Pauses:
    """Doubles each pause, randomises it per host, and never goes below the pause that the API asked for."""

    def __init__(self, least_s: float, most_s: float) -> None:
        self._least_s = least_s
        self._most_s = most_s
        self._failures = 0

    def over(self) -> None:
        """Reset the pause, because the API has answered."""
        self._failures = 0

    def after(self, error: Exception) -> float:
        """Return how long to wait after this error."""
        longest_s = min(self._most_s, self._least_s * 2 ** min(self._failures, 10))
        self._failures += 1
        asked_s = error.retry_after_s if isinstance(error, ApiRefusedError) else 0.0
        asked_s = min(asked_s, RETRY_AFTER_MAX_S)
        return max(random.uniform(longest_s / 2, longest_s), asked_s * random.uniform(1, 1.25))
