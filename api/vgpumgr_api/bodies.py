# SPDX-License-Identifier: Apache-2.0
"""How much of requests' bodies is in memory: one is small, but each connection may bring one and be slow about it."""

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal

RETRY_AFTER_S = 1


class Bodies:
    """Belongs to the event loop of one server. `most_bytes`: of all that are held at once."""

    def __init__(self, most_bytes: int) -> None:
        self._left_bytes = most_bytes

    def take(self, size_bytes: int) -> None:
        """Counts a piece. Raises Refusal(API_FULL) if there is no room, and counts nothing."""
        if size_bytes > self._left_bytes:
            raise Refusal(
                Code.API_FULL,
                "too much is being sent to this process at once; try again, or another replica",
                retry_after_s=RETRY_AFTER_S,
            )
        self._left_bytes -= size_bytes

    def give(self, size_bytes: int) -> None:
        """So many of those are no longer held."""
        self._left_bytes += size_bytes
