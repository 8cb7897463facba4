# SPDX-License-Identifier: Apache-2.0
"""Classes of slice. They never change, so that a claim means what it meant when it was made."""

from uuid import uuid4

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Mode, Page
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Profile, ProfileCreate
from vgpumgr_api.db import models
from vgpumgr_api.db.database import now
from vgpumgr_api.db.reservations import Reservation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services import events
from vgpumgr_api.services.actors import Actor, require_operator, require_person
from vgpumgr_api.services.generations import require_match
from vgpumgr_api.services.lookup import profile_named, refuse_duplicate, remove
from vgpumgr_api.services.paging import PageRequest, fetch


def list_profiles(session: Session, actor: Actor, page: PageRequest) -> Page[Profile]:
    """Returns all profiles, by name; tenants see them too."""
    require_person(actor)
    rows, token = fetch(session, select(models.Profile), kind="profiles", keys=[models.Profile.name], page=page)
    return Page(items=[_profile(row[0]) for row in rows], next_page_token=token)


def create_profile(session: Session, actor: Actor, request: ProfileCreate) -> Profile:
    """Makes a profile. Operators only."""
    require_operator(actor)
    refuse_duplicate(session, models.Profile.name, request.name, kind="profile")
    profile = models.Profile(
        id=uuid4(),
        name=request.name,
        share_permille=request.share_permille,
        mem_bytes=request.mem_bytes,
        mode=request.mode.value,
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


def delete_profile(session: Session, actor: Actor, name: str, *, if_match: int | None) -> None:
    """Removes a profile of which there is no slice. Operators only."""
    require_operator(actor)
    profile = profile_named(session, name)
    require_match(if_match, profile.generation)
    if session.scalar(select(models.Slice.id).where(models.Slice.profile_id == profile.id).limit(1)):
        raise Refusal(
            Code.OBJECT_IN_USE,
            f"there are slices of profile {name}; delete those and wait until their hosts confirm, lost ones until"
            " their host is re-enrolled or deleted",
        )
    if session.scalar(select(Reservation.id).where(Reservation.profile_id == profile.id).limit(1)):
        raise Refusal(Code.OBJECT_IN_USE, f"there are reservations of profile {name}; delete those")
    remove(session, models.Profile, profile.id, kind="profile", name=name)
    events.record(session, actor, "profile.deleted", profile.name)


def _profile(profile: models.Profile) -> Profile:
    return Profile(
        id=profile.id,
        name=profile.name,
        share_permille=profile.share_permille,
        mem_bytes=profile.mem_bytes,
        mode=Mode(profile.mode),
        generation=profile.generation,
        created_at=profile.created_at,
    )
