# SPDX-License-Identifier: Apache-2.0
"""How many connections there are, in total and from each address, counted from the kernel's accept to the close.

One too many gets through TLS and its first request is answered with a problem, so that its client knows when to come
again; beyond `REFUSING` such at once connections are reset, which costs next to nothing.
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
"""So many connections above the total may wait to be told that they are too many."""

OTHER_FILES = 512
"""Descriptors for what is not a client: the database, the log, the listeners."""

BUFFER_BYTES = 64 << 10
"""What is asked of the kernel to hold of one connection in each direction; it takes twice that, or else megabytes."""

RETRY_AFTER_S = 5

_RESET = struct.pack("ii", 1, 0)

log = logging.getLogger("vgpumgr_api.limits.connections")


class Connections:
    """The count. Belongs to the event loop of one server. `per_address` 0: no limit of its own."""

    def __init__(self, *, total: int, per_address: int) -> None:
        self.total = total
        self.reset = 0
        """So many connections were closed unheard."""
        self._per_address = per_address
        self._by_address: Counter[str] = Counter()
        self._refused: dict[int, Refusal] = {}
        self._taken = 0

    def __len__(self) -> int:
        return self._taken + len(self._refused)

    def enter(self, descriptor: int, address: str) -> bool:
        """Counts a connection; False if there is not even room to refuse it. `address`: "" for none."""
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
        """What `enter` counted has ended."""
        if self._refused.pop(descriptor, None) is not None:
            return
        self._taken -= 1
        self._by_address[address] -= 1
        if self._by_address[address] == 0:
            del self._by_address[address]

    def refusal(self, descriptor: int) -> Refusal | None:
        """What its client is to be told, if it is one too many."""
        return self._refused.get(descriptor)

    def _judge(self, address: str) -> Refusal | None:
        if self._taken >= self.total:
            return Refusal(
                Code.API_FULL,
                "this process has as many connections as it takes; try again, or another replica",
                retry_after_s=RETRY_AFTER_S,
            )
        if address and self._per_address and self._by_address[address] >= self._per_address:
            return Refusal(
                Code.RATE_EXCEEDED,
                f"there are {self._per_address} connections from this address; close some before the next",
                retry_after_s=RETRY_AFTER_S,
            )
        return None


class Listener(socket.socket):
    """A listening socket whose connections are counted, once `connections` says where."""

    connections: Connections | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """As a socket's. BlockingIOError also for a connection that was reset."""
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
    """Whom a connection counts for: an IPv4 address, a network of 64 bits of IPv6, "" on a Unix socket."""
    if family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    return network_of(str(peer[0]))


def network_of(host: str) -> str:
    """The address that counts for a client's; what is none, for itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


def room_for(total: int) -> int:
    """Raises the limit of open files as far as `total` connections need and it goes; returns how many fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = total + REFUSING + OTHER_FILES
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fits = max(soft - REFUSING - OTHER_FILES, 1)
    if fits < total:
        log.warning("connections.total is %d, but the limit of open files leaves room for %d", total, fits)
    return min(total, fits)
