# SPDX-License-Identifier: Apache-2.0
"""Usage: what each tenant's groups obtained, beside what they were entitled by."""

from fastapi import APIRouter

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.resources import Usage
from vgpumgr_api.call import CallDep, PageDep
from vgpumgr_api.services import usage
from vgpumgr_api.strict import Route

router = APIRouter(prefix="/v1/usage", tags=["usage"], route_class=Route)


@router.get("")
def list_usage(call: CallDep, page: PageDep, tenant: Name | None = None, host: Name | None = None) -> Page[Usage]:
    """Counters per tenant and GPU, as last reported."""
    return call.read(usage.list_usage, page, tenant=tenant, host=host)
