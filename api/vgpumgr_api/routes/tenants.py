# SPDX-License-Identifier: Apache-2.0
"""Tenants: accounts and their projects."""

from typing import Annotated

from fastapi import APIRouter, Query

from vgpumgr.wire.common import ExternalId, Name, Page
from vgpumgr.wire.resources import Tenant, TenantCreate, TenantKind, TenantPatch
from vgpumgr_api.edge.call import CallDep, IdempotencyKey, IfMatch, PageDep, TrialDep
from vgpumgr_api.edge.expired import despite_expired
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.tenancy import tenants

router = APIRouter(prefix="/v1/tenants", tags=["tenants"], route_class=Route)


@router.get("")
def list_tenants(
    call: CallDep,
    page: PageDep,
    kind: TenantKind | None = None,
    account: Annotated[Name | None, Query(description="only this account and its projects")] = None,
    external_id: Annotated[ExternalId | None, Query(description="only the tenant with this external id")] = None,
) -> Page[Tenant]:
    """Lists the tenants that the caller may see, by name."""
    return call.read(tenants.list_tenants, page, kind=kind, account=account, external_id=external_id)


@router.post(
    "", status_code=201, responses={200: {"description": "With validate_only: what would be created", "model": Tenant}}
)
def create_tenant(call: TrialDep, wanted: TenantCreate, idempotency_key: IdempotencyKey = None) -> Tenant:
    """Creates an account, or a project of an account, with a quota of zero."""
    tenant = call.write_once(idempotency_key, tenants.create_tenant, wanted, kind=Tenant)
    call.located(f"/v1/tenants/{tenant.name}")
    call.tag(tenant.id, tenant.generation)
    return tenant


@router.get("/{name}")
def get_tenant(call: CallDep, name: Name) -> Tenant:
    """Returns a tenant."""
    tenant = call.read(tenants.get_tenant, name)
    call.tag(tenant.id, tenant.generation)
    return tenant


@router.patch("/{name}")
def patch_tenant(call: TrialDep, name: Name, patch: TenantPatch, if_match: IfMatch) -> Tenant:
    """Sets, changes or removes the external id. Needs If-Match."""
    tenant = call.write(tenants.patch_tenant, name, patch, if_match=if_match)
    call.tag(tenant.id, tenant.generation)
    return tenant


@router.delete("/{name}", status_code=204)
def delete_tenant(call: TrialDep, name: Name, if_match: IfMatch) -> None:
    """Deletes a tenant without projects and slices."""
    despite_expired(call, lambda: call.write(tenants.delete_tenant, name, if_match=if_match))
