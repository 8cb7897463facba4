# SPDX-License-Identifier: Apache-2.0
"""Slices whose VM is gone. Not kept across restarts, because unused devices are found anyway."""

import threading
from collections.abc import Container
from uuid import UUID


class Released:
    """A thread-safe set of slices."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._uuids: set[UUID] = set()

    def add(self, uuid: UUID) -> None:
        """Record that this slice's VM is gone."""
        with self._guard:
            self._uuids.add(uuid)

    def discard(self, uuid: UUID) -> None:
        """Record that a slice is used again."""
        with self._guard:
            self._uuids.discard(uuid)

    def keep_only(self, present: Container[UUID], *, known: frozenset[UUID]) -> None:
        """Forget the slices in `known` that are not in `present`."""
        with self._guard:
            self._uuids -= {uuid for uuid in known if uuid not in present}

    def all(self) -> frozenset[UUID]:
        """Return a copy."""
        with self._guard:
            return frozenset(self._uuids)
