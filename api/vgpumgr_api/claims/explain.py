# SPDX-License-Identifier: Apache-2.0
"""Explains whether a claim would succeed, and why not. Examines every GPU; locks and stores nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Explanation, SliceCreate
from vgpumgr_api.actors import Actor, require_person
from vgpumgr_api.claims import reservations
from vgpumgr_api.claims.claims import wanted_of
from vgpumgr_api.claims.workloads import require_sense
from vgpumgr_api.db import models
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.db.reservations import Hold
from vgpumgr_api.placement.candidates import best, walk
from vgpumgr_api.placement.obstacles import Wanted, census, in_words, parameters, settled
from vgpumgr_api.placement.ties import ties_of
from vgpumgr_api.resources.lookup import asked_by
from vgpumgr_api.tenancy import quotas
from vgpumgr_api.tenancy.quota_rules import Asked


@dataclass(frozen=True)
class _Held:
    """What a claim would find of the reservation that it names.

    `gpus`: the GPUs of the places that the claim can use, in the order in which places are taken. `wrong`: what is
    wrong with the reservation. `wanted`: what the claim needs of a GPU. If it exchanges a place, ties with that place
    are left out.
    """

    wanted: Wanted
    gpus: Sequence[UUID] = ()
    wrong: Sequence[Reason] = ()


def explain(session: Session, actor: Actor, request: SliceCreate) -> Explanation:
    """Returns the obstacles to a claim: quotas, and the first obstacle on each GPU. Viewers may ask, too."""
    require_person(actor)
    require_sense(request)
    tenant, profile = asked_by(session, actor, request.tenant, request.profile)
    request = reservations.with_ties(session, tenant, request)
    wanted = settled(session, wanted_of(session, actor, tenant, profile, request))
    short = [
        reason
        for owner, role in quotas.owners_of(session, tenant)
        for reason in quotas.objections(session, owner, role, [Asked(profile)], charged=request.reservation is not None)
    ]
    held = _Held(wanted)
    if request.reservation is not None:
        held = _held(session, tenant, profile, request, wanted)
    place = Gpu.id.in_(held.gpus) if held.gpus else None
    wrong = [*short, *held.wrong]
    fitting, reasons = census(session, held.wanted, futile=bool(wrong), held=place)
    chosen = None
    if not wrong:
        chosen = held.gpus[0] if held.gpus else _chosen(session, held.wanted)
    found = None
    if chosen is not None:
        statement = select(Host.name, Gpu.address).join(Host, Host.id == Gpu.host_id).where(Gpu.id == chosen)
        found = session.execute(statement).one()
    return Explanation(
        fits=found is not None,
        gpus=fitting + sum(reason.count or 0 for reason in reasons),
        fitting=fitting,
        host=found and found[0],
        gpu=found and found[1],
        reasons=[*wrong, *reasons],
        detail=None if found is not None else wrong[0].detail if wrong else in_words(held.wanted, reasons),
    )


def _held(
    session: Session, tenant: models.Tenant, profile: models.Profile, request: SliceCreate, wanted: Wanted
) -> _Held:
    """Returns what `reservations.draw` would find."""
    found = reservations.named(session, tenant, profile, request.reservation)
    statement, there = reservations.usable(found, wanted)
    gpus = session.scalars(statement.with_only_columns(Hold.gpu_id), parameters(session, there)).all()
    if gpus:
        return _Held(wanted, gpus)
    given_up = session.scalar(reservations.given_in_exchange(found.id).with_only_columns(Hold.id))
    if given_up is None:
        detail = reservations.used_up(found.id)
        return _Held(wanted, wrong=[Reason(code=Code.RESERVATION_USED, detail=detail, field="$.reservation")])
    return _Held(replace(wanted, ties=ties_of(session, tenant.id, request, without=given_up)))


def _chosen(session: Session, wanted: Wanted) -> UUID | None:
    shape, placement = wanted.shape, wanted.placement
    asked = parameters(session, wanted)
    looks = (best(shape, placement), walk(shape, placement), walk(shape, placement, schedulable=False))
    return next((found for look in looks if (found := session.scalar(look, asked)) is not None), None)
