# SPDX-License-Identifier: Apache-2.0
"""Quotas: how much a tenant may claim. Each tenant has exactly one."""

from typing import Annotated

from fastapi import APIRouter, Query

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.resources import Quota, QuotaPatch
from vgpumgr_api.edge.call import CallDep, IfMatch, PageDep, TrialDep
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.tenancy import quotas

router = APIRouter(prefix="/v1/quotas", tags=["quotas"], route_class=Route)


@router.get("")
def list_quotas(
    call: CallDep,
    page: PageDep,
    account: Annotated[Name | None, Query(description="only of this account and its projects")] = None,
) -> Page[Quota]:
    """Lists quotas, and what is used of them, by tenant."""
    return call.read(quotas.list_quotas, page, account=account)


@router.get("/{tenant}")
def get_quota(call: CallDep, tenant: Name) -> Quota:
    """Returns a tenant's quota."""
    quota = call.read(quotas.get_quota, tenant)
    call.tag(quota.tenant_id, quota.generation)
    return quota


@router.patch("/{tenant}")
def patch_quota(call: TrialDep, tenant: Name, patch: QuotaPatch, if_match: IfMatch) -> Quota:
    """Changes limits, which apply to running slices at once. Needs If-Match."""
    quota = call.write(quotas.patch_quota, tenant, patch, if_match=if_match)
    call.tag(quota.tenant_id, quota.generation)
    return quota
