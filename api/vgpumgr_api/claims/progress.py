# SPDX-License-Identifier: Apache-2.0
"""The progress of each slice.

    claimed -> prepared -> attached -> releasing -> gone (event ``slice.released``)

The host's reports move a slice forth and back between the first three states: a VM that stops leaves its slice claimed,
and nothing is released. A slice is `failed` or `orphaned` if it missed a deadline, or if its host reports an error.
These states release nothing either; the host's next report or a deletion ends them. For `lost` see `fencing`. A slice
without a row here has been in the state of its claim since the claim was made.

Hosts' reports and deadlines change these rows only, never the claims themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, false, func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Workload
from vgpumgr.wire.fleet import ReportedSlice
from vgpumgr.wire.resources import SliceState
from vgpumgr_api.actors import Actor
from vgpumgr_api.db.database import now
from vgpumgr_api.db.models import Gpu, Slice, Tenant
from vgpumgr_api.db.progress import SliceProgress
from vgpumgr_api.db.statements import insert_unless_there, upsert
from vgpumgr_api.events import events
from vgpumgr_api.resources.text import printable

BATCH = 500

HOST_ERROR = "host.error"
"""The host reports an error of the slice."""
PERMIT_EXPIRED = "permit.expired"
PERMIT_REFUSED = "permit.refused"
_PERMITS = (PERMIT_EXPIRED, PERMIT_REFUSED)
"""A VM could not open the slice. Each occurrence gets an event."""
CLAIMED_DEADLINE = "deadline.claimed"
PREPARED_DEADLINE = "deadline.prepared"
RELEASING_DEADLINE = "deadline.releasing"
LEASE_ENDED = "lease.ended"

KINDS = {SliceState.CLAIMED: "slice.detached"} | {
    state: f"slice.{state.value}"
    for state in (SliceState.PREPARED, SliceState.ATTACHED, SliceState.FAILED, SliceState.ORPHANED)
}
"""The event for reaching a state. A slice that returns to `claimed` has lost its device."""


@dataclass(frozen=True)
class Place:
    """A state, with its reason if the state has one. `timed`: a deadline applies."""

    state: SliceState
    timed: bool = False
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is known of a slice before a report is processed. `place` None: it has no progress row.

    `rests`: the slice may stay prepared without a deadline. That applies to slices for processes, because processes
    come and go. A device must be opened by its VM in time.
    """

    claimed: bool
    place: Place | None
    rests: bool = False


def state_of_row() -> ColumnElement[str]:
    """Returns the state of a slice, for a statement that outer-joins `SliceProgress` to it."""
    return func.coalesce(SliceProgress.state, Slice.state)


def standings(session: Session, host_id: UUID) -> dict[UUID, Standing]:
    """Returns the standing of every slice of a host."""
    rows = session.execute(
        select(Slice.id, Slice.state, SliceProgress, Slice.workload)
        .join(Gpu, Gpu.id == Slice.gpu_id)
        .outerjoin(SliceProgress, SliceProgress.slice_id == Slice.id)
        .where(Gpu.host_id == host_id)
    )
    return {
        row[0]: Standing(claimed=row[1] == SliceState.CLAIMED.value, place=_place(row[2]), rests=_rests(row[3]))
        for row in rows
    }


def _rests(workload: str) -> bool:
    return workload == Workload.PROCESS.value


def heard(place: Place | None, said: ReportedSlice, *, rests: bool = False) -> Place:
    """Returns the place of a claimed slice after a report of its host. Pure.

    A missed deadline stays recorded until the slice reaches a later state. `rests`: see `Standing`.
    """
    error = printable(said.error)[:200]
    if said.present and said.open:
        return Place(SliceState.ATTACHED, detail=error)
    if error:
        reason = said.error_code if said.error_code in _PERMITS else HOST_ERROR
        return Place(SliceState.FAILED, reason=reason, detail=error)
    if said.present:
        if place is not None and place.reason == PREPARED_DEADLINE:
            return place
        return Place(SliceState.PREPARED, timed=not rests)
    if place is None:
        return Place(SliceState.CLAIMED, timed=True)
    if place.state is SliceState.CLAIMED or place.reason == CLAIMED_DEADLINE:
        return place
    return Place(SliceState.CLAIMED)


def follow(session: Session, actor: Actor, before: dict[UUID, Standing], said: Sequence[ReportedSlice]) -> None:
    """Records a host's report of its claimed slices. Slices that the report does not name keep their state.

    The caller holds the lock of the host's report row.
    """
    moved = {
        one.id: one
        for one in said
        if one.id in before and before[one.id].claimed and _heard(before[one.id], one) != before[one.id].place
    }
    ids = sorted(moved)
    for start in range(0, len(ids), BATCH):
        for claim, tenant in claims_held(session, Slice.id.in_(ids[start : start + BATCH])):
            row = locked(session, claim)
            to = heard(_place(row), moved[claim.id], rests=_rests(claim.workload))
            move(session, actor, claim, tenant, row, to)


def _heard(before: Standing, said: ReportedSlice) -> Place:
    return heard(before.place, said, rests=before.rests)


def claims_held(session: Session, *conditions: ColumnElement[bool]) -> list[tuple[Slice, Tenant]]:
    """Returns claimed slices by id, locked so that none is deleted before this transaction ends."""
    rows = session.execute(
        select(Slice, Tenant)
        .join(Tenant, Tenant.id == Slice.tenant_id)
        .where(Slice.state == SliceState.CLAIMED.value, *conditions)
        .order_by(Slice.id)
        .with_for_update(of=Slice, read=True, key_share=True)
        .execution_options(populate_existing=True)
    )
    return [(row[0], row[1]) for row in rows]


def locked(session: Session, claim: Slice) -> SliceProgress:
    """Returns a slice's locked progress row, created if needed. The caller holds the slice's lock."""
    statement = (
        select(SliceProgress)
        .where(SliceProgress.slice_id == claim.id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    row = session.scalar(statement)
    if row is None:
        timed = claim.state in (SliceState.CLAIMED.value, SliceState.RELEASING.value)
        insert_unless_there(
            session,
            SliceProgress,
            _row(claim.id, Place(SliceState(claim.state), timed=timed), claim.created_at),
            outdated=false(),
        )
        row = session.scalars(statement).one()
    return row


def move(session: Session, actor: Actor, claim: Slice, tenant: Tenant, row: SliceProgress, to: Place) -> None:
    """Moves a slice to another place, with an event if its state or reason changes.

    The detail of an unused permit contains its time, so a different detail is a new occurrence and also gets an event.
    """
    anew = (row.state, row.reason) != (to.state.value, to.reason)
    anew |= to.reason in _PERMITS and row.detail != to.detail
    row.detail = to.detail
    if not anew:
        return
    row.state, row.timed, row.reason = to.state.value, to.timed, to.reason
    row.since = now(session)
    detail = {"reason": to.reason, "detail": to.detail} if to.reason else None
    events.record(session, actor, KINDS[to.state], claim.id, tenant=tenant, generation=claim.generation, detail=detail)


def begin_release(session: Session, slice_id: UUID) -> None:
    """Records that a slice was deleted. The caller holds its lock."""
    place = Place(SliceState.RELEASING, timed=True)
    upsert(session, SliceProgress, [_row(slice_id, place, now(session))])


def put(session: Session, slice_id: UUID, place: Place) -> None:
    """Moves a slice to another place without an event. The caller holds its lock."""
    upsert(session, SliceProgress, [_row(slice_id, place, now(session))])


def arriving(host: str) -> Place:
    """Returns the place of a slice that is moving from `host`, until that host has confirmed the move."""
    return Place(SliceState.CLAIMED, detail=f"host {host} has not confirmed yet that the slice left it")


def settle_moves(session: Session, actor: Actor, those: ColumnElement[bool]) -> set[UUID]:
    """Ends moves, so that VMs may start with the new slices. Returns the hosts whose desired state changes.

    The caller has made sure that no VM starts with the replaced slices.
    """
    rows = session.execute(
        select(Slice, Tenant, Gpu.host_id)
        .join(Tenant, Tenant.id == Slice.tenant_id)
        .join(Gpu, Gpu.id == Slice.gpu_id)
        .where(those, Slice.moving, Slice.state == SliceState.CLAIMED.value)
        .order_by(Slice.id)
        .with_for_update(of=Slice)
        .execution_options(populate_existing=True)
    ).all()
    for claim, tenant, _ in rows:
        claim.moving = False
        claim.generation += 1
        put(session, claim.id, Place(SliceState.CLAIMED, timed=True))
        events.record(session, actor, "slice.arrived", claim.id, tenant=tenant, generation=claim.generation)
    session.flush()
    return {host_id for _, _, host_id in rows}


def lose(session: Session, slice_ids: Sequence[UUID]) -> None:
    """Marks slices of a fenced host as lost. The caller holds their locks."""
    upsert(session, SliceProgress, [_row(one, Place(SliceState.LOST), now(session)) for one in sorted(slice_ids)])


def _place(row: SliceProgress | None) -> Place | None:
    return None if row is None else Place(SliceState(row.state), row.timed, row.reason, row.detail)


def _row(slice_id: UUID, place: Place, since: datetime) -> dict[str, Any]:
    return {
        "slice_id": slice_id,
        "state": place.state.value,
        "since": since,
        "timed": place.timed,
        "reason": place.reason,
        "detail": place.detail,
    }
