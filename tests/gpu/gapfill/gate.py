# SPDX-License-Identifier: Apache-2.0
"""Who may launch next: the kernel module's scheduler core, asked by processes instead of by a device.

A *first* client (band L) never waits: it reports its launches, and the gate follows. An *other* client asks, and
launches when the gate grants one item at a time. An item is what is launched together: one kernel, or a few in a row.

How the gate handles a client's death or silence:

- A client that goes away loses everything: its grant is free at once, and its asks are forgotten.
- An item that is not done `overdue_ns` after it began to count as executing is withdrawn. The engine then counts as
  free. The client is served again only after it reports the end of the item. No other client waits longer than that.
- A client that breaks the protocol (MisuseError) must be detached by the caller. Other clients are not affected.

The gate has no clock and no thread. The caller passes the time in ns, which never goes back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum

from vgpumgr.sched.core import (
    Band,
    Group,
    GroupParams,
    GroupStats,
    ItemInfo,
    RefusedError,
    SchedParams,
    Scheduler,
    Slice,
    SliceParams,
)

US = 1_000
MS = 1_000_000


class Role(StrEnum):
    """A client's role. The operator of the gate chooses it, never the client."""

    FIRST = "first"
    OTHER = "other"


ASKS_MAX = {Role.FIRST: 1024, Role.OTHER: 2}
"""How many items of a client may be under way; an other one's second waits until its first is done."""


class MisuseError(Exception):
    """A client broke the protocol. The gate's state is unchanged."""


@dataclass(frozen=True, kw_only=True)
class GateParams:
    """The values that docs/simulator.md recommends for gap fill: the reservation covers a request with its gaps, and
    the first client has nearly the whole share. `max_item_ns`: longer and unknown items count as that long.
    """

    max_item_ns: int = MS
    switch_cost_ns: int = 0
    reserve_ns: int = 70 * MS
    reserve_period_ns: int = 100 * MS
    hold_max_ns: int = 20 * MS
    inversion_permille: int = 10
    inversion_burst_ns: int = 500 * US
    first_weight: int = 900
    timeslice_ns: int = 250 * US
    overdue_ns: int = 1000 * MS


def strict(params: GateParams) -> GateParams:
    """Strict priority: others may launch whenever the first client has nothing pending."""
    return replace(params, hold_max_ns=0, inversion_permille=0)


@dataclass(eq=False)
class Client:
    """One process. `asks`: items that are not done; the first of them may be executing. `withdrawn`: number of
    withdrawn items whose end is still to come and is ignored.
    """

    name: str
    role: Role
    group: Group
    slice: Slice
    asks: deque[ItemInfo] = field(default_factory=deque)
    withdrawn: int = 0
    granted: int = 0


class Gate:
    """Decides for one GPU. The list `on_grant` receives every other client whose item may be launched now."""

    def __init__(self, params: GateParams, now_ns: int) -> None:
        self.params = params
        self.on_grant: list[Client] = []
        self.overdue = 0
        self._clients: dict[Slice, Client] = {}
        self._executing: Client | None = None
        self._since_ns = 0
        self._wake_at_ns: int | None = None
        self._now_ns = now_ns
        self._scheduler = Scheduler(
            SchedParams(
                max_chunk_ns=params.max_item_ns,
                switch_cost_ns=params.switch_cost_ns,
                reserve_limit_permille=750,
            ),
            now_ns=now_ns,
        )

    @property
    def clients(self) -> list[Client]:
        return list(self._clients.values())

    @property
    def executing(self) -> Client | None:
        """The client whose item counts as executing."""
        return self._executing

    @property
    def wake_at_ns(self) -> int | None:
        """The latest time of the next `tick`, if nothing happens before. None if no `tick` is needed."""
        if self._executing is not None:
            return self._since_ns + self.params.overdue_ns
        return self._wake_at_ns

    def stats(self, client: Client) -> GroupStats:
        return client.group.stats

    def attach(self, name: str, role: Role, now_ns: int) -> Client:
        """Add a client. At most one client is first."""
        if role == Role.FIRST and any(client.role == Role.FIRST for client in self.clients):
            raise ValueError(f"{name}: there is a first client already")
        now_ns = self._at(now_ns)
        group = self._scheduler.add_group(self._group_params(role), now_ns, name=name)
        added = self._scheduler.add_slice(group, SliceParams(), now_ns, name=name)
        client = self._clients[added] = Client(name, role, group, added)
        return client

    def _group_params(self, role: Role) -> GroupParams:
        params = self.params
        if role == Role.OTHER:
            return GroupParams(weight=1, timeslice_ns=params.timeslice_ns)
        return GroupParams(
            weight=params.first_weight,
            timeslice_ns=params.timeslice_ns,
            band=Band.LATENCY,
            reserve_ns=params.reserve_ns,
            reserve_period_ns=params.reserve_period_ns,
            hold_max_ns=params.hold_max_ns,
            inversion_permille=params.inversion_permille,
            inversion_burst_ns=params.inversion_burst_ns,
        )

    def detach(self, client: Client, now_ns: int) -> None:
        """Remove a client with all its asks and grants."""
        now_ns = self._at(now_ns)
        self._scheduler.remove_slice(client.slice, now_ns)
        self._scheduler.remove_group(client.group, now_ns)
        del self._clients[client.slice]
        if self._executing is client:
            self._executing = None
        self.on_grant[:] = [granted for granted in self.on_grant if granted is not client]
        self._decide(now_ns)

    def ask(self, client: Client, item: ItemInfo, now_ns: int) -> None:
        """A first client launches this item; an other client wants to launch it. Raises MisuseError."""
        if len(client.asks) + client.withdrawn >= ASKS_MAX[client.role]:
            raise MisuseError(f"{client.name} asks for more than it may have under way")
        now_ns = self._at(now_ns)
        if not client.asks:
            try:
                self._scheduler.announce(client.slice, item, now_ns)
            except RefusedError as error:
                raise MisuseError(f"{client.name}: {error}") from None
        client.asks.append(item)
        self._decide(now_ns)

    def done(self, client: Client, now_ns: int) -> None:
        """The client's first item is complete. Raises MisuseError."""
        now_ns = self._at(now_ns)
        if client.withdrawn:
            client.withdrawn -= 1
            return
        if not client.asks or (client.role == Role.OTHER and self._executing is not client):
            raise MisuseError(f"{client.name} says that something is done which it was not granted")
        follows = client.asks[1] if len(client.asks) > 1 else None
        try:
            self._scheduler.item_done(client.slice, now_ns, next_item=follows)
        except RefusedError as error:
            raise MisuseError(f"{client.name}: {error}") from None
        client.asks.popleft()
        if self._executing is client:
            self._executing = None
            self._decide(now_ns)

    def end_request(self, client: Client, now_ns: int) -> None:
        """The request ends: no item follows the last one."""
        now_ns = self._at(now_ns)
        self._scheduler.end_request(client.slice, now_ns)
        self._decide(now_ns)

    def tick(self, now_ns: int) -> None:
        """Time has passed. A hold may be over, a gap may be long enough, or an item may be overdue."""
        now_ns = self._at(now_ns)
        client = self._executing
        if client is not None and now_ns >= self._since_ns + self.params.overdue_ns:
            self._scheduler.sleep(client.slice, now_ns)
            client.withdrawn += len(client.asks)
            client.asks.clear()
            self.overdue += 1
            self._executing = None
        self._decide(now_ns)

    def _decide(self, now_ns: int) -> None:
        if self._executing is not None:
            return
        decision = self._scheduler.pick(now_ns)
        self._wake_at_ns = decision.wake_at_ns
        if decision.slice is None:
            return
        client = self._executing = self._clients[decision.slice]
        self._since_ns = now_ns
        if client.role == Role.OTHER:
            client.granted += 1
            self.on_grant.append(client)

    def _at(self, now_ns: int) -> int:
        self._now_ns = max(self._now_ns, now_ns)
        return self._now_ns
