# SPDX-License-Identifier: Apache-2.0
"""Limits the bytes of request bodies in memory. Each body is small, but many connections may send bodies slowly.

Most of the memory is for clients whose credential was checked before their body is read. Unauthenticated clients,
including hosts that enrol, have a separate part, and each address has a share of that part. So clients without a
credential cannot exclude those with one.
"""

from collections import Counter

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal

RETRY_AFTER_S = 1

STRANGERS_PART = 16
"""1/16 of the bytes is for unauthenticated clients."""
ADDRESS_PART = 4
"""1/4 of these bytes is for unauthenticated clients of one address."""


class Bodies:
    """Belongs to the event loop of one server. `most_bytes`: the limit for all bodies together."""

    def __init__(self, most_bytes: int) -> None:
        self._strangers_left_bytes = most_bytes // STRANGERS_PART
        self._left_bytes = most_bytes - self._strangers_left_bytes
        self._address_bytes = self._strangers_left_bytes // ADDRESS_PART
        self._by_address: Counter[str] = Counter()

    def take(self, size_bytes: int, stranger: str | None = None) -> None:
        """Counts a piece of a body. Raises Refusal(API_FULL) and counts nothing if there is no room.

        `stranger`: the address of an unauthenticated client; None for an authenticated one.
        """
        if size_bytes > self._room(stranger):
            raise Refusal(
                Code.API_FULL,
                "too much is being sent to this process at once; try again, or try another replica",
                retry_after_s=RETRY_AFTER_S,
            )
        self._count(size_bytes, stranger)

    def give(self, size_bytes: int, stranger: str | None = None) -> None:
        """Releases bytes that were counted by `take`."""
        self._count(-size_bytes, stranger)

    def _room(self, stranger: str | None) -> int:
        if stranger is None:
            return self._left_bytes
        return min(self._strangers_left_bytes, self._address_bytes - self._by_address[stranger])

    def _count(self, size_bytes: int, stranger: str | None) -> None:
        if stranger is None:
            self._left_bytes -= size_bytes
            return
        self._strangers_left_bytes -= size_bytes
        self._by_address[stranger] += size_bytes
        if self._by_address[stranger] == 0:
            del self._by_address[stranger]
