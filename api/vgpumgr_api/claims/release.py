# SPDX-License-Identifier: Apache-2.0
"""Ends claims and returns their quota and capacity. Only for slices that their host has confirmed gone.

A fence returns the quota of a host's slices at once, see `fencing`. The capacity of these slices returns when the host
has confirmed that they are gone, or is removed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from uuid import UUID

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.resources import SliceState
from vgpumgr_api.actors import Actor
from vgpumgr_api.claims.progress import settle_moves
from vgpumgr_api.db.models import Gpu, Slice, Tenant
from vgpumgr_api.db.reservations import Hold
from vgpumgr_api.db.statements import change
from vgpumgr_api.events import events
from vgpumgr_api.tenancy.enforcement import counted_permille
from vgpumgr_api.tenancy.quotas import give_back
from vgpumgr_api.usage import grants

BATCH = 500


def release(session: Session, actor: Actor, slice_ids: list[UUID]) -> set[UUID]:
    """Deletes tombstones and returns the hosts whose desired state changes.

    The caller holds the lock of the host's report row, so that no other transaction releases the same slices.
    """
    if not slice_ids:
        return set()
    rows = _read(session, slice_ids)
    gpus: dict[UUID, Counter[str]] = defaultdict(Counter)
    for claim, _, _ in rows:
        gpus[claim.gpu_id] += Counter(
            share=counted_permille(claim.share_permille, claim.fair_ratio_permille),
            mem=claim.type_mem_bytes,
            reserved=claim.reserved_permille,
        )

    return_quota(session, [(claim, tenant) for claim, tenant, _ in rows if claim.state != SliceState.LOST.value])
    for gpu_id in sorted(gpus):
        change(
            session,
            update(Gpu)
            .where(Gpu.id == gpu_id)
            .values(
                share_used=Gpu.share_used - gpus[gpu_id]["share"],
                mem_used=Gpu.mem_used - gpus[gpu_id]["mem"],
                reserved_permille=Gpu.reserved_permille - gpus[gpu_id]["reserved"],
                schedulable=True,
            ),
        )
    grants.end(session, slice_ids)
    lost = [claim.id for claim, _, _ in rows if claim.state == SliceState.LOST.value]
    for claim, tenant, _ in rows:
        _end(session, actor, claim, tenant)
    arrived = settle_moves(session, actor, Slice.moved_from.in_(lost)) if lost else set()
    return {host_id for _, _, host_id in rows} | arrived


def owners_in_order(claims: Iterable[tuple[Slice | Hold, Tenant]]) -> list[UUID]:
    """Returns the owners whose quotas count these slices, in lock order: accounts, then projects, each by id."""
    tenants = [tenant for _, tenant in claims]
    accounts = {tenant.account_id or tenant.id for tenant in tenants}
    return [*sorted(accounts), *sorted({tenant.id for tenant in tenants} - accounts)]


def return_quota(session: Session, claims: Sequence[tuple[Slice | Hold, Tenant]]) -> None:
    """Subtracts slices or reserved places from their owners' use."""
    counts: dict[UUID, Counter[str]] = defaultdict(Counter)
    for claim, tenant in claims:
        # An account counts its own slices and those of its projects.
        for owner in (tenant.id, tenant.account_id):
            if owner is not None:
                counts[owner] += Counter(share_permille=claim.share_permille, mem_bytes=claim.mem_bytes, slices=1)
    for owner in owners_in_order(claims):
        give_back(session, owner, **counts[owner])


def forget_lost(session: Session, actor: Actor, gpu_ids: Sequence[UUID]) -> None:
    """Deletes the lost slices of GPUs that are being removed. The caller holds the locks of the GPUs."""
    for claim, tenant in session.execute(
        select(Slice, Tenant)
        .join(Tenant, Tenant.id == Slice.tenant_id)
        .where(Slice.gpu_id.in_(gpu_ids), Slice.state == SliceState.LOST.value)
    ).all():
        _end(session, actor, claim, tenant)


def _end(session: Session, actor: Actor, claim: Slice, tenant: Tenant) -> None:
    change(session, delete(Slice).where(Slice.id == claim.id, Slice.state != SliceState.CLAIMED.value))
    events.record(session, actor, "slice.released", claim.id, tenant=tenant)
    session.expunge(claim)


def _read(session: Session, slice_ids: list[UUID]) -> list[tuple[Slice, Tenant, UUID]]:
    return [
        (row[0], row[1], row[2])
        for start in range(0, len(slice_ids), BATCH)
        for row in session.execute(
            select(Slice, Tenant, Gpu.host_id)
            .join(Tenant, Tenant.id == Slice.tenant_id)
            .join(Gpu, Gpu.id == Slice.gpu_id)
            .where(Slice.id.in_(slice_ids[start : start + BATCH]))
        )
    ]
