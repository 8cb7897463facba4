# SPDX-License-Identifier: Apache-2.0
"""The time for all replicas: that of the PostgreSQL server, regardless of the clocks of their own machines.

All replicas need the same time, because decisions by time, such as the end of a lease or a fence, cannot be undone and
depend on times that other replicas wrote. The server is asked every `FRESH_S`. In between, the machine's time since
boot is added, a clock that nobody can set.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

FRESH_S = 5.0
OFFSET_MAX = timedelta(seconds=5)
"""The clock offset between a machine and the database above which a warning is logged."""

_ASK = text("SELECT clock_timestamp()")

log = logging.getLogger("vgpumgr_api.clock")


def machine_clock() -> datetime:
    """Returns the time of this machine, for SQLite."""
    return datetime.now(UTC)


def since_boot_s() -> float:
    """Returns the time since boot, which also advances while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class _Reading:
    server: datetime
    at_s: float


class ServerClock:
    """The server's clock, shared by threads. `machine` and `boot_s` are the clocks of this machine."""

    def __init__(
        self, machine: Callable[[], datetime] = machine_clock, boot_s: Callable[[], float] = since_boot_s
    ) -> None:
        self._machine = machine
        self._boot_s = boot_s
        self._known: _Reading | None = None
        self._guard = threading.Lock()
        self.offset = timedelta(0)
        """How far the machine's clock was ahead of the server's at the last comparison."""

    def __call__(self) -> datetime:
        """Returns the time without a connection. It is this machine's time until a server has been asked."""
        known = self._known
        return self._machine() if known is None else self._of(known)

    def ask(self, connection: Connection) -> datetime:
        """Returns the time for a transaction that begins."""
        known = self._known
        if known is None or self._boot_s() - known.at_s > FRESH_S:
            server: datetime = connection.execute(_ASK).scalar_one()
            # The boot clock is read after the answer: a slow answer makes the clock late, never early.
            known = self._known = _Reading(server.astimezone(UTC), self._boot_s())
            self._compare(known.server)
        return self._of(known)

    def _of(self, known: _Reading) -> datetime:
        return known.server + timedelta(seconds=self._boot_s() - known.at_s)

    def _compare(self, server: datetime) -> None:
        offset = self._machine() - server
        with self._guard:
            before, self.offset = self.offset, offset
        if abs(offset) > OFFSET_MAX >= abs(before):
            log.warning(
                "this machine's clock is %.0f s ahead of the database's, which counts; synchronise both",
                offset.total_seconds(),
            )
        elif abs(before) > OFFSET_MAX >= abs(offset):
            log.info("this machine's clock agrees with the database's again")
