# SPDX-License-Identifier: Apache-2.0
"""The gate as a process: looks at its clients' memory all the time, and lets others launch.

Who is first is settled by whoever starts it, on the command line. A client is served as long as its socket is open;
its end, however it comes, closes the socket. The gate never waits for a client. It spends a processor while there is
work; after a while without news it looks every `NAP_S` only, which delays others and nobody else.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.gpu.gapfill.channel import BrokenChannelError, GateEnd
from tests.gpu.gapfill.gate import Client, Gate, GateParams, MisuseError, Role, strict

SPINS = 2_000
NAP_S = 50e-6
HANGUPS_EVERY = 64


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


@dataclass(eq=False)
class Served:
    """A client with its memory and its socket."""

    client: Client
    end: GateEnd
    socket: socket.socket


@dataclass
class Server:
    """Serves until no client is left. `told` receives a line about every unusual event."""

    gate: Gate
    told: Callable[[str], None]
    clock: Callable[[], int] = now_ns
    served: list[Served] = field(default_factory=list)
    _poll: select.poll = field(default_factory=select.poll)

    def admit(self, name: str, role: Role, channel: int, connection: socket.socket) -> None:
        """Add a client. The server takes ownership of both descriptors."""
        end = GateEnd(channel)
        os.close(channel)
        client = self.gate.attach(name, role, self.clock())
        self.served.append(Served(client, end, connection))
        # Look at first clients first, so their launches are known before another client is granted one.
        self.served.sort(key=lambda one: one.client.role != Role.FIRST)
        self._poll.register(connection, 0)  # hangups are always reported

    def run(self) -> None:
        idle = 0
        turn = 0
        while self.served:
            turn += 1
            if turn % HANGUPS_EVERY == 0 or idle > SPINS:
                self.bury()
            idle = 0 if self.look() else idle + 1
            if idle > SPINS:
                time.sleep(NAP_S)

    def look(self) -> bool:
        """Process what clients wrote, once, and grant. Return whether anything was new."""
        found = False
        for one in list(self.served):
            try:
                found |= self._take(one)
            except (BrokenChannelError, MisuseError) as error:
                self.told(f"{one.client.name}: evicted: {error}")
                one.end.evict()
                self._release(one)
                found = True
        now = self.clock()
        if self.gate.wake_at_ns is not None and now >= self.gate.wake_at_ns:
            before = self.gate.overdue
            self.gate.tick(now)
            if self.gate.overdue > before:
                self.told("an item is overdue; the engine counts as free")
        by_client = {one.client: one for one in self.served}
        while self.gate.on_grant:
            by_client[self.gate.on_grant.pop(0)].end.grant()
            found = True
        return found

    def _take(self, one: Served) -> bool:
        news = one.end.news()
        if news is None:
            return False
        # An ask may follow the end of the one before it, and its own end may be new as well.
        known = min(news.done, len(one.client.asks) + one.client.withdrawn)
        for _ in range(known):
            self.gate.done(one.client, self.clock())
        for item in news.asks:
            self.gate.ask(one.client, item, self.clock())
        for _ in range(news.done - known):
            self.gate.done(one.client, self.clock())
        if news.ended:
            self.gate.end_request(one.client, self.clock())
        return True

    def bury(self) -> None:
        """Remove clients whose sockets are closed."""
        for number, _ in self._poll.poll(0):
            for one in [one for one in self.served if one.socket.fileno() == number]:
                self.told(f"{one.client.name}: gone")
                self._release(one)

    def _release(self, one: Served) -> None:
        self.served.remove(one)
        self._poll.unregister(one.socket)
        self.gate.detach(one.client, self.clock())
        one.socket.close()
        one.end.close()


def main() -> None:
    """The parent process passes the clients' descriptors as NAME:ROLE:CHANNEL:SOCKET."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="+", metavar="NAME:ROLE:CHANNEL:SOCKET")
    parser.add_argument("--overdue-ms", type=int, default=GateParams.overdue_ns // 1_000_000)
    parser.add_argument("--strict", action="store_true", help="strict priority: no hold, no gaps kept free")
    arguments = parser.parse_args()
    params = GateParams(overdue_ns=arguments.overdue_ms * 1_000_000)
    gate = Gate(strict(params) if arguments.strict else params, now_ns())
    server = Server(gate, lambda line: print(json.dumps({"at_ns": now_ns(), "said": line}), flush=True))
    for one in arguments.clients:
        name, role, channel, connection = one.split(":")
        server.admit(name, Role(role), int(channel), socket.socket(fileno=int(connection)))
    # Ctrl-C is for the parent program. It ends the clients, and then the gate ends too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()
    print(json.dumps({"at_ns": now_ns(), "said": "serving"}), flush=True)
    with contextlib.suppress(BrokenPipeError):
        server.run()


if __name__ == "__main__":
    sys.exit(main())
