# SPDX-License-Identifier: Apache-2.0
"""The use by tenants, as last reported by hosts."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.resources import Usage
from vgpumgr_api.actors import Actor, reachable_tenants, require_tenant
from vgpumgr_api.db import models
from vgpumgr_api.db.observations import GroupObservation
from vgpumgr_api.resources.lookup import on_host, tenant_named
from vgpumgr_api.resources.paging import PageRequest, fetch

_COUNTERS = (
    "weight",
    "timeslice_us",
    "cap_us",
    "cap_period_us",
    "run_ns",
    "runs",
    "longest_run_ns",
    "throttled_ns",
    "switches",
    "wall_ns",
    "idle_ns",
    "reported_at",
)


def list_usage(
    session: Session, actor: Actor, page: PageRequest, *, tenant: str | None = None, host: str | None = None
) -> Page[Usage]:
    """Returns the groups of tenants that `actor` reaches, by host, GPU and tenant."""
    statement = (
        select(GroupObservation)
        .join(models.Gpu, models.Gpu.id == GroupObservation.gpu_id)
        .join(models.Host, models.Host.id == models.Gpu.host_id)
        .join(models.Tenant, models.Tenant.id == GroupObservation.tenant_id)
        .where(reachable_tenants(actor))
    )
    if tenant is not None:
        owner = tenant_named(session, tenant)
        require_tenant(actor, owner)
        statement = statement.where(models.Tenant.id == owner.id)
    if host is not None:
        statement = statement.where(on_host(session, actor, host))
    keys = [models.Host.name, models.Gpu.address, models.Tenant.name]
    rows, token = fetch(session, statement, kind="usage", keys=keys, page=page)
    return Page(
        items=[
            Usage(host=row[1], gpu=row[2], tenant=row[3], **{name: getattr(row[0], name) for name in _COUNTERS})
            for row in rows
        ],
        next_page_token=token,
    )
