# SPDX-License-Identifier: Apache-2.0
"""Limits the connections, in total and from each address, from the kernel's accept to the close.

An excess connection completes TLS, and its first request is answered with a problem, so that its client knows when to
retry. Beyond `REFUSING` of these at once, connections are reset, which costs almost nothing.
"""

import ipaddress
import logging
import resource
import socket
import struct
from collections import Counter
from typing import Any

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal

REFUSING = 64
"""How many connections above the total may wait to be refused."""

OTHER_FILES = 512
"""File descriptors for other purposes than clients: the database, the log, the listeners."""

BUFFER_BYTES = 64 << 10
"""The requested kernel buffer of a connection, per direction. The kernel allocates twice this size; its default is
megabytes.
"""

RETRY_AFTER_S = 5

_RESET = struct.pack("ii", 1, 0)

log = logging.getLogger("vgpumgr_api.overload.connections")


class Connections:
    """Counts connections. Belongs to the event loop of one server. `per_address` 0: no limit per address."""

    def __init__(self, *, total: int, per_address: int) -> None:
        self.total = total
        self.reset = 0
        """The number of connections that were closed without an answer."""
        self._per_address = per_address
        self._by_address: Counter[str] = Counter()
        self._refused: dict[int, Refusal] = {}
        self._taken = 0

    def __len__(self) -> int:
        return self._taken + len(self._refused)

    def enter(self, descriptor: int, address: str) -> bool:
        """Counts a connection. Returns False if there is no room even to refuse it. `address`: "" for none."""
        refusal = self._judge(address)
        if refusal is None:
            self._taken += 1
            self._by_address[address] += 1
        elif len(self._refused) < REFUSING:
            self._refused[descriptor] = refusal
        else:
            self.reset += 1
            return False
        return True

    def leave(self, descriptor: int, address: str) -> None:
        """Ends the count of a connection that `enter` counted."""
        if self._refused.pop(descriptor, None) is not None:
            return
        self._taken -= 1
        self._by_address[address] -= 1
        if self._by_address[address] == 0:
            del self._by_address[address]

    def refusal(self, descriptor: int) -> Refusal | None:
        """Returns the refusal for the connection's client, None if it is within the limits."""
        return self._refused.get(descriptor)

    def _judge(self, address: str) -> Refusal | None:
        if self._taken >= self.total:
            return Refusal(
                Code.API_FULL,
                "this process has as many connections as it takes; try again, or try another replica",
                retry_after_s=RETRY_AFTER_S,
            )
        if address and self._per_address and self._by_address[address] >= self._per_address:
            return Refusal(
                Code.RATE_EXCEEDED,
                f"there are {self._per_address} connections from this address; close some before you open another",
                retry_after_s=RETRY_AFTER_S,
            )
        return None


class Listener(socket.socket):
    """A listening socket that counts its connections in `connections`, if set."""

    connections: Connections | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """Like a socket's accept. Raises BlockingIOError also for a connection that was reset."""
        plain, peer = super().accept()
        if self.connections is None:
            return plain, peer
        address = address_of(self.family, peer)
        if not self.connections.enter(plain.fileno(), address):
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            plain.close()
            raise BlockingIOError
        counted = _Counted(plain.family, plain.type, plain.proto, fileno=plain.detach())
        counted.place = (self.connections, counted.fileno(), address)
        return counted, peer


class _Counted(socket.socket):
    place: tuple[Connections, int, str] | None = None

    def close(self) -> None:
        if self.place is not None:
            connections, descriptor, address = self.place
            self.place = None
            connections.leave(descriptor, address)
        super().close()


def address_of(family: int, peer: Any) -> str:
    """Returns the address that a connection counts for: an IPv4 address, an IPv6 /64, or "" on a Unix socket."""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    return network_of(str(peer[0]))


def network_of(host: str) -> str:
    """Returns the address that a client's address counts for; a string that is no address is returned unchanged."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


def room_for(total: int) -> int:
    """Raises the limit of open files for `total` connections, as far as possible. Returns how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = total + REFUSING + OTHER_FILES
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fits = max(soft - REFUSING - OTHER_FILES, 1)
    if fits < total:
        log.warning("connections.total is %d, but the limit of open files leaves room for %d", total, fits)
    return min(total, fits)
