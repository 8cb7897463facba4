# SPDX-License-Identifier: Apache-2.0
"""The audit: which actor did what."""

from typing import Annotated

from fastapi import APIRouter, Query

from vgpumgr.wire.audit import AuditEntry
from vgpumgr.wire.common import Instant, Name, Page
from vgpumgr.wire.events import Kind
from vgpumgr_api.edge.call import CallDep, PageDep
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.events import audit
from vgpumgr_api.events.audit import AuditFilter

router = APIRouter(prefix="/v1/audit", tags=["audit"], route_class=Route)


@router.get("")
def list_audit(
    call: CallDep,
    page: PageDep,
    actor: Annotated[str | None, Query(max_length=128, description="such as `operator:local`")] = None,
    action: Annotated[Kind | None, Query(description="such as `slice.claimed`")] = None,
    object: Annotated[str | None, Query(max_length=128, description="name or UUID of what was changed")] = None,  # noqa: A002
    tenant: Name | None = None,
    request_id: Annotated[str | None, Query(max_length=64, description="`X-Request-Id` of the request")] = None,
    since: Annotated[Instant | None, Query(description="not before this instant")] = None,
    until: Annotated[Instant | None, Query(description="before this instant")] = None,
) -> Page[AuditEntry]:
    """Lists who did what, oldest first. For admins."""
    wanted = AuditFilter(
        actor=actor, action=action, object=object, tenant=tenant, request_id=request_id, since=since, until=until
    )
    return call.read(audit.list_audit, page, wanted)
