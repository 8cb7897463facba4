# SPDX-License-Identifier: Apache-2.0
"""Reservations: quota and places on GPUs that are kept for a tenant's claims until a given time.

The end of a reservation needs no timer: after `expires_at` no claim gets a place of it, and its places are returned
before any claim is refused for lack of room (see `expire`). Places are locked after quotas and GPUs.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Row, Select, and_, delete, func, or_, select, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, aliased

from vgpumgr.wire.common import Mode, Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Reservation, ReservationCreate, SliceCreate, Tie
from vgpumgr_api.actors import Actor, local_operator, reachable_tenants, require_change, require_tenant, unknown
from vgpumgr_api.claims.release import return_quota
from vgpumgr_api.claims.slice_view import tie
from vgpumgr_api.db import models
from vgpumgr_api.db import reservations as tables
from vgpumgr_api.db.database import TryAgain, given_up, now
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import change, larger_of
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.placement.obstacles import ROOM, Wanted, obstacles, parameters, policy_of
from vgpumgr_api.placement.placement import SHOWN, Place, placed, take
from vgpumgr_api.placement.ties import Ties, ties_of
from vgpumgr_api.resources.generations import IfMatch, refuse_other
from vgpumgr_api.resources.lookup import asked_by, host_wanted, named_by, profile_named, tenant_named
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.tenancy import quotas
from vgpumgr_api.tenancy.enforcement import counted_permille
from vgpumgr_api.tenancy.quota_rules import Asked

CLOCK = local_operator("operator:expiry")

log = logging.getLogger("vgpumgr_api.claims.reservations")


def create_reservation(session: Session, actor: Actor, request: ReservationCreate) -> Reservation:
    """Reserves places for slices of one profile, placed like claims, all or none."""
    require_change(actor)
    tenant, profile = asked_by(session, actor, request.tenant, request.profile)
    wanted = Wanted(
        share_permille=profile.share_permille,
        mem_bytes=profile.mem_bytes,
        mode=Mode(profile.mode),
        host_id=host_wanted(session, actor, request.host),
        placement=request.placement,
        selector=request.selector,
        policy=policy_of(profile),
        reserve_period_us=profile.reserve_period_us,
        discreet=not actor.sees_the_cloud,
    )
    quotas.charge_owners(session, quotas.owners_of(session, tenant), [Asked(profile)] * request.places)
    made = tables.Reservation(
        id=uuid4(),
        tenant_id=tenant.id,
        profile_id=profile.id,
        places=request.places,
        expires_at=now(session) + timedelta(seconds=request.expires_in_s),
        generation=1,
        created_at=now(session),
        affinity=request.affinity and request.affinity.key,
        affinity_level=request.affinity and request.affinity.level.value,
        anti_affinity=request.anti_affinity and request.anti_affinity.key,
        anti_affinity_level=request.anti_affinity and request.anti_affinity.level.value,
    )
    session.add(made)
    session.flush()
    for number in range(request.places):
        # This runs under the lock of the tenant's quota. The choice of each place takes the places reserved before into
        # account.
        wanted = replace(wanted, ties=ties_of(session, tenant.id, request))
        place = take(session, wanted, first=number == 0)
        session.add(_hold(made, profile, place))
        if request.affinity or request.anti_affinity:
            session.flush()
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
    session: Session, actor: Actor, page: PageRequest, *, tenant: str | None = None, profile: str | None = None
) -> Page[Reservation]:
    """Returns the unexpired reservations of the tenants that `actor` reaches, by id."""
    statement = _views(session).where(reachable_tenants(actor))
    if tenant is not None:
        owner = tenant_named(session, tenant)
        require_tenant(actor, owner)
        statement = statement.where(models.Tenant.id == owner.id)
    if profile is not None:
        statement = statement.where(models.Profile.id == profile_named(session, profile).id)
    rows, token = fetch(session, statement, kind="reservations", keys=[tables.Reservation.id], page=page)
    return Page(items=[_answer(*row[:4]) for row in rows], next_page_token=token)


def get_reservation(session: Session, actor: Actor, reservation_id: UUID) -> Reservation:
    """Returns one reservation that has not expired."""
    statement = _views(session).where(reachable_tenants(actor), tables.Reservation.id == reservation_id)
    row = session.execute(statement).one_or_none()
    if row is None:
        raise unknown("reservation", reservation_id)
    return _answer(*row[:4])


def delete_reservation(session: Session, actor: Actor, reservation_id: UUID, *, if_match: IfMatch) -> None:
    """Returns the remaining places of a reservation. Slices that took places stay."""
    require_change(actor)
    found = get_reservation(session, actor, reservation_id)
    refuse_other(session, if_match, found.id, found.generation)
    if not _end(session, actor, reservation_id, "reservation.deleted"):
        raise unknown("reservation", reservation_id)


def expire(session: Session) -> bool:
    """Ends one expired reservation and returns its places. Returns False if none can be ended.

    Reservations with locked rows are skipped at first. If only such reservations are left, this waits for the one that
    expired first. If that one stays locked, the others are tried once more. A failure does not block later
    reservations: it is logged, and that reservation is tried again the next time.
    """
    with session.begin_nested() as passing:
        if _end_one(session, wait=False):
            return True
        passing.rollback()  # releases all locks, so that other transactions do not wait for this one while it waits
    try:
        return _end_one(session, wait=True)
    except OperationalError as error:
        if not given_up(error):
            raise
    return _end_one(session, wait=False)


def _end_one(session: Session, *, wait: bool) -> bool:
    """Ends the first expired reservation that can be ended.

    `wait` False: skips locked reservations, and does not log failures, which the call with `wait` reports. `wait` True:
    raises OperationalError for a reservation that stays locked.
    """
    over = _expired(session, None, wait=wait)
    while over is not None:
        try:
            with session.begin_nested() as ending:
                # Another transaction may have ended the reservation during the wait.
                if _end(session, CLOCK, over.id, "reservation.expired", wait=wait) or wait:
                    return True
                ending.rollback()
        except TryAgain:
            raise
        except OperationalError as error:
            if wait or not given_up(error):
                raise
            return False
        except Exception:
            if wait:
                log.exception("reservation %s cannot be ended", over.id)
        over = _expired(session, over, wait=wait)
    return False


def _expired(session: Session, last: Row[UUID, datetime] | None, *, wait: bool) -> Row[UUID, datetime] | None:
    """Returns the first expired reservation after `last`.

    `wait` False: locks the reservation's quotas, and skips reservations whose quotas are locked.
    """
    table = tables.Reservation
    statement = select(table.id, table.expires_at).where(table.expires_at <= now(session))
    if last is not None:
        statement = statement.where(
            or_(
                table.expires_at > last.expires_at,
                and_(table.expires_at == last.expires_at, table.id > last.id),
            )
        )
    if not wait:
        own, account = aliased(models.Quota), aliased(models.Quota)
        statement = (
            statement.join(models.Tenant, models.Tenant.id == table.tenant_id)
            .join(own, own.tenant_id == table.tenant_id)
            .join(account, account.tenant_id == func.coalesce(models.Tenant.account_id, table.tenant_id))
            .with_for_update(of=(own, account), skip_locked=True)
        )
    return session.execute(statement.order_by(table.expires_at, table.id).limit(1)).one_or_none()


def with_ties(session: Session, tenant: models.Tenant, request: SliceCreate) -> SliceCreate:
    """Returns the claim with the affinity and anti-affinity of the reservation that it names.

    Raises Refusal(FIELD_INVALID) for a claim that names other ties. `draw` checks whether the reservation exists.
    """
    found = None if request.reservation is None else session.get(tables.Reservation, request.reservation)
    if found is None or found.tenant_id != tenant.id:
        return request
    held = {"affinity": tie(found.affinity, found.affinity_level)}
    held["anti_affinity"] = tie(found.anti_affinity, found.anti_affinity_level)
    theirs = {name: Tie(key=each.key, level=each.level) for name, each in held.items() if each is not None}
    for name, each in theirs.items():
        if getattr(request, name) not in (None, each):
            detail = f"reservation {found.id} has another {name}; leave that out of the claim"
            reason = Reason(code=Code.FIELD_INVALID, detail=detail, field=f"$.{name}")
            raise Refusal(Code.FIELD_INVALID, detail, reasons=(reason,))
    return request.model_copy(update=theirs)


def draw(
    session: Session, tenant: models.Tenant, profile: models.Profile, wanted: Wanted, request: SliceCreate
) -> Place:
    """Takes a place of the reservation that a claim names. The share and memory of the place stay charged.

    `request` is the claim that `with_ties` returned. If the claim can use none of the remaining places, for example
    because they are on hosts that accept no claims, one of them is exchanged for a place elsewhere. A claim that the
    quota rules no longer permit is refused, although its place is reserved. The caller holds the lock of the tenant's
    quota.
    """
    found = named(session, tenant, profile, request.reservation)
    quotas.require_permitted(session, tenant, [Asked(profile)])
    fitting, there = usable(found, wanted)
    fitting, asked = fitting.limit(1), parameters(session, there)
    hold = session.scalar(fitting.with_for_update(of=tables.Hold, skip_locked=True), asked)
    hold = hold or session.scalar(fitting.with_for_update(of=tables.Hold), asked)
    if hold is not None:
        gpu = session.execute(select(*SHOWN).where(Gpu.id == hold.gpu_id)).one()
        session.delete(hold)
        session.flush()
        return Place(
            gpu=placed(gpu),
            host_id=gpu.host_id,
            host=gpu.host,
            chosen=False,
            mdev_type=hold.mdev_type,
            type_mem_bytes=hold.type_mem_bytes,
            fair_ratio_permille=hold.fair_ratio_permille,
            reserved_permille=hold.reserved_permille,
        )
    return _exchange(session, tenant, wanted, request)


def named(
    session: Session, tenant: models.Tenant, profile: models.Profile, reservation_id: UUID | None
) -> tables.Reservation:
    """Returns the reservation that a claim names. Raises Refusal for an expired one, or another tenant or profile."""
    found = session.get(tables.Reservation, reservation_id)
    if found is None or found.tenant_id != tenant.id or found.expires_at <= now(session):
        detail = f"no reservation {reservation_id}; it may have expired: claim without it, or create another"
        with named_by("$.reservation"):
            raise Refusal(Code.OBJECT_UNKNOWN, detail)
    if found.profile_id != profile.id:
        detail = f"reservation {reservation_id} is for another profile; claim that, or leave the reservation out"
        raise Refusal(
            Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field="$.reservation"),)
        )
    return found


def usable(found: tables.Reservation, wanted: Wanted) -> tuple[Select[tables.Hold], Wanted]:
    """Returns a statement that selects the places that a claim can use, and the `Wanted` that it is run with.

    The places are selected in the order in which they are taken.
    """
    # The reserved places already satisfy the reservation's own ties.
    together = () if found.affinity is not None else wanted.ties.together
    apart = None if found.anti_affinity is not None else wanted.ties.apart
    there = replace(wanted, ties=Ties(together=together, apart=apart))
    conditions = [~wrong for reason, wrong in obstacles(there.shape).items() if reason not in ROOM]
    statement = (
        select(tables.Hold)
        .join(Gpu, Gpu.id == tables.Hold.gpu_id)
        .join(Host, Host.id == Gpu.host_id)
        .join(HostReport, HostReport.host_id == Host.id)
        .where(tables.Hold.reservation_id == found.id, *conditions)
        .order_by(tables.Hold.id)
    )
    return statement, there


def given_in_exchange(reservation_id: UUID | None) -> Select[tables.Hold]:
    """Returns the statement that selects the place to exchange for a claim that can use no place of the reservation."""
    return select(tables.Hold).where(tables.Hold.reservation_id == reservation_id).order_by(tables.Hold.id).limit(1)


def used_up(reservation_id: UUID | None) -> str:
    """Returns the detail for a reservation without places left."""
    return f"all places of reservation {reservation_id} are taken; claim without it"


def _exchange(session: Session, tenant: models.Tenant, wanted: Wanted, request: SliceCreate) -> Place:
    hold = session.scalar(given_in_exchange(request.reservation).with_for_update())
    if hold is None:
        raise Refusal(Code.RESERVATION_USED, used_up(request.reservation))
    # Does not wait for the lock, because this transaction may hold the lock of another GPU.
    gpu = select(Gpu.id).where(Gpu.id == hold.gpu_id).with_for_update(skip_locked=True, key_share=True)
    if session.scalar(gpu) is None:
        raise TryAgain
    session.delete(hold)
    session.flush()
    _free(session, [hold])
    wanted = replace(wanted, ties=ties_of(session, tenant.id, request))  # computed again, without the place given up
    return take(session, wanted, first=False)


def _end(session: Session, actor: Actor, reservation_id: UUID, what: str, *, wait: bool = True) -> bool:
    """Ends a reservation and returns its places, in the lock order of claims. Returns False if it has already ended.

    `wait` False, for a caller that holds the owners' locks: also returns False if one of the GPUs is locked.
    """
    found = session.execute(
        select(tables.Reservation, models.Tenant)
        .join(models.Tenant, models.Tenant.id == tables.Reservation.tenant_id)
        .where(tables.Reservation.id == reservation_id)
    ).one_or_none()
    if found is None:
        return False
    reservation, tenant = found
    quotas.lock_owners(session, quotas.owners_of(session, tenant))
    held = select(tables.Hold.gpu_id).where(tables.Hold.reservation_id == reservation_id)
    gpus = select(Gpu.id).where(Gpu.id.in_(held)).order_by(Gpu.id)
    locked = set(session.scalars(gpus.with_for_update(key_share=True, skip_locked=not wait)))
    # Waits for claims that are taking places.
    left = session.scalars(
        select(tables.Hold).where(tables.Hold.reservation_id == reservation_id).with_for_update()
    ).all()
    if any(hold.gpu_id not in locked for hold in left):
        return False
    change(session, delete(tables.Hold).where(tables.Hold.reservation_id == reservation_id))
    if change(session, delete(tables.Reservation).where(tables.Reservation.id == reservation_id)) == 0:
        return False
    _free(session, left)
    events.record(session, actor, what, reservation_id, tenant=tenant, detail={"places_left": len(left)})
    return_quota(session, [(hold, tenant) for hold in left])
    session.expunge(reservation)
    for hold in left:
        session.expunge(hold)
    return True


def _free(session: Session, holds: Sequence[tables.Hold]) -> None:
    """Returns reserved capacity to the GPUs.

    A GPU that reported less memory than it has in use is recorded with the memory in use, which shrinks here.
    """
    larger = larger_of(session)
    for hold in sorted(holds, key=lambda hold: hold.gpu_id):
        mem_used = Gpu.mem_used - hold.type_mem_bytes
        reserved_permille = Gpu.reserved_permille - hold.reserved_permille
        limit_permille = func.coalesce(Gpu.reported_reserve_limit_permille, Gpu.reserve_limit_permille)
        change(
            session,
            update(Gpu)
            .where(Gpu.id == hold.gpu_id)
            .values(
                share_used=Gpu.share_used - counted_permille(hold.share_permille, hold.fair_ratio_permille),
                mem_used=mem_used,
                mem_bytes=larger(func.coalesce(Gpu.reported_mem_bytes, Gpu.mem_bytes), mem_used),
                reserved_permille=reserved_permille,
                reserve_limit_permille=larger(limit_permille, reserved_permille),
                schedulable=True,
            ),
        )


def _hold(reservation: tables.Reservation, profile: models.Profile, place: Place) -> tables.Hold:
    return tables.Hold(
        id=uuid4(),
        reservation_id=reservation.id,
        gpu_id=place.gpu.id,
        share_permille=profile.share_permille,
        mem_bytes=profile.mem_bytes,
        mdev_type=place.mdev_type,
        type_mem_bytes=place.type_mem_bytes,
        fair_ratio_permille=place.fair_ratio_permille,
        reserved_permille=place.reserved_permille,
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
        affinity=tie(reservation.affinity, reservation.affinity_level),
        anti_affinity=tie(reservation.anti_affinity, reservation.anti_affinity_level),
        generation=reservation.generation,
        created_at=reservation.created_at,
    )
