# SPDX-License-Identifier: Apache-2.0
"""Claims for processes: the actions that desired and observed state call for, and the reported state. Pure.

A place is a tenant of a broker, on a GPU that the host's settings set aside. It is created when its claim arrives, not
when a program starts, because nothing on a host announces a program. When a claim is deleted, its programs end with its
place. While no program may start (after the lease, in maintenance, after a fence), a place with programs stays, and a
place without programs is removed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from uuid import UUID

from vgpumgr.wire.common import BROKER, PERMILLE, Workload
from vgpumgr.wire.fleet import DesiredSlice, ReportedSlice
from vgpumgr_agent.backends import Observed, ObservedGpu, ObservedPlace, Terms
from vgpumgr_agent.documents import Kept
from vgpumgr_agent.executions import FAILED, RUNNING, STARTING, Standing
from vgpumgr_agent.reconcile import AdmitProcesses, DismissProcesses, Orphans, Wanted, Why, orphans

ENGINE = "native"
TIMESLICE_MIN_US = 2000
"""Twenty times the broker's estimate of the cost of a switch between tenants."""
GRANULARITY_US = 5000
MAINTENANCE = "maintenance"

Aside = Mapping[str, ObservedGpu]
"""GPUs that are set aside, by address."""


def is_for_processes(claim: DesiredSlice) -> bool:
    """Return whether a claim is for processes."""
    return claim.workload is Workload.PROCESS


def set_aside(gpus: Sequence[ObservedGpu], shared: Mapping[str, ObservedGpu], addresses: frozenset[str]) -> Aside:
    """Return the GPUs among `addresses` that processes may have. `gpus`: as reported by their own driver."""
    return {
        gpu.address: replace(
            gpu,
            backend=BROKER,
            engine=ENGINE,
            timeslice_min_us=max(gpu.timeslice_min_us, TIMESLICE_MIN_US),
            max_chunk_us=GRANULARITY_US,
        )
        for gpu in gpus
        if gpu.address in addresses and gpu.address not in shared
    }


def troubles(aside: Aside, shared: Mapping[str, ObservedGpu], addresses: frozenset[str]) -> list[str]:
    """Return a line for each GPU that is set aside but cannot be used."""
    return [
        f"GPU {address}: set aside for processes, and shared by vgpumgr.ko for VMs; remove it from either setting"
        if address in shared
        else f"GPU {address}: set aside for processes, but NVIDIA's driver does not list it; load it, with its NVML"
        for address in sorted(addresses - aside.keys())
    ]


def plan(
    kept: Kept, observed: Observed, *, gpus: frozenset[str], leased: frozenset[UUID], overdue: Orphans
) -> Iterator[AdmitProcesses | DismissProcesses]:
    """Yield the actions that bring places to the wanted state, in order.

    `gpus`: GPUs that are set aside; `leased`: claims with a valid lease; `overdue`: orphans to remove if they still are
    orphans.
    """
    wanted = kept.wanted()
    claims = {claim.id: claim for claim in wanted.slices if is_for_processes(claim)}
    may = {
        claim.slice.id
        for claim in kept.claims
        if claim.slice.id in leased and not claim.fenced and not claim.unproven and kept.host_state != MAINTENANCE
    }
    nobodys = orphans(wanted, observed).slices & overdue.slices
    for uuid, place in sorted(observed.places.items()):
        why = _unwanted(place, claims.get(uuid), may=uuid in may, dead=uuid in wanted.tombstones)
        if why is not None or uuid in nobodys:
            yield DismissProcesses(uuid, why or Why.ORPHAN)
    for gpu in sorted(gpus):
        missing = [claim for uuid, claim in sorted(claims.items()) if uuid in may and claim.gpu == gpu]
        missing = [claim for claim in missing if not _is_met(claim, observed)]
        if missing:
            yield AdmitProcesses(tuple(missing))


def _unwanted(place: ObservedPlace, claim: DesiredSlice | None, *, may: bool, dead: bool) -> Why | None:
    if claim is None:
        return Why.TOMBSTONE if dead else None
    if claim.gpu != place.gpu:
        return Why.MOVED
    return Why.WITHHELD if not may and not place.programs else None


def _is_met(claim: DesiredSlice, observed: Observed) -> bool:
    place, broker = observed.places.get(claim.id), observed.brokers.get(claim.gpu)
    return (
        broker is not None
        and broker.running
        and broker.current
        and place is not None
        and place.served
        and place.gpu == claim.gpu
        and place.terms == terms_of(claim)
    )


def terms_of(claim: DesiredSlice) -> Terms:
    """Return the terms of a claim's place."""
    names = ("tenant", "weight", "cap_us", "cap_period_us", "timeslice_us", "mem_bytes")
    return Terms(**{name: getattr(claim, name) for name in names})


def errors(wanted: Wanted, observed: Observed, *, gpus: frozenset[str]) -> dict[UUID, str]:
    """Return why claims for processes are not in order."""
    found = {}
    for claim in wanted.slices:
        broker = observed.brokers.get(claim.gpu)
        if not is_for_processes(claim):
            continue
        if claim.gpu not in gpus:
            found[claim.id] = f"gpu.workload: GPU {claim.gpu} is not set aside for processes on this host any more"
        elif broker is not None and not broker.running:
            found[claim.id] = f"broker.failed: {broker.reason or 'its broker does not run'}"
    return found


def standings(observed: Observed) -> dict[UUID, Standing]:
    """Return the state of each place's broker."""
    return {
        uuid: Standing(
            state=RUNNING if place.ready else STARTING if place.served else FAILED,
            reason="" if place.served else observed.brokers[place.gpu].reason,
            memory_used_bytes=place.memory_used_bytes,
            memory_bytes=place.terms.mem_bytes if place.terms else 0,
        )
        for uuid, place in observed.places.items()
    }


def reported(place: ObservedPlace, observed: Observed, *, generation: int, error: str) -> ReportedSlice:
    """Return the report about a place."""
    return ReportedSlice(
        id=place.uuid,
        generation=generation,
        present=True,
        open=place.programs > 0,
        vm_uuid=None,
        applied_permille=applied_permille(place, observed),
        run_ns=place.run_ns,
        items=place.leases,
        error=error,
        enforced_by=place.enforced_by,
    )


def applied_permille(place: ObservedPlace, observed: Observed) -> int:
    """Return the share that a broker guarantees to a place.

    A weight is a permille of the GPU, unless the weights add up to more than 1000.
    """
    if not place.served or place.terms is None:
        return 0
    sold = sum(each.terms.weight for each in observed.places.values() if each.gpu == place.gpu and each.terms)
    share = Fraction(place.terms.weight, max(PERMILLE, sold))
    if place.terms.cap_us:
        share = min(share, Fraction(place.terms.cap_us, place.terms.cap_period_us))
    return int(share * PERMILLE)
