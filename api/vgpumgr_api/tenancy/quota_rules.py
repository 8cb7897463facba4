# SPDX-License-Identifier: Apache-2.0
"""The rules of a quota apart from amounts: permitted profiles, modes, bands, and the ranges of timeslices."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import delete, insert, or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.actors import Actor
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.resources.lookup import profile_named


@dataclass(frozen=True)
class Asked:
    """A profile to be claimed, and the member of the request that names it."""

    profile: models.Profile
    field: str = "$.profile"


def forbidden(
    session: Session,
    owner: models.Tenant,
    role: str,
    asked: Sequence[Asked],
    *,
    mode: str | None,
    band: str | None,
    limited: bool,
) -> list[Reason]:
    """Returns why an owner's quota forbids claims: its `mode`, its `band` or, if `limited`, its list of profiles."""
    found = []
    allowed: set[UUID] = set()
    if limited:
        named = models.QuotaProfile
        allowed = set(session.scalars(select(named.profile_id).where(named.tenant_id == owner.id)))
    for one in asked:
        profile = one.profile
        if mode is not None and profile.mode != mode:
            detail = f"{role} {owner.name} may claim {mode} slices only, and those of {profile.name} are {profile.mode}"
            found.append(Reason(code="quota.mode", detail=detail, field=one.field))
        if band is not None and profile.band != band:
            detail = (
                f"{role} {owner.name} may claim slices of the {band} band only, and {profile.name} is {profile.band}"
            )
            found.append(Reason(code="quota.band", detail=detail, field=one.field))
        if limited and profile.id not in allowed:
            detail = f"{role} {owner.name} may not claim {profile.name}; its quota lists the profiles that it may claim"
            found.append(Reason(code="quota.profiles", detail=detail, field=one.field))
    return found


def refuse_forbidden(owner: models.Tenant, role: str, reasons: Sequence[Reason]) -> None:
    """Raises Refusal(QUOTA_FORBIDDEN) if there are reasons."""
    if reasons:
        raise Refusal(
            Code.QUOTA_FORBIDDEN,
            f"the quota of {role} {owner.name} forbids this claim: {reasons[0].detail}",
            reasons=tuple(reasons),
            limits={"tenant": owner.name},
        )


def profiles_of(session: Session, quotas: Iterable[models.Quota]) -> Mapping[UUID, list[str]]:
    """Returns the names of the permitted profiles by quota, for quotas that are limited to some."""
    found: dict[UUID, list[str]] = defaultdict(list)
    limited = [quota.tenant_id for quota in quotas if quota.profiles_limited]
    if limited:
        named = models.QuotaProfile
        statement = (
            select(named.tenant_id, models.Profile.name)
            .join(models.Profile, models.Profile.id == named.profile_id)
            .where(named.tenant_id.in_(limited))
            .order_by(models.Profile.name)
        )
        for tenant_id, name in session.execute(statement):
            found[tenant_id].append(name)
    return found


def set_profiles(session: Session, quota: models.Quota, names: Sequence[str] | None) -> None:
    """Replaces the profiles that a quota names; None: all profiles are permitted. The caller holds the quota's lock."""
    ids = {_known(session, name, number) for number, name in enumerate(names or [])}
    change(session, delete(models.QuotaProfile).where(models.QuotaProfile.tenant_id == quota.tenant_id))
    quota.profiles_limited = names is not None
    session.flush()
    if ids:
        rows = [{"tenant_id": quota.tenant_id, "profile_id": profile_id} for profile_id in sorted(ids)]
        session.connection().execute(insert(models.QuotaProfile), rows)


def leave_out(session: Session, actor: Actor, profile: models.Profile) -> None:
    """Removes a profile from all quotas that name it, before it is deleted. Each of these quotas gets a new generation.

    Locks those quotas, accounts before projects like claims, and then the profile, so that no other quota can name it.
    """
    named, tenant = models.QuotaProfile, models.Tenant
    of_profile = named.profile_id == profile.id
    found = session.execute(
        select(models.Quota, tenant)
        .join(named, named.tenant_id == models.Quota.tenant_id)
        .join(tenant, tenant.id == models.Quota.tenant_id)
        .where(of_profile)
        .order_by(tenant.account_id.is_not(None), tenant.id)
        .with_for_update(of=models.Quota)
    ).all()
    session.execute(select(models.Profile.id).where(models.Profile.id == profile.id).with_for_update()).all()
    if set(session.scalars(select(named.tenant_id).where(of_profile))) != {quota.tenant_id for quota, _ in found}:
        raise TryAgain
    names = profiles_of(session, [quota for quota, _ in found])
    for quota, owner in found:
        before = names[quota.tenant_id]
        quota.generation += 1
        events.record(
            session,
            actor,
            "quota.changed",
            owner.name,
            tenant=owner,
            generation=quota.generation,
            detail={"profiles": {"from": before, "to": [each for each in before if each != profile.name]}},
        )
    session.flush()


def check_timeslices(session: Session, owner: models.Tenant, quota: models.Quota, changed: Iterable[str]) -> None:
    """Refuses timeslices outside their range: of the quota itself, of its account or of a project.

    The caller holds the locks of the account's quota and of this one, so that neither range can change meanwhile.
    """
    fields = [name for name in sorted(changed) if name.startswith("timeslice")]
    if not fields:
        return
    low, high = quota.timeslice_min_us, quota.timeslice_max_us
    if low > high:
        _refuse_timeslice(fields[0], f"timeslice_min_us {low} is above timeslice_max_us {high}")
    if not low <= quota.timeslice_us <= high:
        _refuse_timeslice(fields[0], f"timeslice_us {quota.timeslice_us} is not within {low} to {high}")
    if owner.account_id is not None:
        bounds = session.get_one(models.Quota, owner.account_id)
        low, high = bounds.timeslice_min_us, bounds.timeslice_max_us
        if not low <= quota.timeslice_us <= high:
            _refuse_timeslice(
                fields[0], f"timeslice_us {quota.timeslice_us} is not within its account's {low} to {high}"
            )
        return
    outside = session.execute(
        select(models.Tenant.name, models.Quota.timeslice_us)
        .join(models.Quota, models.Quota.tenant_id == models.Tenant.id)
        .where(
            models.Tenant.account_id == owner.id,
            or_(models.Quota.timeslice_us < low, models.Quota.timeslice_us > high),
        )
        .order_by(models.Tenant.name)
        .limit(1)
    ).one_or_none()
    if outside is not None:
        _refuse_timeslice(fields[0], f"project {outside[0]} has a timeslice_us of {outside[1]}; change that first")


def _known(session: Session, name: str, number: int) -> UUID:
    try:
        return profile_named(session, name).id
    except Refusal as refusal:
        reason = Reason(code=Code.FIELD_INVALID, detail=refusal.detail, field=f"$.profiles[{number}]")
        raise Refusal(Code.FIELD_INVALID, f"$.profiles[{number}]: {refusal.detail}", reasons=(reason,)) from None


def _refuse_timeslice(field: str, detail: str) -> None:
    reason = Reason(code=Code.FIELD_INVALID, detail=detail, field=f"$.{field}")
    raise Refusal(Code.FIELD_INVALID, f"$.{field}: {detail}", reasons=(reason,))
