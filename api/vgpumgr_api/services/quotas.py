# SPDX-License-Identifier: Apache-2.0
"""What tenants may use, and what they use of it."""

from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Quota, QuotaPatch
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services import events
from vgpumgr_api.services.actors import Actor, reachable_tenants, require_operator, require_tenant
from vgpumgr_api.services.generations import bump, hosts_of, require_match
from vgpumgr_api.services.lookup import tenant_named
from vgpumgr_api.services.paging import PageRequest, fetch
from vgpumgr_api.services.patching import changes_of

_COLUMNS = {
    "share_permille": "share_limit",
    "mem_bytes": "mem_limit",
    "slices": "slices_limit",
    "timeslice_us": "timeslice_us",
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
    return Page(items=[_quota(row[0], row[1]) for row in rows], next_page_token=token)


def get_quota(session: Session, actor: Actor, tenant: str) -> Quota:
    """Returns one tenant's quota."""
    owner = tenant_named(session, tenant)
    require_tenant(actor, owner)
    return _quota(session.get_one(models.Quota, owner.id), owner.name)


def patch_quota(session: Session, actor: Actor, tenant: str, patch: QuotaPatch, *, if_match: int | None) -> Quota:
    """Changes limits; hosts follow at once, without harm to any VM. Operators only."""
    require_operator(actor)
    owner = tenant_named(session, tenant)
    changes = changes_of(patch)
    quota = session.scalars(
        select(models.Quota).where(models.Quota.tenant_id == owner.id).with_for_update()
    ).one_or_none()
    if quota is None:  # its tenant was deleted since it was found
        raise TryAgain
    require_match(if_match, quota.generation)
    before = {name: getattr(quota, column) for name, column in _COLUMNS.items()}
    changed = {name: value for name, value in changes.items() if before[name] != value}
    if not changed:
        return _quota(quota, owner.name)
    for name, value in changed.items():
        setattr(quota, _COLUMNS[name], value)
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
    return _quota(quota, owner.name)


def charge_owners(session: Session, tenant: models.Tenant, *, share_permille: int, mem_bytes: int, slices: int) -> None:
    """Takes from a tenant's account, then from itself, and so locks both, or raises Refusal(QUOTA_EXCEEDED).

    Check and change are one statement: of two that come at once the second sees what the first left.
    """
    for owner, role in owners_of(session, tenant):
        quota = models.Quota
        charged = change(
            session,
            update(quota)
            .where(
                quota.tenant_id == owner.id,
                quota.share_used + share_permille <= quota.share_limit,
                quota.mem_used + mem_bytes <= quota.mem_limit,
                quota.slices_used + slices <= quota.slices_limit,
            )
            .values(
                share_used=quota.share_used + share_permille,
                mem_used=quota.mem_used + mem_bytes,
                slices_used=quota.slices_used + slices,
            ),
        )
        if charged == 0:
            raise _exceeded(session, owner, role, share_permille=share_permille, mem_bytes=mem_bytes, slices=slices)


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


def shortfalls(session: Session, tenant: models.Tenant, role: str, **asked: int) -> tuple[list[Reason], dict[str, Any]]:
    """Returns what one owner's quota does not allow, and its figures; nothing at all of an owner that is gone."""
    row = session.execute(
        select(
            models.Quota.share_limit,
            models.Quota.share_used,
            models.Quota.mem_limit,
            models.Quota.mem_used,
            models.Quota.slices_limit,
            models.Quota.slices_used,
        ).where(models.Quota.tenant_id == tenant.id)
    ).one_or_none()
    if row is None:
        return [], {}
    state = {
        "share_permille": (row.share_limit, row.share_used),
        "mem_bytes": (row.mem_limit, row.mem_used),
        "slices": (row.slices_limit, row.slices_used),
    }
    limits = {name: {"limit": limit, "used": used, "requested": asked[name]} for name, (limit, used) in state.items()}
    reasons = [
        Reason(
            code=f"quota.{name}",
            detail=f"{role} {tenant.name} uses {used} of {limit} {name}; {asked[name]} more do not fit",
        )
        for name, (limit, used) in state.items()
        if used + asked[name] > limit
    ]
    return reasons, limits


def _exceeded(session: Session, tenant: models.Tenant, role: str, **asked: int) -> Refusal:
    reasons, limits = shortfalls(session, tenant, role, **asked)
    if not limits:
        return Refusal(Code.OBJECT_UNKNOWN, f"no tenant {tenant.name!r}; it was deleted")
    what = ", ".join(reason.code.removeprefix("quota.") for reason in reasons)
    return Refusal(
        Code.QUOTA_EXCEEDED,
        f"the quota of {role} {tenant.name} does not allow it: {what}; delete slices or have the quota raised",
        reasons=tuple(reasons),
        limits={"tenant": tenant.name, **limits},
    )


def _quota(quota: models.Quota, tenant: str) -> Quota:
    return Quota(
        tenant=tenant,
        share_permille=quota.share_limit,
        mem_bytes=quota.mem_limit,
        slices=quota.slices_limit,
        timeslice_us=quota.timeslice_us,
        used_share_permille=quota.share_used,
        used_mem_bytes=quota.mem_used,
        used_slices=quota.slices_used,
        generation=quota.generation,
    )
