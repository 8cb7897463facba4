# SPDX-License-Identifier: Apache-2.0
"""A simulated host agent: it enrols, waits for the desired state, makes and removes simulated devices, and reports.

It also checks independently what the API tells it. A generation never goes back, and one generation is one document. A
slice vanishes only after a tombstone that this host fulfilled. No GPU gets more than its share. All of this also holds
after a fence: the agent learns of the fence from the API and enrols again with all its devices.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from tests.api.concurrency.deployment import Caller, Deployment

GIB = 1 << 30


def inventory(sizes_gib: Iterable[int]) -> list[dict[str, Any]]:
    """Returns GPUs with this much memory each, in the form of a report."""
    return [
        {
            "address": f"0000:0{number}:00.0",
            "engine": "soft",
            "backend": "kmod",
            "mem_bytes": size * GIB,
            "timeslice_min_us": 100,
            "max_chunk_us": 500,
            "types": [{"id": f"vgpumgr-{gib}g", "mem_bytes": gib * GIB} for gib in (1, 2, 4) if gib <= size],
        }
        for number, size in enumerate(sizes_gib, start=1)
    ]


def enrolled(operator: Caller, name: str) -> str:
    """Announces a host, enrols it, and returns its token."""
    announced = operator.ask("POST", "/v1/hosts", {"name": name})
    if announced.status == 409:  # an attempt whose answer was lost made the host
        announced = operator.ask("POST", f"/v1/hosts/{name}:reenroll")
    token = announced.body["enroll_token"]
    stranger = Caller(operator.deployment, token, random.Random(name))
    made = stranger.ask("POST", "/v1/enroll", {"agent_version": "1", "boot_id": str(UUID(int=1))})
    assert made.status == 200, made.body
    return str(made.body["token"])


class Agent(threading.Thread):
    """Runs until `stopping` is set and a document that was fetched after that has no tombstone.

    `complaints`: messages from the API that break a promise. `obeyed`: slices that it has reported absent. `fenced`:
    the number of fences.
    """

    def __init__(self, deployment: Deployment, name: str, token: str, gpus: list[dict[str, Any]], seed: int) -> None:
        super().__init__(name=f"agent-{name}", daemon=True)
        self.host = name
        self.gpus = gpus
        self.complaints: list[str] = []
        self.documents = 0
        self.obeyed: set[str] = set()
        self.fenced = 0
        self.stopping = threading.Event()
        self._rng = random.Random(seed)
        self._deployment = deployment
        self._caller = deployment.caller(token, seed=seed)
        self._document: dict[str, Any] | None = None
        self._contents: dict[int, Any] = {}
        self._devices: set[str] = set()
        self._held: set[str] = set()
        self._seq = 0

    def run(self) -> None:
        try:
            last = False
            while not last:
                last = self.stopping.is_set()
                self._fetch()
                self._act()
                self._report()
                last = last and self._document is not None and not self._document["tombstones"]
        except Exception as error:
            self.complaints.append(f"{self.host}: {error!r}")

    def _fetch(self) -> None:
        path = f"/v1/hosts/{self.host}/desired"
        # Sometimes fetches the whole document, which must be the same if nothing changed.
        if self._document is not None and self._rng.random() < 0.8:
            path += f"?epoch={self._document['epoch']}&generation={self._document['generation']}&wait_s=1"
        reply = self._caller.ask("GET", path)
        if reply.status == 200:
            self._take(reply.body)
        elif reply.code == "host.fenced":
            self._enrol_again()
            self._fetch()
        elif reply.status != 204:
            self.complaints.append(f"{self.host}: desired state: {reply.body}")

    def _take(self, document: dict[str, Any]) -> None:
        self.documents += 1
        before, generation = self._document, document["generation"]
        if before is not None:
            if (document["epoch"], document["host_id"]) != (before["epoch"], before["host_id"]):
                self.complaints.append(f"{self.host}: another epoch or host")
            if generation < before["generation"]:
                self.complaints.append(f"{self.host}: generation went from {before['generation']} to {generation}")
            lost = _ids(before) - _ids(document) - self.obeyed
            if lost:
                self.complaints.append(f"{self.host}: gone without a tombstone that was fulfilled: {sorted(lost)}")
            risen = {one["id"] for one in before["tombstones"]} & {one["id"] for one in document["slices"]}
            if risen:
                self.complaints.append(f"{self.host}: claimed again after a tombstone: {sorted(risen)}")
        if self._contents.setdefault(generation, document) != document:
            self.complaints.append(f"{self.host}: two documents of generation {generation}")
        weights: Counter[str] = Counter()
        for group in document["groups"]:
            weights[group["gpu"]] += group["weight"]
        if any(weight > 1000 for weight in weights.values()):
            self.complaints.append(f"{self.host}: groups add up to {dict(weights)}")
        self._document = document

    def _act(self) -> None:
        """VMs start and stop; some keep their device open for a while after its claim was deleted."""
        assert self._document is not None
        for one in self._document["slices"]:
            if self._rng.random() < 0.5:
                self._devices.add(one["id"])
        dead = {one["id"] for one in self._document["tombstones"]}
        self._held = {one for one in dead & self._devices if self._rng.random() < 0.2 and not self.stopping.is_set()}
        self._devices -= dead - self._held

    def _report(self) -> None:
        assert self._document is not None
        self._seq += 1
        said = [self._said(one) for one in (*self._document["slices"], *self._document["tombstones"])]
        self.obeyed |= {one["id"] for one in self._document["tombstones"]} - self._held
        reply = self._caller.ask(
            "POST",
            f"/v1/hosts/{self.host}/report",
            {
                "boot_id": str(UUID(int=1)),
                "agent_epoch": 1,
                "seq": self._seq,
                "agent_version": "1",
                "desired_epoch": self._document["epoch"],
                "desired_generation": self._document["generation"],
                "gpus": self.gpus,
                "groups": [],
                "slices": said,
                "refusals": [],
            },
        )
        if reply.code == "host.fenced":
            self._enrol_again()
            return
        # If the first attempt of a report got through, its repetition is rejected as an old report.
        if reply.status != 200 or not (reply.body["accepted"] or reply.repeated):
            self.complaints.append(f"{self.host}: report {self._seq}: {reply.status} {reply.body}")

    def _enrol_again(self) -> None:
        self.fenced += 1
        operator = self._deployment.caller(seed=self.fenced)
        while True:  # a one-time token cannot be used twice, even if the answer to its use was lost
            token = operator.ask("POST", f"/v1/hosts/{self.host}:reenroll").body["enroll_token"]
            body = {"agent_version": "1", "boot_id": str(UUID(int=1))}
            made = self._deployment.caller(token).ask("POST", "/v1/enroll", body)
            if made.status == 200:
                self._caller = self._deployment.caller(str(made.body["token"]), seed=self.fenced)
                return

    def _said(self, one: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": one["id"],
            "generation": one["generation"],
            "present": one["id"] in self._devices,
            "open": False,
            "vm_uuid": None,
            "applied_permille": None,
            "run_ns": 0,
            "items": 0,
        }


def _ids(document: dict[str, Any]) -> set[str]:
    return {one["id"] for one in (*document["slices"], *document["tombstones"])}
