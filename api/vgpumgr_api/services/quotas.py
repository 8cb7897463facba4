# SPDX-License-Identifier: Apache-2.0
"""What tenants may use, and what they use of it."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Mode, Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Quota, QuotaPatch, TokenRole
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services import events
from vgpumgr_api.services.actors import Actor, reachable_tenants, require_operator, require_tenant
from vgpumgr_api.services.generations import bump, hosts_of, require_match
from vgpumgr_api.services.lookup import tenant_named
from vgpumgr_api.services.paging import PageRequest, fetch
from vgpumgr_api.services.patching import changes_of
from vgpumgr_api.services.permits import (
    Asked,
    check_timeslices,
    forbidden,
    profiles_of,
    refuse_forbidden,
    set_profiles,
)

_COLUMNS = {
    "share_permille": "share_limit",
    "mem_bytes": "mem_limit",
    "slices": "slices_limit",
    "timeslice_us": "timeslice_us",
    "timeslice_min_us": "timeslice_min_us",
    "timeslice_max_us": "timeslice_max_us",
    "mode": "mode",
}


def list_quotas(session: Session, actor: Actor, page: PageRequest) -> Page[Quota]:
    """Returns the quotas of the tenants that `actor` reaches, by the tenant's name."""
    rows, token = fetch(
        session,
        select(models.Quota)
        .join(models.Tenant, models.Tenant.id == models.Quota.tenant_id)
        .where(reachable_tenants(actor)),
        kind="quotas",
        keys=[models.Tenant.name],
        page=page,
    )
    return Page(items=_answers(session, [(row[0], row[1]) for row in rows]), next_page_token=token)


def get_quota(session: Session, actor: Actor, tenant: str) -> Quota:
    """Returns one tenant's quota."""
    owner = tenant_named(session, tenant)
    require_tenant(actor, owner)
    return _answers(session, [(session.get_one(models.Quota, owner.id), owner.name)])[0]


def patch_quota(session: Session, actor: Actor, tenant: str, patch: QuotaPatch, *, if_match: int | None) -> Quota:
    """Changes limits; hosts follow at once, without harm to any VM.

    For operators; a tenant's admin may set its `timeslice_us`, and its projects', within the range that it was given.
    """
    changes = changes_of(patch, removable=("profiles", "mode"))
    if actor.role is not TokenRole.TENANT_ADMIN or set(changes) - {"timeslice_us"}:
        require_operator(actor)
    owner = tenant_named(session, tenant)
    require_tenant(actor, owner)
    lock_owners(session, owner)
    quota = session.get(models.Quota, owner.id, populate_existing=True)
    if quota is None:  # its tenant was deleted since it was found
        raise TryAgain
    require_match(if_match, quota.generation)
    before = {name: getattr(quota, column) for name, column in _COLUMNS.items()}
    before["profiles"] = profiles_of(session, [quota])[owner.id] if quota.profiles_limited else None
    if changes.get("profiles") is not None:
        changes["profiles"] = sorted(set(changes["profiles"]))
    if changes.get("mode") is not None:
        changes["mode"] = changes["mode"].value
    changed = {name: value for name, value in changes.items() if before[name] != value}
    if not changed:
        return _answers(session, [(quota, owner.name)])[0]
    for name in changed.keys() & _COLUMNS.keys():
        setattr(quota, _COLUMNS[name], changed[name])
    with session.no_autoflush:
        check_timeslices(session, owner, quota, changed)
    if "profiles" in changed:
        set_profiles(session, quota, patch.profiles)
    quota.generation += 1
    events.record(
        session,
        actor,
        "quota.changed",
        owner.name,
        tenant=owner,
        generation=quota.generation,
        detail={name: {"from": before[name], "to": value} for name, value in changed.items()},
    )
    session.flush()
    scaled = quota.share_used > min(before["share_permille"], quota.share_limit)
    if "timeslice_us" in changed or ("share_permille" in changed and scaled):
        bump(session, hosts_of(session, owner.id))
    return _answers(session, [(quota, owner.name)])[0]


def charge_owners(session: Session, tenant: models.Tenant, asked: Sequence[Asked]) -> None:
    """Takes from a tenant's account, then from itself, and so locks both, for a slice of each profile.

    Raises Refusal(QUOTA_EXCEEDED) or, for what may not be claimed at all, QUOTA_FORBIDDEN. Check and change are one
    statement: of two that come at once the second sees what the first left.
    """
    sums = sums_of(asked)
    quota = models.Quota
    for owner, role in owners_of(session, tenant):
        charged = session.execute(
            update(quota)
            .where(
                quota.tenant_id == owner.id,
                quota.share_used + sums["share_permille"] <= quota.share_limit,
                quota.mem_used + sums["mem_bytes"] <= quota.mem_limit,
                quota.slices_used + sums["slices"] <= quota.slices_limit,
            )
            .values(
                share_used=quota.share_used + sums["share_permille"],
                mem_used=quota.mem_used + sums["mem_bytes"],
                slices_used=quota.slices_used + sums["slices"],
            )
            .returning(quota.mode, quota.profiles_limited),
            execution_options={"synchronize_session": False},
        ).one_or_none()
        if charged is None:
            raise _exceeded(session, owner, role, sums)
        refuse_forbidden(
            owner,
            role,
            forbidden(session, owner, role, asked, mode=charged.mode, limited=charged.profiles_limited),
        )


def sums_of(asked: Sequence[Asked]) -> dict[str, int]:
    """Returns what slices of these profiles count in a quota."""
    return {
        "share_permille": sum(one.profile.share_permille for one in asked),
        "mem_bytes": sum(one.profile.mem_bytes for one in asked),
        "slices": len(asked),
    }


def lock_owners(session: Session, tenant: models.Tenant) -> None:
    """Locks what `charge_owners` would, and takes nothing."""
    for owner, _ in owners_of(session, tenant):
        quota = models.Quota
        session.scalar(select(quota.tenant_id).where(quota.tenant_id == owner.id).with_for_update())


def owners_of(session: Session, tenant: models.Tenant) -> list[tuple[models.Tenant, str]]:
    """Returns whose quotas count what a tenant has, in the order in which they are locked."""
    if tenant.account_id is None:
        return [(tenant, "account")]
    account = session.get(models.Tenant, tenant.account_id)
    if account is None:  # deleted, after the tenant itself, since that was found
        raise TryAgain
    return [(account, "account"), (tenant, "project")]


def give_back(session: Session, tenant_id: UUID, *, share_permille: int, mem_bytes: int, slices: int) -> bool:
    """Returns what slices used to one owner's quota; True if it had used more share than its limit."""
    quota = models.Quota
    row = session.execute(
        update(quota)
        .where(quota.tenant_id == tenant_id)
        .values(
            share_used=quota.share_used - share_permille,
            mem_used=quota.mem_used - mem_bytes,
            slices_used=quota.slices_used - slices,
        )
        .returning(quota.share_used, quota.share_limit),
        execution_options={"synchronize_session": False},
    ).one()
    return bool(row.share_used + share_permille > row.share_limit)


def objections(session: Session, owner: models.Tenant, role: str, asked: Sequence[Asked]) -> list[Reason]:
    """Returns what one owner's quota has against slices of these profiles."""
    quota = session.get(models.Quota, owner.id)
    if quota is None:
        return []
    found = forbidden(session, owner, role, asked, mode=quota.mode, limited=quota.profiles_limited)
    return [*found, *_shortfalls(quota, owner.name, role, sums_of(asked))[0]]


def _shortfalls(
    quota: models.Quota, owner: str, role: str, asked: Mapping[str, int]
) -> tuple[list[Reason], dict[str, Any]]:
    state = {
        "share_permille": (quota.share_limit, quota.share_used),
        "mem_bytes": (quota.mem_limit, quota.mem_used),
        "slices": (quota.slices_limit, quota.slices_used),
    }
    limits = {name: {"limit": limit, "used": used, "requested": asked[name]} for name, (limit, used) in state.items()}
    reasons = [
        Reason(
            code=f"quota.{name}",
            detail=f"{role} {owner} uses {used} of {limit} {name}; {asked[name]} more do not fit",
        )
        for name, (limit, used) in state.items()
        if used + asked[name] > limit
    ]
    return reasons, limits


def _exceeded(session: Session, owner: models.Tenant, role: str, asked: Mapping[str, int]) -> Refusal:
    quota = session.get(models.Quota, owner.id, populate_existing=True)
    if quota is None:
        return Refusal(Code.OBJECT_UNKNOWN, f"no tenant {owner.name!r}; it was deleted")
    reasons, limits = _shortfalls(quota, owner.name, role, asked)
    what = ", ".join(reason.code.removeprefix("quota.") for reason in reasons)
    return Refusal(
        Code.QUOTA_EXCEEDED,
        f"the quota of {role} {owner.name} does not allow it: {what}; delete slices or have the quota raised",
        reasons=tuple(reasons),
        limits={"tenant": owner.name, **limits},
    )


def _answers(session: Session, rows: Sequence[tuple[models.Quota, str]]) -> list[Quota]:
    profiles = profiles_of(session, [quota for quota, _ in rows])
    return [
        Quota(
            tenant=tenant,
            share_permille=quota.share_limit,
            mem_bytes=quota.mem_limit,
            slices=quota.slices_limit,
            timeslice_us=quota.timeslice_us,
            used_share_permille=quota.share_used,
            used_mem_bytes=quota.mem_used,
            used_slices=quota.slices_used,
            timeslice_min_us=quota.timeslice_min_us,
            timeslice_max_us=quota.timeslice_max_us,
            profiles=profiles[quota.tenant_id] if quota.profiles_limited else None,
            mode=None if quota.mode is None else Mode(quota.mode),
            generation=quota.generation,
        )
        for quota, tenant in rows
    ]
