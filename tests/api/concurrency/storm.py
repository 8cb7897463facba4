# SPDX-License-Identifier: Apache-2.0
"""Clients of several tenants that claim and delete at the same time, and the answers they got."""

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.api.concurrency.deployment import Caller, Deployment, Reply

GIB = 1 << 30
CLIENTS = 64
# These values make somebody hit every limit: accounts get less than the sum of their projects, and all quotas together
# exceed the GPUs.
TENANTS: dict[str, tuple[str | None, dict[str, int]]] = {
    "acme": (None, {"share_permille": 1500, "mem_bytes": 200 * GIB, "slices": 100}),
    "acme-red": ("acme", {"share_permille": 1000, "mem_bytes": 200 * GIB, "slices": 100}),
    "acme-blue": ("acme", {"share_permille": 1000, "mem_bytes": 6 * GIB, "slices": 100}),
    "globex": (None, {"share_permille": 3000, "mem_bytes": 200 * GIB, "slices": 14}),
    "globex-lab": ("globex", {"share_permille": 3000, "mem_bytes": 200 * GIB, "slices": 100}),
    "initech": (None, {"share_permille": 2500, "mem_bytes": 200 * GIB, "slices": 100}),
}
PROFILES = {
    "tiny": {"share_permille": 35, "mem_bytes": GIB // 2},
    "small": {"share_permille": 100, "mem_bytes": GIB},
    "large": {"share_permille": 310, "mem_bytes": 3 * GIB},
}
HOSTS = {"one": (8, 64), "two": (64, 64)}
"""Memory of the GPUs in GiB; the first GPU runs out of memory before it runs out of share."""


@dataclass(frozen=True)
class Told:
    """A claim that the API confirmed. `body`: the request, sent under `key`."""

    key: str
    body: dict[str, Any]
    answer: dict[str, Any]
    token: str


@dataclass
class Ledger:
    """All requests and answers of all clients. `unsure`: VMs of requests whose client did not wait for the answer."""

    claimed: dict[UUID, Told] = field(default_factory=dict)
    deleting: set[UUID] = field(default_factory=set)
    deleted: set[UUID] = field(default_factory=set)
    unsure: set[UUID] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client(threading.Thread):
    """One of many clients: it claims and deletes its slices, sometimes together with another client of the tenant."""

    def __init__(
        self, caller: Caller, tenant: str, ledger: Ledger, calm: threading.Event, *, name: str, rng: random.Random
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._caller, self._tenant, self._ledger, self._calm, self._rng = caller, tenant, ledger, calm, rng
        self._mine: list[UUID] = []

    def run(self) -> None:
        try:
            while not self._calm.is_set():
                if self._mine and self._rng.random() < 0.55:
                    self._unclaim(self._mine.pop(self._rng.randrange(len(self._mine))))
                elif not self._claim():
                    self._calm.wait(self._rng.uniform(0.1, 1))
        except Exception as error:
            self._ledger.complaints.append(f"{self.name}: {error!r}")

    def _claim(self) -> bool:
        vm, key = UUID(int=self._rng.getrandbits(128)), f"{self.name}-{self._rng.getrandbits(64):x}"
        body: dict[str, Any] = {
            "tenant": self._tenant,
            "profile": self._rng.choice(list(PROFILES)),
            "vm_uuid": str(vm),
        }
        if self._rng.random() < 0.2:
            body["host"] = self._rng.choice(list(HOSTS))
        impatient = self._rng.random() < 0.15
        if impatient:
            self._caller.shout("POST", "/v1/slices", body, key=key)
        reply = self._caller.ask("POST", "/v1/slices", body, key=key)
        with self._ledger.lock:
            self._ledger.outcomes[reply.code or "claimed"] += 1
            if reply.status == 201:
                slice_id = UUID(reply.body["id"])
                if slice_id in self._ledger.claimed:
                    self._ledger.complaints.append(f"{slice_id} was given twice")
                self._ledger.claimed[slice_id] = Told(key, body, reply.body, self._caller.token)
                self._mine.append(slice_id)
            elif reply.code not in ("quota.exceeded", "capacity.none"):
                self._ledger.complaints.append(f"{self.name}: claim: {reply.status} {reply.body}")
            elif impatient:
                # A refusal is not stored under the key, so the request without an answer may still succeed.
                self._ledger.unsure.add(vm)
            return reply.status == 201

    def _unclaim(self, slice_id: UUID) -> None:
        with self._ledger.lock:
            self._ledger.deleting.add(slice_id)
        path = f"/v1/slices/{slice_id}"
        if self._rng.random() < 0.15:
            self._caller.shout("DELETE", path, None, key="")
        reply = self._caller.ask("DELETE", path)
        with self._ledger.lock:
            self._ledger.outcomes["deleted" if reply.status == 202 else "deleted before"] += 1
            # 404: an attempt whose answer was lost deleted the slice, and its host has confirmed that.
            if reply.status not in (202, 404):
                self._ledger.complaints.append(f"{self.name}: delete: {reply.status} {reply.body}")
            self._ledger.deleted.add(slice_id)


def set_up(operator: Caller) -> dict[str, str]:
    """Makes tenants, quotas and profiles; returns each tenant's token."""
    tokens = {}
    for name, (account, limits) in TENANTS.items():
        _made(operator.ask("POST", "/v1/tenants", {"name": name, "account": account}))
        _made(operator.ask("PATCH", f"/v1/quotas/{name}", limits, if_match=1))
        tokens[name] = str(_made(operator.ask("POST", "/v1/tokens", {"role": "tenant", "subject": name}))["secret"])
    for name, members in PROFILES.items():
        _made(operator.ask("POST", "/v1/profiles", {"name": name, **members}))
    return tokens


def clients(
    deployment: Deployment, tokens: dict[str, str], ledger: Ledger, calm: threading.Event, seed: int
) -> list[Client]:
    """Assigns clients to tenants in turn; a project's clients use its own token or its account's."""
    made = []
    for number in range(CLIENTS):
        rng = random.Random(seed * 1000 + number)
        tenant = list(TENANTS)[number % len(TENANTS)]
        account = TENANTS[tenant][0]
        token = tokens[account if account and rng.random() < 0.5 else tenant]
        caller = deployment.caller(token, seed=rng.getrandbits(32))
        made.append(Client(caller, tenant, ledger, calm, name=f"client-{number}", rng=rng))
    return made


def _made(reply: Reply) -> Any:
    assert reply.status in (200, 201), reply.body
    return reply.body
