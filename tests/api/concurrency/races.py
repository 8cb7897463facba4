# SPDX-License-Identifier: Apache-2.0
"""Requests that are sent at the same moment, each by another client, and the few objects that they use."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, TypeVar
from uuid import UUID, uuid4

from tests.api.concurrency.agents import enrolled, inventory
from tests.api.concurrency.audit import Audit
from tests.api.concurrency.deployment import Deployment, Reply

GIB = 1 << 30
PLENTY = {"share_permille": 1_000_000, "mem_bytes": 1 << 50, "slices": 10_000}

T = TypeVar("T")
_NUMBERS = count(1)


def at_once(calls: list[Callable[[], T]]) -> list[T]:
    """Runs each call in a thread and starts all of them together; returns their results in order."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], T]) -> T:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


class Fleet:
    """The objects of a race; each race makes new ones, with new names and hosts."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.audit = Audit(deployment.url)
        self.operator = deployment.caller()

    def ask(self, *arguments: Any, token: str | None = None, **options: Any) -> Callable[[], Reply]:
        """Returns a request, by default an operator's, for sending later. Its client has no other request at that
        time.
        """
        client = self.deployment.take_client(token or self.deployment.token)

        def sent() -> Reply:
            reply = client.ask(*arguments, **options)
            self.deployment.give_back(client)
            return reply

        return sent

    def name(self, kind: str) -> str:
        return f"{kind}-{next(_NUMBERS)}"

    def tenant(self, limits: Mapping[str, int] = PLENTY, *, account: str | None = None) -> str:
        """A tenant at generation 2 of its quota, which is large except in `limits`."""
        name = self.name("tenant")
        assert self.operator.ask("POST", "/v1/tenants", {"name": name, "account": account}).status == 201
        assert self.operator.ask("PATCH", f"/v1/quotas/{name}", {**PLENTY, **limits}, if_match=1).status == 200
        return name

    def profile(self, share: int = 100, gib: int = 1) -> str:
        name = self.name("profile")
        body = {"name": name, "share_permille": share, "mem_bytes": gib * GIB}
        assert self.operator.ask("POST", "/v1/profiles", body).status == 201
        return name

    def host(self, *sizes_gib: int) -> "Host":
        name = self.name("host")
        return Host(self, name, enrolled(self.operator, name), inventory(sizes_gib or (64,)))

    def claim(self, tenant: str, profile: str, **members: Any) -> Any:
        reply = self.operator.ask("POST", "/v1/slices", {"tenant": tenant, "profile": profile, **members})
        assert reply.status == 201, reply.body
        return reply.body

    def quota(self, tenant: str) -> Any:
        return self.operator.ask("GET", f"/v1/quotas/{tenant}").body

    def stored(self, slice_id: str) -> Any:
        """The row of a slice, or None."""
        return self.audit.slices().get(UUID(slice_id))


class Host:
    """A host that reports what the test tells it to; it has reported once."""

    def __init__(self, fleet: Fleet, name: str, token: str, gpus: list[dict[str, Any]]) -> None:
        self.name, self.token, self.gpus = name, token, gpus
        self._fleet = fleet
        self._caller = fleet.deployment.caller(token)
        self._seq = count(1)
        assert self._caller.ask("POST", f"/v1/hosts/{name}/report", self.report(self.desired())).body["accepted"]

    def desired(self) -> Any:
        return self._caller.ask("GET", f"/v1/hosts/{self.name}/desired").body

    def report(self, document: Any = None, *, absent: tuple[str, ...] = (), **members: Any) -> dict[str, Any]:
        """Returns the next report, made from `document`, for sending."""
        said = {
            "boot_id": str(UUID(int=1)),
            "agent_epoch": 1,
            "seq": next(self._seq),
            "agent_version": "1",
            "desired_epoch": document["epoch"] if document else None,
            "desired_generation": document["generation"] if document else 0,
            "gpus": self.gpus,
            "groups": [],
            "slices": [_absent(one) for one in absent],
            "refusals": [],
        }
        return said | members

    def sending(self, report: dict[str, Any]) -> Callable[[], Reply]:
        """Returns a call that sends a report by another client."""
        return self._fleet.ask("POST", f"/v1/hosts/{self.name}/report", report, token=self.token)

    def waiting(self) -> Callable[[], Reply]:
        """Waits for the desired state that follows the present one."""
        seen = self.desired()
        query = f"epoch={seen['epoch']}&generation={seen['generation']}&wait_s=30"
        return self._fleet.ask("GET", f"/v1/hosts/{self.name}/desired?{query}", token=self.token)

    def fencing(self) -> Callable[[], Reply]:
        """An operator declares the host dead while it lives."""
        path = f"/v1/hosts/{self.name}"
        generation = self._fleet.operator.ask("GET", path).body["generation"]
        return self._fleet.ask("POST", f"{path}:fence", {"confirm": self.name, "force": True}, if_match=generation)

    def again(self) -> "Host":
        """Enrols the same machine again."""
        return Host(self._fleet, self.name, enrolled(self._fleet.operator, self.name), self.gpus)

    def binding(self, slice_id: str, vm_uuid: str) -> Callable[[], Reply]:
        """A VM starts with a slice."""
        path = f"/v1/hosts/{self.name}/slices/{slice_id}:bind"
        return self._fleet.ask("POST", path, {"vm_uuid": vm_uuid}, token=self.token)

    def fulfil(self) -> None:
        """Confirms all tombstones."""
        document = self.desired()
        gone = tuple(one["id"] for one in document["tombstones"])
        assert self.sending(self.report(document, absent=gone))().body["accepted"]


def outcomes(replies: list[Reply]) -> Counter[str]:
    return Counter(reply.code or "done" for reply in replies)


def vm() -> str:
    return str(uuid4())


def _absent(slice_id: str) -> dict[str, Any]:
    return {
        "id": slice_id,
        "generation": 1,
        "present": False,
        "open": False,
        "vm_uuid": None,
        "applied_permille": None,
        "run_ns": 0,
        "items": 0,
    }
