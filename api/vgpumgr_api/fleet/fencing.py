# SPDX-License-Identifier: Apache-2.0
"""Declaring a host dead, which ends its claims without the host's confirmation.

Its slices become `lost`. Their quota returns at once, so that their owners can claim elsewhere. Their places on its
GPUs do not: a lost slice is a tombstone, and counts there until the host has enrolled again and confirmed that the
device is gone. So even if the host was still running, none of its capacity is granted twice.

Places that reservations hold there stay reserved until the reservations end, but no claim gets such a place.
"""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Host, HostFence, SliceState
from vgpumgr_api.actors import Actor, require_operator, unknown
from vgpumgr_api.auth import credentials
from vgpumgr_api.claims import progress
from vgpumgr_api.claims.release import owners_in_order, return_quota
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.reservations import Hold, Reservation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.fleet.hosts import get_host
from vgpumgr_api.fleet.inventory import mark_absent
from vgpumgr_api.placement.obstacles import ONLINE
from vgpumgr_api.resources.generations import IfMatch, bump, require_match
from vgpumgr_api.resources.lookup import host_named
from vgpumgr_api.usage import grants


def fence_host(session: Session, actor: Actor, name: str, request: HostFence, *, if_match: IfMatch) -> Host:
    """Revokes a host's credentials and ends its claims. For operators only.

    Repeating this changes nothing, unless claims are left. It locks the report row like a report, so that every report
    comes before or after the fence; then it locks rows in the same order as a claim.
    """
    require_operator(actor)
    host = host_named(session, name)
    require_match(session, if_match, host.id, host.generation)
    _require_confirmed(host, request)
    if host.fenced_at is not None and host.enroll_hash is None and not _claims(session, host.id):
        return get_host(session, actor, name)
    reported_at = session.scalar(select(HostReport.reported_at).where(HostReport.host_id == host.id).with_for_update())
    alive = any(seen is not None and now(session) - seen <= ONLINE for seen in (reported_at, host.enrolled_at))
    if alive and not request.force:
        raise Refusal(
            Code.HOST_ONLINE,
            f"{name} was heard of within the last {ONLINE.seconds} s; make sure that it is powered off, wait that long,"
            " then fence it; force fences a running host",
        )
    owners = owners_in_order([*_claims(session, host.id), *_holds(session, host.id)])
    lock_quotas(session, owners)
    _close_gpus(session, actor, host)
    lost = _claims(session, host.id, lock=True)
    if not set(owners) >= set(owners_in_order(lost)):  # another tenant claimed before the GPUs were locked
        raise TryAgain
    return_quota(session, lost)
    arrived = progress.settle_moves(session, actor, models.Slice.moved_from_host_id == host.id)
    progress.lose(session, [claim.id for claim, _ in lost])
    bump(session, [host.id, *arrived])
    _lock(session, host, if_match)
    grants.end(session, [claim.id for claim, _ in lost])
    for claim, tenant in lost:
        claim.state = SliceState.LOST.value
        claim.tombstone_generation = host.desired_generation
        claim.generation += 1
        events.record(session, actor, "slice.lost", claim.id, tenant=tenant, generation=claim.generation)
    credentials.revoke(session, host.id, host.name)
    credentials.revoke_enrolment(session, host)
    credentials.mark_fenced(session, host.id)
    host.fenced_at = now(session)
    host.generation += 1
    detail = {"slices": len(lost), "alive": alive}
    events.record(session, actor, "host.fenced", host.name, generation=host.generation, detail=detail)
    session.flush()
    return get_host(session, actor, name)


def _require_confirmed(host: models.Host, request: HostFence) -> None:
    if request.confirm != host.name:
        detail = f"repeat the host's name, {host.name}, once you are sure that it is powered off"
        raise Refusal(
            Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field="$.confirm"),)
        )


def _claims(session: Session, host_id: UUID, *, lock: bool = False) -> list[tuple[models.Slice, models.Tenant]]:
    statement = (
        select(models.Slice, models.Tenant)
        .join(models.Gpu, models.Gpu.id == models.Slice.gpu_id)
        .join(models.Tenant, models.Tenant.id == models.Slice.tenant_id)
        .where(models.Gpu.host_id == host_id, models.Slice.state != SliceState.LOST.value)
        .order_by(models.Slice.id)
    )
    if lock:
        statement = statement.with_for_update(of=models.Slice).execution_options(populate_existing=True)
    return [(row[0], row[1]) for row in session.execute(statement)]


def _holds(session: Session, host_id: UUID) -> list[tuple[Hold, models.Tenant]]:
    """Returns the reserved places on a host. Such a place may become a claim without a lock on its GPU."""
    rows = session.execute(
        select(Hold, models.Tenant)
        .join(models.Gpu, models.Gpu.id == Hold.gpu_id)
        .join(Reservation, Reservation.id == Hold.reservation_id)
        .join(models.Tenant, models.Tenant.id == Reservation.tenant_id)
        .where(models.Gpu.host_id == host_id)
    )
    return [(row[0], row[1]) for row in rows]


def lock_quotas(session: Session, owners: list[UUID]) -> None:
    """Locks the quotas of `owners`, which must be in the order of `owners_in_order`."""
    for owner in owners:
        session.scalar(select(models.Quota.tenant_id).where(models.Quota.tenant_id == owner).with_for_update())


def _close_gpus(session: Session, actor: Actor, host: models.Host) -> None:
    for gpu in session.scalars(
        select(models.Gpu).where(models.Gpu.host_id == host.id).order_by(models.Gpu.id).with_for_update()
    ).all():
        if gpu.present:
            mark_absent(session, actor, host, gpu)


def _lock(session: Session, host: models.Host, if_match: IfMatch) -> None:
    """Locks the host and compares its generation, which any change since the host was read has advanced."""
    statement = select(models.Host).where(models.Host.id == host.id).with_for_update()
    if session.scalar(statement.execution_options(populate_existing=True)) is None:
        raise unknown("host", host.name)
    require_match(session, if_match, host.id, host.generation)
