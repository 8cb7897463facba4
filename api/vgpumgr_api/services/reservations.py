# SPDX-License-Identifier: Apache-2.0
"""Reservations: quota and places on GPUs that are held for a tenant's claims until an instant.

An end does not depend on anybody who watches the clock: after `expires_at` no claim gets a place, and what is still
held is given back before a claim is refused for want of it (see `claiming`). Places are locked after quotas and GPUs.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Select, delete, func, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Mode, Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Reservation, ReservationCreate
from vgpumgr_api.db import models
from vgpumgr_api.db import reservations as tables
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services import events, quotas
from vgpumgr_api.services.actors import (
    Actor,
    local_operator,
    reachable_tenants,
    require_change,
    require_tenant,
    unknown,
)
from vgpumgr_api.services.enforcement import counted_permille
from vgpumgr_api.services.generations import bump, require_match
from vgpumgr_api.services.lookup import host_named, profile_named, tenant_named
from vgpumgr_api.services.obstacles import ROOM, Wanted, obstacles
from vgpumgr_api.services.paging import PageRequest, fetch
from vgpumgr_api.services.permits import Asked
from vgpumgr_api.services.placement import Place, take
from vgpumgr_api.services.release import return_quota

CLOCK = local_operator("operator:expiry")


def create_reservation(session: Session, actor: Actor, request: ReservationCreate) -> Reservation:
    """Holds places for slices of one profile as claims would take them, all or none."""
    require_change(actor)
    tenant = tenant_named(session, request.tenant)
    require_tenant(actor, tenant)
    profile = profile_named(session, request.profile)
    wanted = Wanted(
        share_permille=profile.share_permille,
        mem_bytes=profile.mem_bytes,
        mode=Mode(profile.mode),
        host_id=host_named(session, request.host).id if request.host is not None else None,
        placement=request.placement,
        selector=request.selector,
    )
    quotas.charge_owners(session, tenant, [Asked(profile)] * request.places)
    made = tables.Reservation(
        id=uuid4(),
        tenant_id=tenant.id,
        profile_id=profile.id,
        places=request.places,
        expires_at=now(session) + timedelta(seconds=request.expires_in_s),
        generation=1,
        created_at=now(session),
    )
    session.add(made)
    session.flush()
    for number in range(request.places):
        place = take(session, wanted, first=number == 0)
        session.add(_hold(made, profile, place))
    events.record(
        session,
        actor,
        "reservation.made",
        made.id,
        tenant=tenant,
        generation=made.generation,
        detail={"profile": profile.name, "places": made.places, "expires_at": made.expires_at.isoformat()},
    )
    session.flush()
    return get_reservation(session, actor, made.id)


def list_reservations(
    session: Session, actor: Actor, page: PageRequest, *, tenant: str | None = None
) -> Page[Reservation]:
    """Returns what is held for the tenants that `actor` reaches, by id; nothing that has expired."""
    statement = _views(session).where(reachable_tenants(actor))
    if tenant is not None:
        owner = tenant_named(session, tenant)
        require_tenant(actor, owner)
        statement = statement.where(models.Tenant.id == owner.id)
    rows, token = fetch(session, statement, kind="reservations", keys=[tables.Reservation.id], page=page)
    return Page(items=[_answer(*row[:4]) for row in rows], next_page_token=token)


def get_reservation(session: Session, actor: Actor, reservation_id: UUID) -> Reservation:
    """Returns one reservation that has not expired."""
    statement = _views(session).where(reachable_tenants(actor), tables.Reservation.id == reservation_id)
    row = session.execute(statement).one_or_none()
    if row is None:
        raise unknown("reservation", reservation_id)
    return _answer(*row[:4])


def delete_reservation(session: Session, actor: Actor, reservation_id: UUID, *, if_match: int | None) -> None:
    """Gives back what is still held. Slices that took places stay."""
    require_change(actor)
    found = get_reservation(session, actor, reservation_id)
    require_match(if_match, found.generation, required=False)
    if not _end(session, actor, reservation_id, "reservation.deleted"):
        raise unknown("reservation", reservation_id)


def expire(session: Session) -> bool:
    """Gives back what one reservation holds whose time is over; False if there is none."""
    over = session.scalar(
        select(tables.Reservation.id)
        .where(tables.Reservation.expires_at <= now(session))
        .order_by(tables.Reservation.expires_at)
        .limit(1)
    )
    if over is None:
        return False
    _end(session, CLOCK, over, "reservation.expired")
    return True


def draw(
    session: Session, tenant: models.Tenant, profile: models.Profile, wanted: Wanted, reservation_id: UUID
) -> Place:
    """Takes a place out of a reservation; its share and memory stay counted, now for the slice.

    Where no place is left on a host that takes claims, another is looked for in exchange. The caller holds the lock of
    the tenant's quota.
    """
    found = session.get(tables.Reservation, reservation_id)
    if found is None or found.tenant_id != tenant.id or found.expires_at <= now(session):
        raise unknown("reservation", reservation_id)
    if found.profile_id != profile.id:
        detail = f"reservation {reservation_id} is for another profile; claim that, or leave the reservation out"
        raise Refusal(
            Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field="$.reservation"),)
        )
    conditions = [~wrong for reason, wrong in obstacles(session, wanted).items() if reason not in ROOM]
    fitting = (
        select(tables.Hold)
        .join(Gpu, Gpu.id == tables.Hold.gpu_id)
        .join(Host, Host.id == Gpu.host_id)
        .join(HostReport, HostReport.host_id == Host.id)
        .where(tables.Hold.reservation_id == reservation_id, *conditions)
        .order_by(tables.Hold.id)
        .limit(1)
    )
    hold = session.scalar(fitting.with_for_update(of=tables.Hold, skip_locked=True))
    hold = hold or session.scalar(fitting.with_for_update(of=tables.Hold))
    if hold is not None:
        host_id = session.scalars(select(Gpu.host_id).where(Gpu.id == hold.gpu_id)).one()
        session.delete(hold)
        session.flush()
        return Place(
            gpu_id=hold.gpu_id,
            host_id=host_id,
            mdev_type=hold.mdev_type,
            type_mem_bytes=hold.type_mem_bytes,
            fair_ratio_permille=hold.fair_ratio_permille,
        )
    return _exchange(session, wanted, reservation_id)


def _exchange(session: Session, wanted: Wanted, reservation_id: UUID) -> Place:
    hold = session.scalar(
        select(tables.Hold).where(tables.Hold.reservation_id == reservation_id).limit(1).with_for_update()
    )
    if hold is None:
        raise Refusal(Code.RESERVATION_USED, f"all places of reservation {reservation_id} are taken; claim without it")
    # Never waits for a GPU while it has the lock of another.
    if session.scalar(select(Gpu.id).where(Gpu.id == hold.gpu_id).with_for_update(skip_locked=True)) is None:
        raise TryAgain
    session.delete(hold)
    session.flush()
    _free(session, [hold])
    return take(session, wanted, first=False)


def _end(session: Session, actor: Actor, reservation_id: UUID, what: str) -> bool:
    """Gives back what is held, in the order in which claims lock; False if somebody else just did."""
    found = session.execute(
        select(tables.Reservation, models.Tenant)
        .join(models.Tenant, models.Tenant.id == tables.Reservation.tenant_id)
        .where(tables.Reservation.id == reservation_id)
    ).one_or_none()
    if found is None:
        return False
    reservation, tenant = found
    quotas.lock_owners(session, tenant)
    held = select(tables.Hold.gpu_id).where(tables.Hold.reservation_id == reservation_id)
    session.execute(select(Gpu.id).where(Gpu.id.in_(held)).order_by(Gpu.id).with_for_update()).all()
    # Waits for claims that are taking places.
    left = session.scalars(
        select(tables.Hold).where(tables.Hold.reservation_id == reservation_id).with_for_update()
    ).all()
    change(session, delete(tables.Hold).where(tables.Hold.reservation_id == reservation_id))
    if change(session, delete(tables.Reservation).where(tables.Reservation.id == reservation_id)) == 0:
        return False
    _free(session, left)
    events.record(session, actor, what, reservation_id, tenant=tenant, detail={"places_left": len(left)})
    bump(session, return_quota(session, [(hold, tenant) for hold in left]))
    session.expunge(reservation)
    for hold in left:
        session.expunge(hold)
    return True


def _free(session: Session, holds: Sequence[tables.Hold]) -> None:
    for hold in sorted(holds, key=lambda hold: hold.gpu_id):
        change(
            session,
            update(Gpu)
            .where(Gpu.id == hold.gpu_id)
            .values(
                share_used=Gpu.share_used - counted_permille(hold.share_permille, hold.fair_ratio_permille),
                mem_used=Gpu.mem_used - hold.type_mem_bytes,
            ),
        )


def _hold(reservation: tables.Reservation, profile: models.Profile, place: Place) -> tables.Hold:
    return tables.Hold(
        id=uuid4(),
        reservation_id=reservation.id,
        gpu_id=place.gpu_id,
        share_permille=profile.share_permille,
        mem_bytes=profile.mem_bytes,
        mdev_type=place.mdev_type,
        type_mem_bytes=place.type_mem_bytes,
        fair_ratio_permille=place.fair_ratio_permille,
    )


def _views(session: Session) -> Select[*tuple[Any, ...]]:
    left = select(func.count()).where(tables.Hold.reservation_id == tables.Reservation.id).scalar_subquery()
    return (
        select(tables.Reservation, models.Tenant.name, models.Profile.name, left)
        .join(models.Tenant, models.Tenant.id == tables.Reservation.tenant_id)
        .join(models.Profile, models.Profile.id == tables.Reservation.profile_id)
        .where(tables.Reservation.expires_at > now(session))
    )


def _answer(reservation: tables.Reservation, tenant: str, profile: str, left: int) -> Reservation:
    return Reservation(
        id=reservation.id,
        tenant=tenant,
        profile=profile,
        places=reservation.places,
        places_left=left,
        expires_at=reservation.expires_at,
        generation=reservation.generation,
        created_at=reservation.created_at,
    )
