# SPDX-License-Identifier: Apache-2.0
"""What to do, from what shall be and what is. Pure: no clock, no input or output.

Only a tombstone makes a claim's device go while it may still be wanted, and only the tombstone of a tenant's slice
makes its group go. A device of a claim that no VM uses goes too, since the next start makes it again.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from vgpumgr.wire.fleet import DesiredGroup, DesiredSlice
from vgpumgr_agent.backends import GroupKey, Observed, ObservedGroup, ObservedSlice


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What this host shall have. `doomed`: groups that lost a slice to a tombstone; they go once empty."""

    groups: tuple[DesiredGroup, ...] = ()
    slices: tuple[DesiredSlice, ...] = ()
    tombstones: frozenset[UUID] = frozenset()
    doomed: frozenset[GroupKey] = field(default_factory=frozenset)


class Why(StrEnum):
    """Why a device goes."""

    TOMBSTONE = "tombstone"
    RELEASED = "released"
    IDLE = "idle"
    STALE_RECORD = "stale record"


@dataclass(frozen=True)
class ConfigureGroup:
    """Give a group its parameters."""

    group: DesiredGroup


@dataclass(frozen=True)
class ForgetGroup:
    """Forget a group."""

    key: GroupKey


@dataclass(frozen=True)
class ApplySlice:
    """Give a device its tenant, weight and cap."""

    claim: DesiredSlice


@dataclass(frozen=True)
class RemoveSlice:
    """Remove a device, or the record of one that is gone. The helper refuses one that a VM has open."""

    uuid: UUID
    why: Why


Action = ConfigureGroup | ForgetGroup | ApplySlice | RemoveSlice


def plan(wanted: Wanted, observed: Observed, *, released: frozenset[UUID] = frozenset()) -> list[Action]:
    """Return what brings `observed` to `wanted`, in order; nothing once it is there.

    `released`: slices whose VM libvirt has declared gone.
    """
    return [
        *_groups(wanted, observed),
        *_slices(wanted, observed, released),
        *(RemoveSlice(uuid, Why.STALE_RECORD) for uuid in sorted(observed.stale_records - observed.removing)),
        *_forgotten(wanted, observed),
    ]


def _groups(wanted: Wanted, observed: Observed) -> Iterator[ConfigureGroup]:
    for group in wanted.groups:
        gpu = observed.gpus.get(group.gpu)
        if gpu is None or not gpu.types:
            continue
        found = observed.groups.get((group.gpu, group.tenant))
        if gpu.attach != "permit" or not _same_group(group, found):
            yield ConfigureGroup(group)


def _same_group(group: DesiredGroup, found: ObservedGroup | None) -> bool:
    return (
        found is not None
        and found.configured
        and (found.weight, found.timeslice_us) == (group.weight, group.timeslice_us)
        and _same_cap(group, found)
    )


def _same_cap(wanted: DesiredGroup | DesiredSlice, found: ObservedGroup | ObservedSlice) -> bool:
    """Without a cap its period means nothing."""
    if not wanted.cap_us:
        return not found.cap_us
    return (found.cap_us, found.cap_period_us) == (wanted.cap_us, wanted.cap_period_us)


def _slices(wanted: Wanted, observed: Observed, released: frozenset[UUID]) -> Iterator[ApplySlice | RemoveSlice]:
    claims = {claim.id: claim for claim in wanted.slices}
    for uuid, found in sorted(observed.slices.items()):
        if not found.recorded or uuid in observed.removing:
            continue
        claim = claims.get(uuid)
        why = _unwanted(found, claimed=claim is not None, dead=uuid in wanted.tombstones, released=uuid in released)
        if why is not None:
            yield RemoveSlice(uuid, why)
        elif claim is not None and not _same_slice(claim, found):
            yield ApplySlice(claim)


def _unwanted(found: ObservedSlice, *, claimed: bool, dead: bool, released: bool) -> Why | None:
    if claimed and released:
        return Why.RELEASED
    if found.open:
        return None
    if dead and not claimed:
        return Why.TOMBSTONE
    # Not a device without a claim and without a tombstone: the API may have forgotten it by mistake.
    return Why.IDLE if claimed and not found.permit_s else None


def _same_slice(claim: DesiredSlice, found: ObservedSlice) -> bool:
    return (found.tenant, found.weight) == (claim.tenant, claim.weight) and _same_cap(claim, found)


def _forgotten(wanted: Wanted, observed: Observed) -> Iterator[ForgetGroup]:
    named = {(group.gpu, group.tenant) for group in wanted.groups}
    named |= {(claim.gpu, claim.tenant) for claim in wanted.slices}
    used = {(found.gpu, found.tenant) for found in observed.slices.values()}
    for key in sorted(wanted.doomed - named - used):
        found = observed.groups.get(key)
        if found is not None and found.configured and not found.slices:
            yield ForgetGroup(key)
