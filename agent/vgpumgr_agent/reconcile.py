# SPDX-License-Identifier: Apache-2.0
"""Plans actions from desired and observed state. Pure: no clock, no input or output.

When libvirt has reported that a VM is gone, the devices of its claims are removed, even if they are still open.
Otherwise an open device is never removed. A closed device is removed if its slice has a tombstone, if its claim has
moved to another GPU, or if no VM has a permit for it; the next start creates it again. Orphans are unused devices and
groups that neither desired state nor a tombstone names. They are removed once they are overdue. The caller decides when
desired state can be trusted about what it does not name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from vgpumgr.control.listed import MENDABLE, Unusable
from vgpumgr.wire.fleet import DesiredGroup, DesiredSlice
from vgpumgr_agent.backends import GroupKey, Observed, ObservedGroup, ObservedSlice


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The state that this host should have. `doomed`: groups that lost a slice to a tombstone, removed once empty."""

    groups: tuple[DesiredGroup, ...] = ()
    slices: tuple[DesiredSlice, ...] = ()
    tombstones: frozenset[UUID] = frozenset()
    doomed: frozenset[GroupKey] = field(default_factory=frozenset)


class Why(StrEnum):
    """Why a device is removed."""

    TOMBSTONE = "tombstone"
    RELEASED = "released"
    IDLE = "idle"
    STALE_RECORD = "stale record"
    ORPHAN = "orphan"
    MOVED = "moved to another GPU"
    WITHHELD = "withheld"


@dataclass(frozen=True, kw_only=True)
class Orphans:
    """Unused devices of ours and unused groups that neither desired state nor a tombstone names."""

    slices: frozenset[UUID] = frozenset()
    groups: frozenset[GroupKey] = frozenset()


@dataclass(frozen=True)
class BindGpu:
    """Bind a GPU of the configuration to the module or adopt it, and close it to VMs without a permit."""

    gpu: str


@dataclass(frozen=True)
class ConfigureGroup:
    """Set a group's parameters."""

    group: DesiredGroup


@dataclass(frozen=True)
class ForgetGroup:
    """Forget a group."""

    key: GroupKey


@dataclass(frozen=True)
class ApplySlice:
    """Set a device's tenant, weight and cap."""

    claim: DesiredSlice


@dataclass(frozen=True)
class RenewPermit:
    """Extend a permit, if its VM is still starting."""

    uuid: UUID


@dataclass(frozen=True)
class RemoveSlice:
    """Remove a device, or the record of a device that is gone. The helper refuses a device that a VM has open."""

    uuid: UUID
    why: Why


@dataclass(frozen=True)
class StartExecutor:
    """Start the executor of a device without one."""

    uuid: UUID


@dataclass(frozen=True)
class HaltExecutor:
    """Stop the executor of a device that is gone."""

    uuid: UUID


@dataclass(frozen=True)
class AdmitProcesses:
    """Create places for claims for processes of one GPU, with their terms."""

    claims: tuple[DesiredSlice, ...]


@dataclass(frozen=True)
class DismissProcesses:
    """Remove a place, which ends its programs."""

    uuid: UUID
    why: Why


_NONE = Orphans()
Action = (
    BindGpu
    | ConfigureGroup
    | ForgetGroup
    | ApplySlice
    | RenewPermit
    | RemoveSlice
    | StartExecutor
    | HaltExecutor
    | AdmitProcesses
    | DismissProcesses
)

RENEW_BELOW_S = 75
"""A permit with less time left is renewed. It lasts 120 s, and the agent looks at least every 30 s."""


def bindings(unusable: Sequence[Unusable], *, due: frozenset[str]) -> list[BindGpu]:
    """Return the actions that may make listed GPUs usable. `due`: GPUs that were not tried just now."""
    return [BindGpu(found.gpu) for found in unusable if found.code in MENDABLE and found.gpu in due]


def plan(
    wanted: Wanted,
    observed: Observed,
    *,
    released: frozenset[UUID] = frozenset(),
    overdue: Orphans = _NONE,
    executed: frozenset[UUID] = frozenset(),
) -> list[Action]:
    """Return the actions that bring `observed` to `wanted`, in order; none if they agree.

    `released`: slices whose VM is gone according to libvirt; `overdue`: orphans to remove if they still are orphans;
    `executed`: slices whose executor should be started now, if it is `lacking`.
    """
    nobodys = orphans(wanted, observed)
    return [
        *_groups(wanted, observed),
        *_slices(wanted, observed, released),
        *(StartExecutor(uuid) for uuid in sorted(executed & lacking(wanted, observed, released=released).keys())),
        *(HaltExecutor(uuid) for uuid in sorted(_left_over(observed))),
        *(RemoveSlice(uuid, Why.STALE_RECORD) for uuid in sorted(observed.stale_records - observed.removing)),
        *(RemoveSlice(uuid, Why.ORPHAN) for uuid in sorted(overdue.slices & nobodys.slices & observed.slices.keys())),
        *_forgotten(wanted, observed),
        *(ForgetGroup(key) for key in sorted(overdue.groups & nobodys.groups)),
    ]


def lacking(wanted: Wanted, observed: Observed, *, released: frozenset[UUID] = frozenset()) -> dict[UUID, str]:
    """Return the devices that stay and lack an executor that they need, with the reason if known."""
    claims = {claim.id: claim for claim in wanted.slices}
    found = {}
    for uuid, each in observed.slices.items():
        executor = observed.executors.get(uuid)
        if executor is not None and executor.state != "failed":
            continue
        if not each.recorded or uuid in observed.removing or not observed.lends(uuid):
            continue
        if _unwanted(each, claims.get(uuid), dead=uuid in wanted.tombstones, released=uuid in released) is None:
            found[uuid] = executor.reason if executor is not None else ""
    return found


def _left_over(observed: Observed) -> frozenset[UUID]:
    """Return the executors whose device is gone, and is not being removed."""
    return frozenset(observed.executors.keys() - observed.slices.keys() - observed.removing - observed.stale_records)


def orphans(wanted: Wanted, observed: Observed) -> Orphans:
    """Return the orphans. Groups on a GPU that is open to all are left out: they may be somebody else's."""
    known = wanted.tombstones | {claim.id for claim in wanted.slices}
    ours = {address for address, gpu in observed.gpus.items() if gpu.attach == "permit"}
    return Orphans(
        slices=frozenset(
            uuid
            for uuid, found in observed.slices.items()
            if found.recorded and not found.open and not found.permit_s and uuid not in known | observed.removing
        )
        | frozenset(uuid for uuid, place in observed.places.items() if not place.programs and uuid not in known),
        groups=frozenset(key for key in _unused(wanted, observed) - wanted.doomed if key[0] in ours),
    )


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
        and (found.weight, found.timeslice_us, found.mode) == (group.weight, group.timeslice_us, group.mode)
        and _same_cap(group, found)
        and (found.band, found.reserve_us, found.reserve_period_us)
        == (group.band, group.reserve_us, group.reserve_period_us)
    )


def _same_cap(wanted: DesiredGroup | DesiredSlice, found: ObservedGroup | ObservedSlice) -> bool:
    """Compare caps. Without a cap the period has no meaning."""
    if not wanted.cap_us:
        return not found.cap_us
    return (found.cap_us, found.cap_period_us) == (wanted.cap_us, wanted.cap_period_us)


def _slices(
    wanted: Wanted, observed: Observed, released: frozenset[UUID]
) -> Iterator[ApplySlice | RenewPermit | RemoveSlice]:
    claims = {claim.id: claim for claim in wanted.slices}
    for uuid, found in sorted(observed.slices.items()):
        if not found.recorded or uuid in observed.removing:
            continue
        claim = claims.get(uuid)
        why = _unwanted(found, claim, dead=uuid in wanted.tombstones, released=uuid in released)
        if why is not None:
            yield RemoveSlice(uuid, why)
        elif claim is not None:
            if not _same_slice(claim, found):
                yield ApplySlice(claim)
            if not found.open and found.permit_s < RENEW_BELOW_S and found.vm_uuid == claim.vm_uuid is not None:
                yield RenewPermit(uuid)


def _unwanted(found: ObservedSlice, claim: DesiredSlice | None, *, dead: bool, released: bool) -> Why | None:
    if claim is not None and released:
        return Why.RELEASED
    if found.open:
        return None
    if claim is None:
        # With neither claim nor tombstone, the API may have lost the claim by mistake; see orphans().
        return Why.TOMBSTONE if dead else None
    if found.gpu != claim.gpu:  # the next start creates it on the claim's GPU
        return Why.MOVED
    return None if found.permit_s else Why.IDLE


def _same_slice(claim: DesiredSlice, found: ObservedSlice) -> bool:
    return (found.tenant, found.weight) == (claim.tenant, claim.weight) and _same_cap(claim, found)


def _forgotten(wanted: Wanted, observed: Observed) -> Iterator[ForgetGroup]:
    return (ForgetGroup(key) for key in sorted(wanted.doomed & _unused(wanted, observed)))


def _unused(wanted: Wanted, observed: Observed) -> set[GroupKey]:
    """Return the groups without slices that nothing names."""
    named = {(group.gpu, group.tenant) for group in wanted.groups}
    named |= {(claim.gpu, claim.tenant) for claim in wanted.slices}
    used = {(found.gpu, found.tenant) for found in observed.slices.values()}
    empty = {key for key, found in observed.groups.items() if found.configured and not found.slices}
    return empty - named - used
