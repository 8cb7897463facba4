# SPDX-License-Identifier: Apache-2.0
"""Profiles: classes of slice."""

from fastapi import APIRouter

from vgpumgr.wire.common import Mode, Name, Page
from vgpumgr.wire.resources import Profile, ProfileCreate
from vgpumgr_api.claims import profiles
from vgpumgr_api.edge.call import CallDep, IdempotencyKey, IfMatch, PageDep, TrialDep
from vgpumgr_api.edge.expired import despite_expired
from vgpumgr_api.edge.strict import Route

router = APIRouter(prefix="/v1/profiles", tags=["profiles"], route_class=Route)


@router.get("")
def list_profiles(call: CallDep, page: PageDep, mode: Mode | None = None) -> Page[Profile]:
    """Lists profiles by name, all or those of one mode."""
    return call.read(profiles.list_profiles, page, mode=mode)


@router.post(
    "", status_code=201, responses={200: {"description": "With validate_only: what would be created", "model": Profile}}
)
def create_profile(call: TrialDep, wanted: ProfileCreate, idempotency_key: IdempotencyKey = None) -> Profile:
    """Creates a class of slices, which never changes."""
    profile = call.write_once(idempotency_key, profiles.create_profile, wanted, kind=Profile)
    call.located(f"/v1/profiles/{profile.name}")
    call.tag(profile.id, profile.generation)
    return profile


@router.get("/{name}")
def get_profile(call: CallDep, name: Name) -> Profile:
    """Returns a profile."""
    profile = call.read(profiles.get_profile, name)
    call.tag(profile.id, profile.generation)
    return profile


@router.delete("/{name}", status_code=204)
def delete_profile(call: TrialDep, name: Name, if_match: IfMatch) -> None:
    """Deletes a profile that no slice has. Needs If-Match."""
    despite_expired(call, lambda: call.write(profiles.delete_profile, name, if_match=if_match))
