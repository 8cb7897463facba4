# SPDX-License-Identifier: Apache-2.0
"""What may happen to claims and hosts, in any order, and what must be true after each step.

`Life` knows what the service has promised, and the hosts know which devices they have; neither reads the database. Only
the auditor does: it reads the stored rows with independent SQL.
"""

import sys
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any
from uuid import uuid4

from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.api.concurrency.agents import enrolled, inventory
from tests.api.concurrency.audit import Audit
from tests.api.model.plans import PLANS, Plans
from tests.api.model.promises import LIMITS, MEMS, MODES, SHARES, Claim, Machine, Promised
from tests.api.model.service import BLOWS, Service

DAY = timedelta(hours=25)
"""Longer than a lease."""

_NUMBERS = count(1)

ACTIONS = {
    "claim": 7,
    "ask_again": 1,
    "delete": 3,
    "bind": 2,
    "look_act_report": 6,
    "vm_starts": 4,
    "vm_stops": 2,
    "unnamed_end": 2,
    "part_or_heal": 2,
    "lease_expires": 1,
    "fence": 2,
    "backup": 2,
    "restore": 1,
    "recover": 3,
    "confirm_epoch": 3,
    **PLANS,
}
"""The actions of a step, and how often each is tried."""


class Life(Plans, RuleBasedStateMachine):
    """One account with a project, and two hosts with two GPUs each. The caller sets `service`, `seed` and `failures`.

    `seed` and the number of a step decide what the step does. With few examples, Hypothesis would choose only the
    simplest actions, and the same ones each time.
    """

    service: Service
    seed: str
    failures: list[BaseException]

    @initialize()
    def begin(self) -> None:
        self.names = {kind: f"{kind}-{next(_NUMBERS)}" for kind in ("account", "project", *SHARES)}
        operator = self.service.operator
        for kind, account in (("account", None), ("project", self.names["account"])):
            made = operator.ask("POST", "/v1/tenants", {"name": self.names[kind], "account": account})
            assert made.status == 201, made.body
            limits = {**LIMITS[kind], "mem_bytes": 1 << 50}
            assert operator.ask("PATCH", f"/v1/quotas/{self.names[kind]}", limits, if_match=1).status == 200
        for profile, share in SHARES.items():
            body = {"name": self.names[profile], "share_permille": share, "mem_bytes": MEMS[profile]}
            body["mode"] = MODES[profile]
            assert operator.ask("POST", "/v1/profiles", body).status == 201
        self.promised = Promised()
        self.hosts: dict[str, Machine] = {}
        for _ in range(2):
            name = f"host-{next(_NUMBERS)}"
            self.hosts[name] = Machine(name, enrolled(operator, name))
            self._report(self.hosts[name], "nothing", None)
        self.steps = 0
        self.kept: Promised | None = None
        self.risen: set[str] = set()
        self.ever: dict[str, Claim] = {}

    def teardown(self) -> None:
        if (error := sys.exception()) is not None:
            self.failures.append(error)
            return
        try:
            self._end()
        except Exception as contradiction:
            self.failures.append(contradiction)
            raise

    def _end(self) -> None:
        """Ends the life: when all hosts are back and all claims are released, nothing is used."""
        for machine in self.hosts.values():
            machine.away = False
        self.end_plans()
        for claim in list(self.promised.claims.values()):
            if claim.state == "claimed":
                self._delete(claim, "nothing")
        for name, machine in self.hosts.items():
            self.sync(name, "nothing")
            self.service.operator.ask("POST", f"/v1/hosts/{name}:confirm-epoch")
            self._forget_unnamed(machine)
            for _ in range(2):
                self.sync(name, "nothing")
        assert self.promised.claims == {}
        for kind in ("account", "project"):
            quota = self.service.operator.ask("GET", f"/v1/quotas/{self.names[kind]}").body
            assert [quota[f"used_{what}"] for what in ("share_permille", "mem_bytes", "slices")] == [0, 0, 0], quota
        assert Audit(self.service.url).violations() == []
        assert self.service.deployment.server_errors() == []
        for name in self.hosts:  # the next life makes new hosts
            generation = self.service.operator.ask("GET", f"/v1/hosts/{name}").body["generation"]
            assert self.service.operator.ask("DELETE", f"/v1/hosts/{name}", if_match=generation).status == 204

    @rule()
    def step(self) -> None:
        """Runs one of `ACTIONS`."""
        self.steps += 1
        self.rng = Random(f"{self.seed} {self.steps}")
        [action] = self.rng.choices(list(ACTIONS), list(ACTIONS.values()))
        getattr(self, action)()

    # ---- claims

    def claim(self) -> None:
        kind, profile = self.rng.choice(["account", "project"]), self.rng.choice(list(SHARES))
        self._claim(kind, profile, {"vm_uuid": str(uuid4())} if self.rng.random() < 0.5 else {})

    def _crowd(self, host: str) -> None:
        """Claims on the host until a claim is refused."""
        while self._claim("account", self.rng.choice(list(SHARES)), {"host": host}):
            pass

    def _claim(self, kind: str, profile: str, more: dict[str, str]) -> bool:
        body = {"tenant": self.names[kind], "profile": self.names[profile], **more}
        reply = self.ask_once("/v1/slices", body)
        if reply.status == 201:
            assert self.promised.room(kind, [profile]), "more than the quota was granted"
            self.granted(kind, profile, reply.body)
        elif reply.code == "quota.exceeded":
            assert not self.promised.room(kind, [profile]), f"refused although there is room: {reply.body}"
        else:
            assert reply.code == "capacity.none", reply.body
        self._look()
        return bool(reply.status == 201)

    def granted(self, kind: str, profile: str, said: Any, *, fenced: str = "") -> None:
        """Records a claim that the service granted, on any host or on one that was `fenced` at that moment."""
        assert said["id"] not in self.ever, "one slice was given twice"
        machine = self.hosts.get(said["host"])
        assert machine is not None, "a host of nobody was granted"
        assert machine.name not in self.promised.lapsed, "a host that was not heard of for a day took a claim"
        assert machine.name not in self.promised.closed, "a host that takes no claims took one"
        assert machine.name not in self.promised.fenced, "a dead host took a claim"
        state = "lost" if said["host"] == fenced else "claimed"
        made = Claim(said["id"], kind, profile, said["host"], said["gpu"], state=state, vm=said["vm_uuid"])
        self.promised.claims[made.id] = self.ever[made.id] = made

    def ask_once(self, path: str, body: dict[str, Any]) -> Any:
        """Sends a request that makes an object, with an idempotency key, under a random blow."""
        key = str(uuid4())
        reply = self.service.ask(self.service.operator, "POST", path, body, key=key, blow=self._blow())
        if reply.status == 201:
            self.promised.answers[key] = (path, body, reply.body)
        return reply

    def ask_again(self) -> None:
        if not self.promised.answers:
            return
        key, blow = self.rng.choice(sorted(self.promised.answers)), self._blow()
        path, body, answer = self.promised.answers[key]
        again = self.service.ask(self.service.operator, "POST", path, body, key=key, blow=blow)
        assert (again.status, again.body) == (201, answer)
        self._look()

    def delete(self) -> None:
        if self.promised.claims:
            self._delete(self._one(), self._blow())
            self._look()

    def bind(self) -> None:
        if not self.promised.claims:
            return
        claim, vm, blow = self._one(), str(uuid4()), self._blow()
        machine = self.hosts[claim.host]
        if machine.away or not self._known(machine):
            return
        path = f"/v1/hosts/{machine.name}/slices/{claim.id}:bind"
        reply = self.service.ask(self._agent(machine), "POST", path, {"vm_uuid": vm}, blow=blow)
        if claim.state != "claimed":
            assert reply.code == "slice.releasing", reply.body
        elif claim.vm is not None:
            assert reply.code == "slice.bound", reply.body
        else:
            assert reply.status == 200, reply.body
            self.promised.claims[claim.id] = replace(claim, vm=vm)
        self._look()

    # ---- hosts

    def look_act_report(self) -> None:
        self.sync(self._any().name, self._blow())
        self._look()

    def vm_starts(self) -> None:
        """The host needs no answer from the service for that."""
        machine = self._any()
        stopped = sorted(machine.usable().keys() - machine.devices.keys())
        if stopped:
            started = self.rng.choice(stopped)
            machine.devices[started] = machine.startable[started]
            machine.unproven.discard(started)
            self.service.story.append(f"{machine.name}: a VM starts with {started}")
            self._look()

    def vm_stops(self) -> None:
        machine = self._any()
        if machine.devices:
            stopped = self.rng.choice(sorted(machine.devices))
            del machine.devices[stopped]
            self.service.story.append(f"{machine.name}: the VM with {stopped} stops")

    def unnamed_end(self) -> None:
        """The host drops the claims that a trusted document did not name, as when their lease ends."""
        machine = self._any()
        if machine.trusts:
            machine.startable = {one: claim for one, claim in machine.startable.items() if one in machine.named}

    def part_or_heal(self) -> None:
        machine = self._any()
        machine.away = not machine.away

    def lease_expires(self) -> None:
        """The lease of a host expires; the host is away from now on."""
        machine = self._any()
        self.service.pass_time(machine.name, DAY)
        machine.away = True
        self.promised.lapsed.add(machine.name)
        self.promised.enrolled.discard(machine.name)

    def fence(self) -> None:
        away = [machine for machine in self.hosts.values() if machine.away]
        if not away:
            return
        machine = self.rng.choice([machine for machine in away if machine.name in self.promised.silent()] or away)
        path, body = f"/v1/hosts/{machine.name}", {"confirm": machine.name, "force": False}
        reply = self.ask_latest("POST", f"{path}:fence", body, of=path)
        if machine.name not in self.promised.silent() | self.promised.fenced:
            assert reply.code == "host.online", "a host that was heard of just now was fenced"
            return
        assert reply.status == 200, reply.body
        self.lose(machine.name)
        self._look()

    def lose(self, host: str) -> None:
        """Marks the claims of a host as lost, like a fence does."""
        self.promised.fenced.add(host)
        for claim in self._of(host):
            self.promised.claims[claim.id] = replace(claim, state="lost")

    def ask_latest(self, method: str, path: str, body: Any, *, of: str) -> Any:
        """Changes an object at its present generation, under a random blow.

        An attempt without an answer, or the service's own check of hosts, may change the object in between.
        """
        operator, blow = self.service.operator, self._blow()
        while True:
            generation = operator.ask("GET", of).body["generation"]
            reply = self.service.ask(operator, method, path, body, if_match=generation, blow=blow)
            if reply.code != "generation.stale":
                return reply

    def sync(self, name: str, blow: str) -> None:
        """Does what an agent does: it fetches the document, applies it and reports.

        A claim that is no longer named may still start until `unnamed_end` drops it.
        """
        machine = self.hosts[name]
        if machine.away:
            return
        self._known(machine)
        document = self._agent(machine).ask("GET", f"/v1/hosts/{name}/desired").body
        mine = {claim.id: claim for claim in self._of(name)}
        wanted, dead = ({one["id"] for one in document[what]} for what in ("slices", "tombstones"))
        assert wanted == {one for one, claim in mine.items() if claim.state == "claimed"}
        assert dead == {one for one, claim in mine.items() if claim.state != "claimed"}
        machine.obey(document, {one: mine[one] for one in wanted}, dead)
        self._report(machine, blow, document)
        if document["epoch_confirmed"]:
            for one in dead:
                del self.promised.claims[one]

    # ---- backups

    def backup(self) -> None:
        if self.kept is not None:
            return
        self.service.backup()
        self.kept = deepcopy(self.promised)

    def restore(self) -> None:
        if self.kept is None:
            return
        self.service.restore()
        self.risen |= self.kept.claims.keys() - self.promised.claims.keys()
        self.promised, self.kept = self.kept, None
        self._look()

    def recover(self) -> None:
        """Restores a backup that lacks some of the hosts' claims and still has some ended ones. Then follows the
        procedure after a restore, and claims all room.
        """
        self.backup()
        for name in self.hosts:
            for claim in self._of(name):
                if claim.state == "claimed" and self.rng.random() < 0.5:
                    self._delete(claim, "nothing")
            self.sync(name, "nothing")
            self._crowd(name)
            self.sync(name, "nothing")
            self.vm_starts()
        self.restore()
        for name, machine in self.hosts.items():
            self.sync(name, "nothing")
            self.vm_starts()
            self._confirm(machine)
            self.sync(name, "nothing")
            self.vm_starts()
            self._crowd(name)

    def confirm_epoch(self) -> None:
        self._confirm(self._any())

    def _confirm(self, machine: Machine) -> None:
        """Confirms a host, mostly after a comparison that first stops the running slices which the database does not
        know.
        """
        blow = self._blow()
        if not machine.away:
            if self.rng.random() < 0.7:
                known = self.promised.claims
                machine.devices = {one: device for one, device in machine.devices.items() if one in known}
            path = f"/v1/hosts/{machine.name}:confirm-epoch"
            assert self.service.ask(self.service.operator, "POST", path, blow=blow).status == 200
        self._look()

    # ---- what must be true

    def _look(self) -> None:
        audit = Audit(self.service.url)
        assert [*audit.sums(quotas_may_be_cut=True), *audit.fenced()] == []
        stored = {str(one): row.state for one, row in audit.slices().items() if row.host in self.hosts}
        assert stored == {one: claim.state for one, claim in self.promised.claims.items()}
        for name, machine in self.hosts.items():
            used: Counter[str] = Counter()
            held = {**machine.usable(), **machine.devices}
            held |= {claim.id: claim for claim in self._of(name) if claim.id not in self.risen}
            for claim in held.values():
                used[claim.gpu] += SHARES[claim.profile]
            assert all(share <= 1000 for share in used.values()), f"{name} is used twice: {used}"

    # ---- helpers

    def _delete(self, claim: Claim, blow: str) -> None:
        reply = self.service.ask(self.service.operator, "DELETE", f"/v1/slices/{claim.id}", blow=blow)
        assert reply.status == 202, reply.body
        if claim.state == "claimed":
            self.promised.claims[claim.id] = replace(claim, state="releasing")

    def _one(self) -> Claim:
        return self.promised.claims[self.rng.choice(sorted(self.promised.claims))]

    def _any(self) -> Machine:
        return self.rng.choice(list(self.hosts.values()))

    def _blow(self) -> str:
        return self.rng.choices(list(BLOWS), list(BLOWS.values()))[0]

    def _of(self, host: str) -> list[Claim]:
        return [claim for claim in self.promised.claims.values() if claim.host == host]

    def _agent(self, machine: Machine) -> Any:
        return self.service.deployment.caller(machine.token)

    def _forget_unnamed(self, machine: Machine) -> None:
        for known in (machine.devices, machine.startable):
            for one in known.keys() - self.promised.claims.keys():
                del known[one]

    def _known(self, machine: Machine) -> bool:
        """Enrols a host again if it was fenced or the restored database lacks its credential; returns False in that
        case.
        """
        reply = self._agent(machine).ask("GET", f"/v1/hosts/{machine.name}/desired")
        if reply.status == 200:
            return True
        assert reply.code in ("host.fenced", "auth.invalid"), reply.body
        operator = self.service.operator
        token = operator.ask("POST", f"/v1/hosts/{machine.name}:reenroll").body["enroll_token"]
        said = {"agent_version": "1", "boot_id": str(uuid4())}
        self.promised.fenced.discard(machine.name)
        self.promised.enrolled.add(machine.name)
        machine.token = self.service.deployment.caller(token).ask("POST", "/v1/enroll", said).body["token"]
        return False

    def _report(self, machine: Machine, blow: str, document: Any) -> None:
        machine.seq += 1
        named = {one["id"] for what in ("slices", "tombstones") for one in document[what]} if document else set()
        said = {
            "boot_id": "00000000-0000-0000-0000-000000000001",
            "agent_epoch": 1,
            "seq": machine.seq,
            "agent_version": "1",
            "desired_epoch": machine.trusted[0],
            "desired_generation": machine.trusted[1],
            "gpus": inventory((16, 16)),
            "groups": [],
            "slices": [
                _said(one, present=one in machine.devices, startable=one in machine.startable)
                for one in sorted(named | machine.devices.keys() | machine.startable.keys())
            ],
            "refusals": [],
        }
        path = f"/v1/hosts/{machine.name}/report"
        reply = self.service.ask(self._agent(machine), "POST", path, said, blow=blow)
        assert reply.status == 200, reply.body
        assert reply.body["accepted"] or reply.repeated
        self.promised.lapsed.discard(machine.name)
        self.promised.enrolled.discard(machine.name)


def _said(slice_id: str, *, present: bool, startable: bool) -> dict[str, Any]:
    said = {"id": slice_id, "generation": 1, "present": present, "open": False, "vm_uuid": None, "startable": startable}
    return said | {"applied_permille": None, "run_ns": 0, "items": 0}
