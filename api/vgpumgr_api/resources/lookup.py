# SPDX-License-Identifier: Apache-2.0
"""Finds rows by the names that clients use. The caller checks whether the actor may see them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, bindparam, delete, false, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.actors import Actor, credential_counts, credential_parameters, require_tenant, revoked, unknown
from vgpumgr_api.db import models, records
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal

# No other string can be a name, and PostgreSQL raises errors on some.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

NOWHERE = UUID(int=0)
"""The id of no host."""

# Built once, because every claim runs them.
_TENANT = select(models.Tenant).where(models.Tenant.name == bindparam("named"))
_PROFILE = select(models.Profile).where(models.Profile.name == bindparam("named"))
_ACCOUNT = aliased(models.Tenant)
_CLAIMING = (
    select(
        models.Tenant.id,
        models.Tenant.account_id,
        _ACCOUNT.name.label("account"),
        models.Profile.id.label("profile_id"),
        models.Profile.share_permille,
        models.Profile.mem_bytes,
        models.Profile.mode,
        models.Profile.band,
        models.Profile.reserve_period_us,
        models.Profile.policy,
        credential_counts().label("credential_counts"),
    )
    .outerjoin(_ACCOUNT, _ACCOUNT.id == models.Tenant.account_id)
    .outerjoin(models.Profile, models.Profile.name == bindparam("profile"))
    .where(models.Tenant.name == bindparam("tenant"))
)


@dataclass(frozen=True, kw_only=True)
class Claiming:
    """The tenant and profile of a claim, with the columns that a claim needs. The objects belong to no session.

    `account`: set for a project. `profile` None: there is no profile of that name.
    """

    tenant: models.Tenant
    account: models.Tenant | None
    profile: models.Profile | None


@contextmanager
def named_by(field: str) -> Iterator[None]:
    """Within the block, a refusal of an unknown object names this member of the body."""
    try:
        yield
    except Refusal as refusal:
        if refusal.code is Code.OBJECT_UNKNOWN:
            refusal.reasons = (Reason(code=refusal.code, detail=refusal.detail, field=field),)
        raise


def claiming(session: Session, actor: Actor, tenant: str, profile: str) -> Claiming:
    """Looks up tenant, account and profile in one query, which also checks the actor's credential.

    Raises Refusal: OBJECT_UNKNOWN for the tenant, AUTH_INVALID for the credential.
    """
    if not _NAME.fullmatch(tenant):
        raise unknown("tenant", tenant)
    asked = {"tenant": tenant, "profile": profile, **credential_parameters(actor)}
    found = session.connection().execute(_CLAIMING, asked).one_or_none()
    if found is None:
        raise unknown("tenant", tenant)
    if actor.token_id is not None and not found.credential_counts:
        raise revoked()
    return Claiming(
        tenant=models.Tenant(id=found.id, name=tenant, account_id=found.account_id),
        account=None if found.account_id is None else models.Tenant(id=found.account_id, name=found.account),
        profile=None
        if found.profile_id is None
        else models.Profile(
            id=found.profile_id,
            name=profile,
            share_permille=found.share_permille,
            mem_bytes=found.mem_bytes,
            mode=found.mode,
            band=found.band,
            reserve_period_us=found.reserve_period_us,
            policy=found.policy,
        ),
    )


def tenant_named(session: Session, name: str) -> models.Tenant:
    """Returns a tenant or raises Refusal(OBJECT_UNKNOWN)."""
    found = session.scalar(_TENANT, {"named": name}) if _NAME.fullmatch(name) else None
    if found is None:
        raise unknown("tenant", name)
    return found


def profile_named(session: Session, name: str) -> models.Profile:
    """Returns a profile or raises Refusal(OBJECT_UNKNOWN)."""
    found = session.scalar(_PROFILE, {"named": name}) if _NAME.fullmatch(name) else None
    if found is None:
        raise unknown("profile", name)
    return found


def asked_by(session: Session, actor: Actor, tenant: str, profile: str) -> tuple[models.Tenant, models.Profile]:
    """Returns the tenant and profile named in a body. A tenant that the actor may not see counts as unknown."""
    with named_by("$.tenant"):
        owner = tenant_named(session, tenant)
        require_tenant(actor, owner)
    with named_by("$.profile"):
        return owner, profile_named(session, profile)


def host_named(session: Session, name: str, *, lock: bool = False) -> models.Host:
    """Returns a host, by name or by UUID, or raises Refusal(OBJECT_UNKNOWN)."""
    found = None
    if _NAME.fullmatch(name):
        statement = select(models.Host).where(models.Host.name == name)
        found = session.scalar(statement.with_for_update() if lock else statement)
        if found is None and len(name) == 36:
            try:
                statement = select(models.Host).where(models.Host.id == UUID(name))
            except ValueError:
                pass
            else:
                found = session.scalar(statement.with_for_update() if lock else statement)
    if found is None:
        raise unknown("host", name)
    return found


def host_of(session: Session, claim: models.Slice) -> UUID:
    """Returns the host of a slice. The caller must already hold the slice's lock.

    While a statement waits for the lock, the slice may move to another GPU. A statement that joins the two tables and
    locks the slice would then find no row: PostgreSQL compares the new slice with the GPU that it had joined before.
    """
    return session.scalars(select(models.Gpu.host_id).where(models.Gpu.id == claim.gpu_id)).one()


def host_wanted(session: Session, actor: Actor, name: str | None) -> UUID | None:
    """Returns the host that a claim asks for, None if it names none.

    For a tenant, an unknown host looks like one where nothing fits; an actor that sees the cloud gets OBJECT_UNKNOWN.
    """
    try:
        with named_by("$.host"):
            return None if name is None else host_named(session, name).id
    except Refusal:
        if actor.sees_the_cloud:
            raise
        return NOWHERE


def on_host(session: Session, actor: Actor, name: str) -> ColumnElement[bool]:
    """Returns the condition on `models.Host` that selects a host.

    For a tenant, an unknown host looks like one without objects of the tenant; an actor that sees the cloud gets
    OBJECT_UNKNOWN.
    """
    try:
        return models.Host.id == host_named(session, name).id
    except Refusal:
        if actor.sees_the_cloud:
            raise
        return false()


def of_account(session: Session, actor: Actor, name: str) -> ColumnElement[bool]:
    """Returns the condition on `models.Tenant` that selects an account and its projects. Raises OBJECT_UNKNOWN."""
    account = tenant_named(session, name)
    require_tenant(actor, account)
    return or_(models.Tenant.id == account.id, models.Tenant.account_id == account.id)


def refuse_duplicate(session: Session, column: InstrumentedAttribute[str], name: str, *, kind: str) -> None:
    """Raises Refusal(OBJECT_EXISTS) if `name` is taken. The column's UNIQUE covers concurrent requests."""
    if session.scalar(select(column).where(column == name)) is not None:
        raise taken("$.name", f"{kind} {name} exists already; choose another name")


def taken(field: str, detail: str) -> Refusal:
    """Returns the refusal of a value that another object has. `field`: the member of the body with the value."""
    return Refusal(Code.OBJECT_EXISTS, detail, reasons=(Reason(code=Code.OBJECT_EXISTS, detail=detail, field=field),))


def remove(
    session: Session,
    table: type[models.Tenant | models.Profile | models.Host | records.Token],
    row_id: UUID,
    *,
    kind: str,
    name: object,
) -> None:
    """Deletes a row, or raises Refusal(OBJECT_UNKNOWN) if another transaction has just deleted it."""
    if change(session, delete(table).where(table.id == row_id)) == 0:
        raise unknown(kind, name)
