# SPDX-License-Identifier: Apache-2.0
"""Accounts and projects."""

from uuid import uuid4

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from vgpumgr.wire.common import Page
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import Tenant, TenantCreate, TenantKind, TenantPatch
from vgpumgr_api.actors import Actor, reachable_tenants, require_operator, require_tenant, unknown
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.reservations import Reservation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.resources.generations import IfMatch, refuse_other, require_match
from vgpumgr_api.resources.in_use import refuse_projects, refuse_reservations, refuse_slices
from vgpumgr_api.resources.lookup import named_by, of_account, refuse_duplicate, remove, taken, tenant_named
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.resources.patching import changes_of
from vgpumgr_api.tenancy.enforcement import TIMESLICE_US_DEFAULT

_ACCOUNT = aliased(models.Tenant)


def list_tenants(
    session: Session,
    actor: Actor,
    page: PageRequest,
    *,
    kind: TenantKind | None = None,
    account: str | None = None,
    external_id: str | None = None,
) -> Page[Tenant]:
    """Returns the tenants that `actor` reaches, by name. `account`: only that account and its projects."""
    statement = (
        select(models.Tenant, _ACCOUNT.name)
        .outerjoin(_ACCOUNT, _ACCOUNT.id == models.Tenant.account_id)
        .where(reachable_tenants(actor))
    )
    if kind is not None:
        is_account = models.Tenant.account_id.is_(None)
        statement = statement.where(is_account if kind is TenantKind.ACCOUNT else ~is_account)
    if account is not None:
        statement = statement.where(of_account(session, actor, account))
    if external_id is not None:
        statement = statement.where(models.Tenant.external_id == external_id)
    rows, token = fetch(session, statement, kind="tenants", keys=[models.Tenant.name], page=page)
    return Page(items=[_tenant(row[0], row[1]) for row in rows], next_page_token=token)


def create_tenant(session: Session, actor: Actor, request: TenantCreate) -> Tenant:
    """Creates a tenant with an empty quota. A project gets a timeslice that its account allows. For operators only."""
    require_operator(actor)
    account, timeslice_us = None, TIMESLICE_US_DEFAULT
    if request.account is not None:
        with named_by("$.account"):
            account = tenant_named(session, request.account)
        if account.account_id is not None:
            detail = f"{request.account} is a project; name an account, which holds projects"
            raise Refusal(
                Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field="$.account"),)
            )
        low, high = _timeslices(session, account)
        timeslice_us = min(max(timeslice_us, low), high)
    refuse_duplicate(session, models.Tenant.name, request.name, kind="tenant")
    _refuse_taken(session, request.external_id)
    tenant = models.Tenant(
        id=uuid4(),
        name=request.name,
        account_id=account.id if account else None,
        generation=1,
        created_at=now(session),
        external_id=request.external_id,
    )
    session.add(tenant)
    session.flush()
    session.add(
        models.Quota(
            tenant_id=tenant.id,
            share_limit=0,
            mem_limit=0,
            slices_limit=0,
            share_used=0,
            mem_used=0,
            slices_used=0,
            timeslice_us=timeslice_us,
            generation=1,
        )
    )
    said = {} if tenant.external_id is None else {"external_id": tenant.external_id}
    events.record(
        session, actor, "tenant.created", tenant.name, tenant=tenant, generation=tenant.generation, detail=said
    )
    session.flush()
    return _tenant(tenant, request.account)


def get_tenant(session: Session, actor: Actor, name: str) -> Tenant:
    """Returns one tenant."""
    tenant = tenant_named(session, name)
    require_tenant(actor, tenant)
    return _tenant(tenant, _account_name(session, tenant))


def patch_tenant(session: Session, actor: Actor, name: str, patch: TenantPatch, *, if_match: IfMatch) -> Tenant:
    """Sets, changes or removes a tenant's id in another system. For operators only."""
    require_operator(actor)
    changes = changes_of(patch, removable=("external_id",))
    tenant = _locked(session, tenant_named(session, name))
    require_match(session, if_match, tenant.id, tenant.generation)
    before = tenant.external_id
    wanted = changes.get("external_id", before)
    if wanted != before:
        _refuse_taken(session, wanted)
        tenant.external_id = wanted
        tenant.generation += 1
        detail = {"external_id": {"from": before, "to": wanted}}
        events.record(
            session, actor, "tenant.changed", tenant.name, tenant=tenant, generation=tenant.generation, detail=detail
        )
        session.flush()
    return _tenant(tenant, _account_name(session, tenant))


def delete_tenant(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> None:
    """Removes a tenant without slices and projects, with its quota and tokens. For operators only."""
    require_operator(actor)
    tenant = tenant_named(session, name)
    # Claims update this row first, so no claim can come between the check and the end of this transaction.
    session.scalars(select(models.Quota.tenant_id).where(models.Quota.tenant_id == tenant.id).with_for_update()).all()
    tenant = _locked(session, tenant)
    refuse_other(session, if_match, tenant.id, tenant.generation)
    refuse_projects(session, tenant)
    refuse_slices(
        session,
        models.Slice.tenant_id == tenant.id,
        found=f"{name} still has",
        advice="delete those and wait until their hosts confirm, lost ones until their host is re-enrolled or deleted",
    )
    refuse_reservations(session, Reservation.tenant_id == tenant.id, why=f"{name} still has reservations; delete those")
    remove(session, models.Tenant, tenant.id, kind="tenant", name=name)
    events.record(session, actor, "tenant.deleted", tenant.name, tenant=tenant)


def _locked(session: Session, tenant: models.Tenant) -> models.Tenant:
    """Returns a tenant's current row, locked until the commit. Raises OBJECT_UNKNOWN if it was deleted meanwhile.

    The lock does not block claims, whose slices may still refer to the row.
    """
    found = session.get(models.Tenant, tenant.id, populate_existing=True, with_for_update={"key_share": True})
    if found is None:
        raise unknown("tenant", tenant.name)
    return found


def _refuse_taken(session: Session, external_id: str | None) -> None:
    """Raises Refusal(OBJECT_EXISTS) if another tenant has this external id. The index covers concurrent requests."""
    owner = external_id and session.scalar(select(models.Tenant.name).where(models.Tenant.external_id == external_id))
    if owner:
        detail = f"{external_id!r} is the external id of tenant {owner} already; choose another, or remove it there"
        raise taken("$.external_id", detail)


def _timeslices(session: Session, account: models.Tenant) -> tuple[int, int]:
    """Returns an account's range of timeslices, locked so that a later change of the range sees the new project."""
    quota = models.Quota
    found = session.execute(
        select(quota.timeslice_min_us, quota.timeslice_max_us).where(quota.tenant_id == account.id).with_for_update()
    ).one_or_none()
    if found is None:  # the account was deleted since the lookup
        raise TryAgain
    return found.timeslice_min_us, found.timeslice_max_us


def _account_name(session: Session, tenant: models.Tenant) -> str | None:
    return session.scalar(select(models.Tenant.name).where(models.Tenant.id == tenant.account_id))


def _tenant(tenant: models.Tenant, account: str | None) -> Tenant:
    return Tenant(
        id=tenant.id,
        name=tenant.name,
        kind=TenantKind.PROJECT if tenant.account_id else TenantKind.ACCOUNT,
        account=account,
        generation=tenant.generation,
        created_at=tenant.created_at,
        external_id=tenant.external_id,
    )
