# SPDX-License-Identifier: Apache-2.0
"""Jobs of `housekeeping` that notice missed deadlines. They release nothing: they set a state and record an event.

Each job returns whether there is more to do. Replicas may run a job at once: each job skips rows that another replica
has locked, and a row that was handled no longer matches the condition.
"""

from datetime import timedelta

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Workload
from vgpumgr.wire.resources import SliceState
from vgpumgr_api.actors import local_operator
from vgpumgr_api.claims import progress
from vgpumgr_api.claims.deadline_settings import Deadlines
from vgpumgr_api.claims.progress import Place
from vgpumgr_api.db.database import now
from vgpumgr_api.db.models import Gpu, Host, Slice, Tenant
from vgpumgr_api.db.observations import HostReport, SliceObservation
from vgpumgr_api.db.progress import SliceProgress
from vgpumgr_api.events import events
from vgpumgr_api.installation.liveness import alive_for

BATCH = 200
CLOCK = local_operator("api:deadlines")


def overdue_slices(session: Session, limits: Deadlines) -> bool:
    """Marks slices that were in a state with a deadline for too long as failed or orphaned."""
    alive = alive_for(session)
    more = False
    for state, limit_s in (
        (SliceState.CLAIMED, limits.claimed_s),
        (SliceState.PREPARED, limits.prepared_s),
        (SliceState.RELEASING, limits.releasing_s),
    ):
        limit = timedelta(seconds=limit_s)
        if alive < limit:
            continue
        rows = session.execute(
            select(SliceProgress, Slice, Tenant, SliceObservation)
            .join(Slice, Slice.id == SliceProgress.slice_id)
            .join(Tenant, Tenant.id == Slice.tenant_id)
            .outerjoin(SliceObservation, SliceObservation.slice_id == Slice.id)
            .where(SliceProgress.timed, SliceProgress.state == state.value, SliceProgress.since <= now(session) - limit)
            .order_by(SliceProgress.since)
            .limit(BATCH)
            .with_for_update(of=SliceProgress, skip_locked=True)
        ).all()
        for row, claim, tenant, seen in rows:
            progress.move(session, CLOCK, claim, tenant, row, _too_late(claim, state, limit_s, seen))
        more |= len(rows) == BATCH
    return more


def unnamed_slices(session: Session, limits: Deadlines) -> bool:
    """Creates a progress row for slices that no host has reported yet, so that their deadlines apply."""
    limit = timedelta(seconds=min(limits.claimed_s, limits.releasing_s))
    claims = session.scalars(
        select(Slice)
        .outerjoin(SliceProgress, SliceProgress.slice_id == Slice.id)
        .where(
            SliceProgress.slice_id.is_(None),
            Slice.state != SliceState.LOST.value,
            Slice.created_at <= now(session) - limit,
        )
        .order_by(Slice.id)
        .limit(BATCH)
        .with_for_update(of=Slice, read=True, key_share=True, skip_locked=True)
    ).all()
    for claim in claims:
        progress.locked(session, claim)
    return len(claims) == BATCH


def silent_hosts(session: Session, limits: Deadlines) -> bool:
    """Marks hosts as lost that have been silent for too long, and hosts that report again as returned."""
    limit = timedelta(seconds=limits.host_lost_s)
    found = HostReport.reported_at > now(session) - limit
    returned = session.execute(_hosts(HostReport.lost_at.is_not(None), found)).all()
    for report, host in returned:
        report.lost_at = None
        events.record(session, CLOCK, "host.returned", host.name)
    if alive_for(session) < limit:
        return len(returned) == BATCH
    lost = session.execute(
        _hosts(
            HostReport.lost_at.is_(None),
            HostReport.reported_at <= now(session) - limit,
            Host.fenced_at.is_(None),
            Host.enroll_hash.is_(None),
            or_(Host.cordoned_for.is_(None), Host.cordoned_for != "maintenance"),
        )
    ).all()
    for report, host in lost:
        report.lost_at = now(session)
        detail = {"last_report_at": str(report.reported_at)}
        events.record(session, CLOCK, "host.lost", host.name, generation=host.generation, detail=detail)
    return BATCH in (len(returned), len(lost))


def ended_leases(session: Session, limits: Deadlines) -> bool:
    """Marks slices as orphaned whose host has been silent for longer than its lease: no VM can start with them.

    Such a host is marked lost, or it is one that is never marked lost, because it is in maintenance, has no credential,
    or has not reported since it enrolled. A concurrent report of the host is either visible here, or is processed later
    and corrects the state.
    """
    host_lost = timedelta(seconds=limits.host_lost_s)
    silent: ColumnElement[bool] = HostReport.lost_at.is_not(None)
    if alive_for(session) >= host_lost:
        silent = or_(
            silent,
            Host.cordoned_for == "maintenance",
            Host.enroll_hash.is_not(None),
            HostReport.reported_at.is_(None),
        )
    heard_at = func.coalesce(HostReport.reported_at, Host.enrolled_at)
    claims = session.execute(
        select(Slice, Tenant)
        .join(Tenant, Tenant.id == Slice.tenant_id)
        .join(Gpu, Gpu.id == Slice.gpu_id)
        .join(Host, Host.id == Gpu.host_id)
        .join(HostReport, HostReport.host_id == Host.id)
        .outerjoin(SliceProgress, SliceProgress.slice_id == Slice.id)
        .where(
            silent,
            heard_at <= now(session) - max(host_lost, timedelta(seconds=limits.lease_s)),
            Slice.state == SliceState.CLAIMED.value,
            progress.state_of_row() != SliceState.ORPHANED.value,
        )
        .order_by(Slice.id)
        .limit(BATCH)
        .with_for_update(of=(Slice, HostReport), read=True, key_share=True, skip_locked=True)
    ).all()
    place = Place(
        SliceState.ORPHANED,
        reason=progress.LEASE_ENDED,
        detail=f"its host has been silent for longer than its lease of {limits.lease_s} s",
    )
    for claim, tenant in claims:
        progress.move(session, CLOCK, claim, tenant, progress.locked(session, claim), place)
    return len(claims) == BATCH


def _hosts(*conditions: ColumnElement[bool]) -> Select[HostReport, Host]:
    return (
        select(HostReport, Host)
        .join(Host, Host.id == HostReport.host_id)
        .where(*conditions)
        .order_by(HostReport.host_id)
        .limit(BATCH)
        .with_for_update(of=HostReport, skip_locked=True)
    )


def _too_late(claim: Slice, state: SliceState, limit_s: int, seen: SliceObservation | None) -> Place:
    processes = claim.workload == Workload.PROCESS.value
    if state is SliceState.CLAIMED:
        why = "its host has not made a place for processes" if processes else "no VM has started with it"
        return Place(SliceState.FAILED, reason=progress.CLAIMED_DEADLINE, detail=f"{why} within {limit_s} s")
    if state is SliceState.PREPARED:
        return Place(
            SliceState.FAILED,
            reason=progress.PREPARED_DEADLINE,
            detail=f"its device exists, but no VM has opened it within {limit_s} s",
        )
    if seen is None or not seen.present:
        why = "its host has not confirmed that"
    elif processes:
        why = "its host still has a place for its processes"
    else:
        why = "a VM has it open" if seen.open else "its host still has the device"
    return Place(
        SliceState.ORPHANED,
        reason=progress.RELEASING_DEADLINE,
        detail=f"deleted more than {limit_s} s ago, and {why}",
    )
