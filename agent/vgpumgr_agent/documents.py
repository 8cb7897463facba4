# SPDX-License-Identifier: Apache-2.0
"""How an incoming desired state changes the kept state. Pure.

The agent obeys the kept state even without the API. A document is trusted if it is for this host, has a confirmed
epoch, and is not older than the last trusted document. Only a trusted document's tombstones are obeyed. From any other
document only additions are taken. A device is never removed just because a document does not name it. A claim that
trusted documents no longer name is kept until its lease has run out. Only the first trusted document of another epoch
ends such a claim at once, because the new database may give the claim's place to others.

A database can name a claim whose place belongs to another claim, in two ways. A restored database may name a claim that
has ended since, and lack the claim that got its place. A database that lost commits may lack a claim, and give that
claim's place to others. So some additions are `unproven`: those of an untrusted document, those of the first trusted
document after it, and those of a document that lacks a claim without a tombstone. A VM may start with an unproven claim
only if the document is trusted and the claim's GPU has nothing that the database does not name.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from vgpumgr.control.sysfs import Sysfs
from vgpumgr.wire.fleet import LEASE_S, Arriving, Desired, DesiredGroup, DesiredSlice, Moved, Tombstone
from vgpumgr_agent import placing
from vgpumgr_agent.placing import Cards
from vgpumgr_agent.reconcile import Wanted

CLOCK_BACK_S = 60.0
"""If the wall clock was set back by more than this across a boot, the age of a lease is unknown."""

AGE_KEPT_S = 600.0
"""How often the age of a lease is written to disk."""

_DOUBTED = "only its additions are used, and no VM starts with one of them"


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Stamp(_Value):
    """An instant: the wall clock, the time since boot including suspension, and the boot's id.

    `aged_s`: how old the event that the stamp stands for already was at that instant.
    """

    wall_s: float
    boot_id: str
    boottime_s: float
    aged_s: float = 0.0

    def age_s(self, now: "Stamp") -> float | None:
        """Return how long ago this was. Return None if unknown, because the clock was set back across a boot."""
        if now.boot_id == self.boot_id:
            return self.aged_s + max(0.0, now.boottime_s - self.boottime_s)
        since_s = now.wall_s - self.wall_s
        return None if since_s < -CLOCK_BACK_S else self.aged_s + max(0.0, since_s)

    def aged(self, now: "Stamp") -> "Stamp":
        """Return a stamp that includes the age so far, or the stamp itself if little time has passed.

        If a boot sets the clock back, only the age since the last written stamp is lost.
        """
        age_s = self.age_s(now)
        if age_s is None or age_s - self.aged_s < AGE_KEPT_S:
            return self
        return now.model_copy(update={"aged_s": age_s})


class Clock:
    """This host's clocks."""

    def __init__(self, sysfs: Sysfs) -> None:
        """`sysfs`: source of the boot id, which is read once. Raises OSError."""
        self._boot_id = sysfs.boot_id()

    def now(self) -> Stamp:
        """Return the present time."""
        return Stamp(wall_s=time.time(), boot_id=self._boot_id, boottime_s=time.clock_gettime(time.CLOCK_BOOTTIME))


class Claim(_Value):
    """A claim. `unnamed_since`: when the API ceased to name it, which starts its lease; None while the API names it.

    `fenced`: the host was fenced, which ends the lease, and no trusted document has named the claim since.
    `unproven`: its place may have been given to others, and has not been seen free yet.
    """

    slice: DesiredSlice
    unnamed_since: Stamp | None = None
    fenced: bool = False
    unproven: bool = False


class Kept(_Value):
    """Desired state as this host obeys it.

    `epoch`, `generation`: of the last trusted document, None before the first. `seen_*`: of the last document, trusted
    or not. `host_state`: the host's operator state in the last document. `doubts`: why that document was not trusted,
    and which claims it lacks. `arriving`, `moved`: slices without a claim because they are moving here, or have moved.
    """

    host_id: UUID
    epoch: UUID | None = None
    generation: int = 0
    seen_epoch: UUID
    seen_generation: int
    trusted: bool
    lease_s: int = LEASE_S
    host_state: str = "ready"
    groups: list[DesiredGroup]
    claims: list[Claim]
    tombstones: list[Tombstone] = []
    doomed: list[tuple[str, str]] = []
    doubts: list[str] = []
    arriving: list[Arriving] = []
    moved: list[Moved] = []

    def wanted(self) -> Wanted:
        """Return the part of the state that is to exist on this host."""
        return Wanted(
            groups=tuple(self.groups),
            slices=tuple(claim.slice for claim in self.claims),
            tombstones=frozenset(tombstone.id for tombstone in self.tombstones),
            doomed=frozenset(self.doomed),
        )


def aged(kept: Kept, now: Stamp) -> Kept:
    """Return the state with lease ages updated to `now`, and without claims whose lease has ended.

    Return `kept` itself if nothing changes. While the last document is not trusted, no claim ends.
    """
    ended = [claim for claim in kept.claims if kept.trusted and _ended(claim, kept.lease_s, now)]
    claims = [
        claim
        if claim.unnamed_since is None
        else claim.model_copy(update={"unnamed_since": claim.unnamed_since.aged(now)})
        for claim in kept.claims
        if claim not in ended
    ]
    if claims == kept.claims:
        return kept
    over = {_lost(claim) for claim in ended}
    return kept.model_copy(update={"claims": claims, "doubts": [each for each in kept.doubts if each not in over]})


def fenced(kept: Kept) -> Kept:
    """Return the state with every claim marked as fenced, or `kept` itself if all are marked already."""
    if all(claim.fenced for claim in kept.claims):
        return kept
    return kept.model_copy(update={"claims": [claim.model_copy(update={"fenced": True}) for claim in kept.claims]})


def placed(kept: Kept, cards: Cards) -> Kept:
    """Return the state with the present addresses of the cards, or `kept` itself if no card has moved."""
    claims = [
        claim if found is claim.slice else claim.model_copy(update={"slice": found})
        for claim, found in zip(kept.claims, placing.placed([claim.slice for claim in kept.claims], cards), strict=True)
    ]
    groups = placing.placed(kept.groups, cards)
    if (claims, groups) == (kept.claims, kept.groups):
        return kept
    return kept.model_copy(update={"claims": claims, "groups": groups})


def startable(kept: Kept | None) -> frozenset[UUID]:
    """Return the claims that VMs may start with, possibly only after the claims are bound or their places are free."""
    if kept is None:
        return frozenset()
    return frozenset(
        claim.slice.id for claim in kept.claims if not claim.fenced and (kept.trusted or not claim.unproven)
    )


def proven(kept: Kept, devices: Mapping[str, frozenset[UUID]]) -> Kept:
    """Return the state with claims proven on GPUs without unnamed slices, or `kept` itself if no claim changes.

    `devices`: the devices of each GPU, observed after `kept` became the state.
    """
    free = {gpu for gpu, found in devices.items() if kept.trusted and not unnamed(kept, gpu, found)}
    claims = [
        claim.model_copy(update={"unproven": False}) if claim.unproven and claim.slice.gpu in free else claim
        for claim in kept.claims
    ]
    return kept if claims == kept.claims else kept.model_copy(update={"claims": claims})


def unnamed(kept: Kept, gpu: str, devices: frozenset[UUID]) -> frozenset[UUID]:
    """Return those of a GPU's `devices` and startable claims that the last document does not name."""
    named = {claim.slice.id for claim in kept.claims if claim.unnamed_since is None}
    named |= {tombstone.id for tombstone in kept.tombstones}
    startable = {claim.slice.id for claim in kept.claims if claim.slice.gpu == gpu and not claim.fenced}
    return (devices | startable) - named


def as_host(kept: Kept | None, host_id: UUID) -> Kept | None:
    """Return the state for a host that enrolled as `host_id`. Under a new id the host has trusted no document yet."""
    if kept is None or kept.host_id == host_id:
        return kept
    return kept.model_copy(update={"host_id": host_id, "epoch": None, "generation": 0})


def load(path: Path) -> Kept | None:
    """Return the state kept in a file, or None without a file. Raises OSError; ValueError for a damaged file."""
    try:
        return Kept.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None


def merge(kept: Kept | None, new: Desired, now: Stamp) -> Kept:
    """Return the state to keep after `new` has arrived."""
    doubt = _doubt(kept, new)
    return _trusted(kept, new, now) if doubt is None else _additions(kept, new, now, doubt)


def _doubt(kept: Kept | None, new: Desired) -> str | None:
    if kept is not None and startable(kept) and kept.host_id != new.host_id:
        return f"the API identifies this host as {new.host_id}, but it is {kept.host_id}: {_DOUBTED}; check api_url"
    if not new.epoch_confirmed:
        return f"epoch {new.epoch} is not confirmed for this host: {_DOUBTED}; confirm it if it is right"
    of_one_row = kept is not None and (kept.host_id, kept.epoch) == (new.host_id, new.epoch)
    if kept is not None and of_one_row and new.generation < kept.generation:
        return (
            f"the desired state went back from generation {kept.generation} to {new.generation}: {_DOUBTED}; if the "
            "database was restored, run vgpumgr-api new-epoch"
        )
    return None


def _trusted(kept: Kept | None, new: Desired, now: Stamp) -> Kept:
    before = {claim.slice.id: claim for claim in kept.claims} if kept else {}
    same_epoch = kept is not None and kept.epoch == new.epoch
    bound = before if same_epoch else {}  # generations of different epochs cannot be compared
    named = {found.id for found in new.slices}
    dead = {tombstone.id for tombstone in new.tombstones} - named
    lost = [claim for uuid, claim in before.items() if uuid not in named | dead]
    trusted = same_epoch and kept is not None and kept.trusted
    certain = named - before.keys() if trusted and not lost else set()
    certain |= {uuid for uuid, claim in before.items() if not claim.unproven and (trusted or not claim.fenced)}
    claims = [Claim(slice=_newer(bound.get(found.id), found), unproven=found.id not in certain) for found in new.slices]
    lent = lost if same_epoch else []
    keys = {(group.gpu, group.tenant) for group in new.groups}
    lost_keys = {(claim.slice.gpu, claim.slice.tenant) for claim in lent} - keys
    doomed = {(before[uuid].slice.gpu, before[uuid].slice.tenant) for uuid in dead if uuid in before}
    doomed |= set(kept.doomed) if kept else set()
    return Kept(
        host_id=new.host_id,
        epoch=new.epoch,
        generation=new.generation,
        seen_epoch=new.epoch,
        seen_generation=new.generation,
        trusted=True,
        lease_s=new.lease_s,
        host_state=new.host_state,
        groups=[*new.groups, *(group for group in (kept.groups if kept else ()) if _key(group) in lost_keys)],
        claims=[*claims, *(_unnamed(claim, now) for claim in lent)],
        tombstones=[tombstone for tombstone in new.tombstones if tombstone.id in dead],
        doomed=sorted(doomed - keys),
        doubts=[_lost(claim) if same_epoch else _ended_with_epoch(claim) for claim in lost],
        arriving=new.arriving,
        moved=new.moved,
    )


def _additions(kept: Kept | None, new: Desired, now: Stamp, doubt: str) -> Kept:
    before = {claim.slice.id: claim for claim in kept.claims if not claim.unproven} if kept else {}
    named = {found.id: found for found in new.slices}
    groups = {_key(group): group for group in new.groups}
    groups.update({_key(group): group for group in kept.groups} if kept else {})
    claims = [
        Claim(slice=claim.slice) if not claim.fenced and _agree(claim.slice, named.get(uuid)) else _unnamed(claim, now)
        for uuid, claim in before.items()
    ]
    lost = [claim for uuid, claim in before.items() if uuid not in named]
    return Kept(
        host_id=kept.host_id if kept and kept.claims else new.host_id,
        epoch=kept.epoch if kept else None,
        generation=kept.generation if kept else 0,
        seen_epoch=new.epoch,
        seen_generation=new.generation,
        trusted=False,
        lease_s=kept.lease_s if kept else new.lease_s,
        host_state=new.host_state,
        groups=list(groups.values()),
        claims=[*claims, *(Claim(slice=found, unproven=True) for uuid, found in named.items() if uuid not in before)],
        tombstones=[tombstone for tombstone in (kept.tombstones if kept else ()) if tombstone.id not in named],
        doomed=[key for key in (kept.doomed if kept else ()) if key not in groups],
        doubts=[doubt, *(_lost(claim) for claim in lost)],
        arriving=new.arriving,
        moved=new.moved,
    )


def _key(group: DesiredGroup) -> tuple[str, str]:
    return group.gpu, group.tenant


def _newer(before: Claim | None, found: DesiredSlice) -> DesiredSlice:
    """Return the document's slice. If the kept slice is newer, include its binding to a VM and its generation."""
    if before is None or before.slice.generation <= found.generation:
        return found
    return found.model_copy(update={"vm_uuid": before.slice.vm_uuid, "generation": before.slice.generation})


def _agree(before: DesiredSlice, found: DesiredSlice | None) -> bool:
    return found is not None and (before.gpu, before.tenant, before.vm_uuid) == (found.gpu, found.tenant, found.vm_uuid)


def _unnamed(claim: Claim, now: Stamp) -> Claim:
    return claim if claim.unnamed_since is not None else claim.model_copy(update={"unnamed_since": now})


def _ended(claim: Claim, lease_s: int, now: Stamp) -> bool:
    if claim.unnamed_since is None:
        return False
    if claim.fenced:
        return True
    age_s = claim.unnamed_since.age_s(now)
    return age_s is None or age_s >= lease_s


def _lost(claim: Claim) -> str:
    return f"slice {claim.slice.id} is no longer named and has no tombstone: kept until its lease ends"


def _ended_with_epoch(claim: Claim) -> str:
    return f"slice {claim.slice.id} is not in the database that was confirmed: no VM starts with it any more"
