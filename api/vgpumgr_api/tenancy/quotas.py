# SPDX-License-Identifier: Apache-2.0
"""The limits of tenants, and their use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CompoundSelect,
    Row,
    String,
    bindparam,
    exists,
    literal,
    select,
    union_all,
    update,
)
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import ReturningUpdate

from vgpumgr.wire.common import Band, Mode, Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Quota, QuotaPatch, TokenRole
from vgpumgr_api.actors import Actor, reachable_tenants, require_operator, require_tenant
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.statements import change, is_postgresql, table_of
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.resources.generations import IfMatch, bump, hosts_of, require_match
from vgpumgr_api.resources.lookup import of_account, tenant_named
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.resources.patching import changes_of
from vgpumgr_api.tenancy.enforcement import Use
from vgpumgr_api.tenancy.quota_rules import (
    Asked,
    check_timeslices,
    forbidden,
    profiles_of,
    refuse_forbidden,
    set_profiles,
)
from vgpumgr_api.tenancy.scaling import set_scale

_COLUMNS = {
    "share_permille": "share_limit",
    "mem_bytes": "mem_limit",
    "slices": "slices_limit",
    "timeslice_us": "timeslice_us",
    "timeslice_min_us": "timeslice_min_us",
    "timeslice_max_us": "timeslice_max_us",
    "mode": "mode",
    "band": "band",
}


Owners = Sequence[tuple[models.Tenant, str]]
"""The owners whose quotas count a tenant's use, and their roles, in lock order."""


@dataclass(frozen=True)
class Standing:
    """An owner's limit and use of share, and its timeslice with its maximum."""

    use: Use
    timeslice_us: int
    timeslice_max_us: int


_QUOTAS = table_of(models.Quota)
_STANDING = (
    *(_QUOTAS.c.share_limit, _QUOTAS.c.scaled_used),
    *(_QUOTAS.c.timeslice_us, _QUOTAS.c.timeslice_max_us),
)


def _charging(role: str) -> ReturningUpdate[*tuple[Any, ...]]:
    """Returns the UPDATE that charges the owner in the parameter `role`. It affects no row if a limit is exceeded.

    The amounts are those of `sums_of`, as parameters ``asked_...``.
    """
    kinds = (("share", "share_permille"), ("mem", "mem_bytes"), ("slices", "slices"))
    after = {kind: _QUOTAS.c[f"{kind}_used"] + bindparam(f"asked_{name}", type_=BigInteger()) for kind, name in kinds}
    return (
        update(_QUOTAS)
        .where(_QUOTAS.c.tenant_id == bindparam(role), *(after[kind] <= _QUOTAS.c[f"{kind}_limit"] for kind in after))
        .values({f"{kind}_used": value for kind, value in after.items()})
        .returning(
            literal(role, String()).label("role"),
            _QUOTAS.c.mode,
            _QUOTAS.c.band,
            _QUOTAS.c.profiles_limited,
            *_STANDING,
        )
    )


def _charging_both() -> CompoundSelect[*tuple[Any, ...]]:
    """For PostgreSQL. The project's part refers to the account's result, so that the account is locked first."""
    account = _charging("account").cte("of_account")
    project = _charging("project").where(exists(select(account.c.role))).cte("of_project")
    return union_all(select(account), select(project))


_CHARGES = {role: _charging(role) for role in ("account", "project")}
_CHARGE_BOTH = _charging_both()


def standing(row: Row[*tuple[Any, ...]]) -> Standing:
    """Converts a row with the columns `_STANDING`."""
    return Standing(Use(limit=row.share_limit, used=row.scaled_used), row.timeslice_us, row.timeslice_max_us)


def list_quotas(session: Session, actor: Actor, page: PageRequest, *, account: str | None = None) -> Page[Quota]:
    """Returns the quotas of the tenants that `actor` reaches, by name.

    `account`: only the quotas of that account and its projects.
    """
    statement = (
        select(models.Quota)
        .join(models.Tenant, models.Tenant.id == models.Quota.tenant_id)
        .where(reachable_tenants(actor))
    )
    if account is not None:
        statement = statement.where(of_account(session, actor, account))
    rows, token = fetch(session, statement, kind="quotas", keys=[models.Tenant.name], page=page)
    return Page(items=_answers(session, [(row[0], row[1]) for row in rows]), next_page_token=token)


def get_quota(session: Session, actor: Actor, tenant: str) -> Quota:
    """Returns one tenant's quota."""
    owner = tenant_named(session, tenant)
    require_tenant(actor, owner)
    return _answers(session, [(session.get_one(models.Quota, owner.id), owner.name)])[0]


def patch_quota(session: Session, actor: Actor, tenant: str, patch: QuotaPatch, *, if_match: IfMatch) -> Quota:
    """Changes limits. Hosts apply the change at once; no VM is stopped.

    For operators. A tenant's admin may set `timeslice_us` of its tenant and its projects, within the permitted range.
    """
    changes = changes_of(patch, removable=("profiles", "mode", "band"))
    if actor.role is not TokenRole.TENANT_ADMIN or set(changes) - {"timeslice_us"}:
        require_operator(actor, ", or for timeslice_us alone that of a tenant's admin")
    owner = tenant_named(session, tenant)
    require_tenant(actor, owner)
    lock_owners(session, owners_of(session, owner))
    quota = session.get(models.Quota, owner.id, populate_existing=True)
    if quota is None:  # the tenant was deleted since the lookup
        raise TryAgain
    require_match(session, if_match, quota.tenant_id, quota.generation)
    before = {name: getattr(quota, column) for name, column in _COLUMNS.items()}
    before["profiles"] = profiles_of(session, [quota])[owner.id] if quota.profiles_limited else None
    if changes.get("profiles") is not None:
        changes["profiles"] = sorted(set(changes["profiles"]))
    for name in ("mode", "band"):
        if changes.get(name) is not None:
            changes[name] = changes[name].value
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
    scaled = "share_permille" in changed and set_scale(quota, limit_before=before["share_permille"])
    session.flush()
    if changed.keys() & {"timeslice_us", "timeslice_max_us"} or scaled:
        bump(session, hosts_of(session, owner.id))
    return _answers(session, [(quota, owner.name)])[0]


def charge_owners(session: Session, owners: Owners, asked: Sequence[Asked]) -> list[Standing]:
    """Charges a tenant's account, then the tenant, for a slice of each profile, and so locks both quotas.

    Raises Refusal(QUOTA_EXCEEDED), or QUOTA_FORBIDDEN for profiles that the quota rules do not permit. Check and change
    are one statement, so of two concurrent claims the second sees what the first left.
    """
    sums = sums_of(asked)
    charged = _charge(session, owners, {f"asked_{name}": value for name, value in sums.items()})
    found = []
    for owner, role in owners:
        row = charged.get(role)
        if row is None:
            raise _exceeded(session, owner, role, sums)
        refuse_forbidden(
            owner,
            role,
            forbidden(session, owner, role, asked, mode=row.mode, band=row.band, limited=row.profiles_limited),
        )
        found.append(standing(row))
    return found


def _charge(session: Session, owners: Owners, sums: Mapping[str, int]) -> Mapping[str, Row[*tuple[Any, ...]]]:
    """Returns the charged rows, by role. After the first owner that cannot be charged, no other is charged."""
    connection = session.connection()
    by_role = {role: owner.id for owner, role in owners}
    if is_postgresql(session) and len(owners) > 1:
        return {row.role: row for row in connection.execute(_CHARGE_BOTH, {**sums, **by_role})}
    found = {}
    for role, owner_id in by_role.items():
        row = connection.execute(_CHARGES[role], {**sums, role: owner_id}).one_or_none()
        if row is None:
            break
        found[role] = row
    return found


def sums_of(asked: Sequence[Asked]) -> dict[str, int]:
    """Returns how much slices of these profiles count in a quota."""
    return {
        "share_permille": sum(one.profile.share_permille for one in asked),
        "mem_bytes": sum(one.profile.mem_bytes for one in asked),
        "slices": len(asked),
    }


def lock_owners(session: Session, owners: Owners) -> list[Standing]:
    """Locks the same quotas as `charge_owners`, without charging them."""
    quota = models.Quota
    rows = [
        session.execute(select(*_STANDING).where(quota.tenant_id == owner.id).with_for_update()).one_or_none()
        for owner, _ in owners
    ]
    return [standing(row) for row in rows if row is not None]


def require_permitted(session: Session, tenant: models.Tenant, asked: Sequence[Asked]) -> None:
    """Raises Refusal(QUOTA_FORBIDDEN) for profiles that were charged before but are no longer permitted.

    The caller holds the owners' locks.
    """
    for owner, role in owners_of(session, tenant):
        quota = session.get_one(models.Quota, owner.id, populate_existing=True)
        refuse_forbidden(
            owner,
            role,
            forbidden(session, owner, role, asked, mode=quota.mode, band=quota.band, limited=quota.profiles_limited),
        )


def owners_of(session: Session, tenant: models.Tenant) -> Owners:
    """Returns the owners whose quotas count a tenant's slices, in lock order."""
    if tenant.account_id is None:
        return owners_with(tenant, None)
    account = session.get(models.Tenant, tenant.account_id)
    if account is None:  # deleted since the lookup, after the tenant itself
        raise TryAgain
    return owners_with(tenant, account)


def owners_with(tenant: models.Tenant, account: models.Tenant | None) -> Owners:
    """Like `owners_of`, for a caller that has the account."""
    return [(tenant, "account")] if account is None else [(account, "account"), (tenant, "project")]


def give_back(session: Session, tenant_id: UUID, *, share_permille: int, mem_bytes: int, slices: int) -> None:
    """Subtracts slices from one owner's use. If the use exceeded the limit, `scaling` adapts the shares later."""
    quota = models.Quota
    change(
        session,
        update(quota)
        .where(quota.tenant_id == tenant_id)
        .values(
            share_used=quota.share_used - share_permille,
            mem_used=quota.mem_used - mem_bytes,
            slices_used=quota.slices_used - slices,
        ),
    )


def objections(
    session: Session, owner: models.Tenant, role: str, asked: Sequence[Asked], *, charged: bool = False
) -> list[Reason]:
    """Returns one owner's objections to slices of these profiles. `charged`: their amounts are charged already."""
    quota = session.get(models.Quota, owner.id)
    if quota is None:
        return []
    found = forbidden(session, owner, role, asked, mode=quota.mode, band=quota.band, limited=quota.profiles_limited)
    return found if charged else [*found, *_shortfalls(quota, owner.name, role, sums_of(asked))[0]]


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
    if not reasons:  # quota was returned meanwhile
        raise TryAgain
    what = ", ".join(reason.code.removeprefix("quota.") for reason in reasons)
    return Refusal(
        Code.QUOTA_EXCEEDED,
        f"the quota of {role} {owner.name} is too small: {what}; delete slices or have the quota raised",
        reasons=tuple(reasons),
        limits={"tenant": owner.name, **limits},
    )


def _answers(session: Session, rows: Sequence[tuple[models.Quota, str]]) -> list[Quota]:
    profiles = profiles_of(session, [quota for quota, _ in rows])
    return [
        Quota(
            tenant=tenant,
            tenant_id=quota.tenant_id,
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
            band=None if quota.band is None else Band(quota.band),
            generation=quota.generation,
        )
        for quota, tenant in rows
    ]
