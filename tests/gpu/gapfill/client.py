# SPDX-License-Identifier: Apache-2.0
"""A process's side of the gate.

A first client asks and launches; `ask` never waits. An other client waits in `ask` until it may launch. When the gate
dies, a first client continues as if alone. An other client stops with GateGoneError, because nobody then protects the
first client from it. A gate that lives and does not answer keeps other clients waiting.
"""

from __future__ import annotations

import os
import select
import socket
import time
from typing import TYPE_CHECKING

from tests.gpu.gapfill.channel import ClientEnd, State
from tests.gpu.gapfill.gate import Role

if TYPE_CHECKING:
    from vgpumgr.sched.core import ItemInfo

VARIABLE = "VGPUMGR_GATE"
_SPINS = 2_000
_NAP_S = 20e-6


class GateGoneError(Exception):
    """The gate is dead, or no longer serves this client."""


class GateClient:
    """Not thread-safe. `unnoticed`: items of a first client that were not reported to the gate because the ring was
    full. Their ends are not reported either.
    """

    def __init__(self, role: Role, channel: int, connection: socket.socket) -> None:
        self.role = role
        self.end = ClientEnd(channel)
        self.unnoticed = 0
        self.waited_ns = 0
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection, 0)
        self._done = 0

    @classmethod
    def inherited(cls) -> GateClient:
        """Make a client from inherited descriptors, which are in VGPUMGR_GATE as ROLE:CHANNEL:SOCKET."""
        role, channel, connection = os.environ[VARIABLE].split(":")
        return cls(Role(role), int(channel), socket.socket(fileno=int(connection)))

    def is_alive(self) -> bool:
        """Whether the gate lives and serves this client."""
        return not self._poll.poll(0) and self.end.state == State.OPEN

    def ask(self, item: ItemInfo) -> bool:
        """Ask, and return whether the gate knows the item, so `done` must follow. Raises GateGoneError."""
        if self.role == Role.FIRST:
            if self.end.is_full:
                self.unnoticed += 1
                return False
            self.end.ask(item)
            return True
        self.end.ask(item)
        self._wait()
        return True

    def _wait(self) -> None:
        since = time.monotonic_ns()
        spins = 0
        while self.end.granted < self.end.asked:
            spins += 1
            if spins % _SPINS == 0 and not self.is_alive():
                raise GateGoneError("the gate is gone, or has evicted this client: it launches nothing any more")
            if spins > _SPINS:
                time.sleep(_NAP_S)
        self.waited_ns += time.monotonic_ns() - since

    def done(self) -> None:
        """Report that the next item that the gate knows is complete."""
        self._done += 1
        self.end.done(self._done)

    def end_request(self) -> None:
        self.end.end_request()
