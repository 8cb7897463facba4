# SPDX-License-Identifier: Apache-2.0
"""What the service has promised, from its clients' point of view, and which devices the hosts have."""

from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30
SHARES = {"small": 150, "large": 600}
MEMS = {"small": GIB, "large": 2 * GIB}
MODES = {"small": "fair", "large": "strict"}
LIMITS = {"account": {"share_permille": 3000, "slices": 9}, "project": {"share_permille": 1700, "slices": 6}}
CUT = {"share_permille": 500, "slices": 2}


@dataclass(frozen=True)
class Claim:
    """A claim as the service promised it."""

    id: str
    owner: str
    profile: str
    host: str
    gpu: str
    state: str = "claimed"
    vm: str | None = None


@dataclass(frozen=True)
class Held:
    """The free places of a reservation."""

    owner: str
    profile: str
    places: int


@dataclass
class Machine:
    """A host: its devices are real, whatever a database says.

    `startable`: claims with which VMs may start without asking. `unproven`: those of them that may start only if the
    database knows everything on their GPU. `named`: the claims in the last document; `trusts`: whether that document
    was of a confirmed epoch. `trusted`: epoch and generation of the last trusted document, which reports name.
    """

    name: str
    token: str
    startable: dict[str, Claim] = field(default_factory=dict)
    unproven: set[str] = field(default_factory=set)
    named: set[str] = field(default_factory=set)
    trusts: bool = True
    trusted: tuple[str | None, int] = (None, 0)
    devices: dict[str, Claim] = field(default_factory=dict)
    seq: int = 0
    away: bool = False

    def obey(self, document: dict[str, Any], wanted: dict[str, Claim], dead: set[str]) -> None:
        """Removes exactly what the tombstones name, if the host trusts the document."""
        new = wanted.keys() - (self.startable.keys() - self.unproven)
        same_epoch = self.trusted[0] == document["epoch"]
        settled = self.trusts and same_epoch
        self.named, self.trusts = wanted.keys() | dead, document["epoch_confirmed"]
        if not self.trusts:
            self.startable = {one: claim for one, claim in self.startable.items() if one not in self.unproven}
            self.unproven = set(new)
            return
        self.unproven = new & self.unproven if settled else set(new)
        self.trusted = (document["epoch"], document["generation"])
        self.devices = {one: claim for one, claim in self.devices.items() if one not in dead}
        unnamed = {one: claim for one, claim in self.startable.items() if one not in self.named}
        self.startable = {**wanted, **(unnamed if same_epoch else {})}
        self.unproven -= self.usable().keys()

    def usable(self) -> dict[str, Claim]:
        """Returns the claims with which VMs may start."""
        doubtful = {claim.gpu for one, claim in {**self.devices, **self.startable}.items() if one not in self.named}
        return {
            one: claim for one, claim in self.startable.items() if one not in self.unproven or claim.gpu not in doubtful
        }


@dataclass
class Promised:
    """The state that a backup restores. `answers`: by idempotency key. `lapsed`: hosts without a report for a day.
    `enrolled`: lapsed hosts that enrolled again. `closed`: hosts that an operator closed to claims, and the operation
    that did it. `fenced`: hosts without a credential.
    """

    claims: dict[str, Claim] = field(default_factory=dict)
    answers: dict[str, tuple[str, dict[str, Any], Any]] = field(default_factory=dict)
    lapsed: set[str] = field(default_factory=set)
    enrolled: set[str] = field(default_factory=set)
    fenced: set[str] = field(default_factory=set)
    closed: dict[str, str] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    limits: dict[str, dict[str, int]] = field(default_factory=lambda: dict(LIMITS))

    def silent(self) -> set[str]:
        """Returns the hosts without a sign of life for a day."""
        return self.lapsed - self.enrolled

    def counted(self, owner: str) -> list[str]:
        """Returns the profile of each slice and reserved place that counts in the quota of `owner`."""
        kinds = ("account", "project") if owner == "account" else (owner,)
        found = [claim.profile for claim in self.claims.values() if claim.owner in kinds and claim.state != "lost"]
        for held in self.held.values():
            found += [held.profile] * held.places * (held.owner in kinds)
        return found

    def room(self, kind: str, profiles: list[str]) -> bool:
        """Returns whether the quotas of `kind` allow these profiles in addition."""
        for owner in {"account", kind}:
            would = self.counted(owner) + profiles
            limits = self.limits[owner]
            if sum(SHARES[each] for each in would) > limits["share_permille"] or len(would) > limits["slices"]:
                return False
        return True
