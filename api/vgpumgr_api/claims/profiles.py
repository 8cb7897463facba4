# SPDX-License-Identifier: Apache-2.0
"""Profiles: classes of slice. A profile never changes, so a claim keeps the meaning that it had when it was made."""

from uuid import uuid4

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import WINDOW_BYTES, Band, Mode, Page, Policy
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Profile, ProfileCreate
from vgpumgr.wire.resources.profiles import RESERVE_PERIOD_US
from vgpumgr_api.actors import Actor, require_operator, require_person
from vgpumgr_api.db import models
from vgpumgr_api.db.database import now
from vgpumgr_api.db.reservations import Reservation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.resources.generations import IfMatch, require_match
from vgpumgr_api.resources.in_use import refuse_reservations, refuse_slices
from vgpumgr_api.resources.lookup import profile_named, refuse_duplicate, remove
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.tenancy import quota_rules


def list_profiles(session: Session, actor: Actor, page: PageRequest, *, mode: Mode | None = None) -> Page[Profile]:
    """Returns all profiles, by name. Tenants may see them too."""
    require_person(actor)
    statement = select(models.Profile)
    if mode is not None:
        statement = statement.where(models.Profile.mode == mode.value)
    rows, token = fetch(session, statement, kind="profiles", keys=[models.Profile.name], page=page)
    return Page(items=[_profile(row[0]) for row in rows], next_page_token=token)


def create_profile(session: Session, actor: Actor, request: ProfileCreate) -> Profile:
    """Creates a profile. For operators only."""
    require_operator(actor)
    period_us = _reserve_period_us(request)
    _require_legal(request)
    if request.window_bytes != WINDOW_BYTES:
        raise _illegal("window_bytes", f"the module's windows have {WINDOW_BYTES} bytes; leave it out")
    refuse_duplicate(session, models.Profile.name, request.name, kind="profile")
    profile = models.Profile(
        id=uuid4(),
        name=request.name,
        share_permille=request.share_permille,
        mem_bytes=request.mem_bytes,
        mode=request.mode.value,
        band=request.band.value,
        reserve_period_us=period_us,
        policy=request.policy and request.policy.value,
        window_bytes=request.window_bytes,
        executor_memory_max_bytes=request.executor_memory_max_bytes,
        executor_tasks_max=request.executor_tasks_max,
        executor_cpu_max_permille=request.executor_cpu_max_permille,
        generation=1,
        created_at=now(session),
    )
    session.add(profile)
    events.record(
        session,
        actor,
        "profile.created",
        profile.name,
        generation=profile.generation,
        detail=request.model_dump(mode="json"),
    )
    session.flush()
    return _profile(profile)


def get_profile(session: Session, actor: Actor, name: str) -> Profile:
    """Returns one profile."""
    require_person(actor)
    return _profile(profile_named(session, name))


def delete_profile(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> None:
    """Removes a profile that no slice uses. For operators only."""
    require_operator(actor)
    profile = profile_named(session, name)
    require_match(session, if_match, profile.id, profile.generation)
    refuse_slices(
        session,
        models.Slice.profile_id == profile.id,
        found=f"profile {name} still has",
        advice="delete those and wait until their hosts confirm, lost ones until their host is re-enrolled or deleted",
    )
    refuse_reservations(
        session, Reservation.profile_id == profile.id, why=f"there are reservations of profile {name}; delete those"
    )
    quota_rules.leave_out(session, actor, profile)
    remove(session, models.Profile, profile.id, kind="profile", name=name)
    events.record(session, actor, "profile.deleted", profile.name)


def _reserve_period_us(request: ProfileCreate) -> int | None:
    if request.band is Band.LATENCY:
        return request.reserve_period_us or RESERVE_PERIOD_US
    if request.reserve_period_us is not None:
        raise _illegal("reserve_period_us", "only the latency band has a reserve period")
    return None


def _require_legal(request: ProfileCreate) -> None:
    """Refuses a profile that no GPU's kernel accepts, by the rules of `vgpu_combination_check` in the scheduler."""
    if request.policy in (None, Policy.BEST_EFFORT):
        return
    mode = Mode.STRICT if request.policy is Policy.FIXED_SHARE else Mode.FAIR
    if request.mode is not mode:
        raise _illegal("mode", f"under policy {request.policy} slices are {mode}")
    if request.band is not Band.FAIR:
        raise _illegal("band", f"policy {request.policy} has no latency band; leave the band out")


def _illegal(field: str, detail: str) -> Refusal:
    reason = Reason(code=Code.FIELD_INVALID, detail=detail, field=f"$.{field}")
    return Refusal(Code.FIELD_INVALID, f"$.{field}: {detail}", reasons=(reason,))


def _profile(profile: models.Profile) -> Profile:
    return Profile(
        id=profile.id,
        name=profile.name,
        share_permille=profile.share_permille,
        mem_bytes=profile.mem_bytes,
        mode=Mode(profile.mode),
        band=Band(profile.band),
        reserve_period_us=profile.reserve_period_us,
        policy=Policy(profile.policy) if profile.policy else None,
        window_bytes=profile.window_bytes,
        executor_memory_max_bytes=profile.executor_memory_max_bytes,
        executor_tasks_max=profile.executor_tasks_max,
        executor_cpu_max_permille=profile.executor_cpu_max_permille,
        generation=profile.generation,
        created_at=profile.created_at,
    )
