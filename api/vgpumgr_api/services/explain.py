# SPDX-License-Identifier: Apache-2.0
"""What would come of a claim, and why. Looks at every GPU, and locks and stores nothing."""

from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.resources import Explanation, SliceCreate
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.services.actors import Actor, require_change, require_tenant
from vgpumgr_api.services.claims import wanted_of
from vgpumgr_api.services.lookup import profile_named, tenant_named
from vgpumgr_api.services.obstacles import Wanted, census, parameters, settled
from vgpumgr_api.services.permits import Asked
from vgpumgr_api.services.placement import best
from vgpumgr_api.services.quotas import objections, owners_of


def explain(session: Session, actor: Actor, request: SliceCreate) -> Explanation:
    """Returns what stands in the way of a claim: quotas, and for each GPU the first thing. For who may claim."""
    require_change(actor)
    tenant = tenant_named(session, request.tenant)
    require_tenant(actor, tenant)
    profile = profile_named(session, request.profile)
    wanted = settled(session, wanted_of(session, actor, tenant, profile, request))
    short = [
        reason
        for owner, role in owners_of(session, tenant)
        for reason in objections(session, owner, role, [Asked(profile)])
    ]
    fitting, reasons = census(session, wanted, futile=bool(short))
    place = None
    if not short and (chosen := _chosen(session, wanted)) is not None:
        statement = select(Host.name, Gpu.address).join(Host, Host.id == Gpu.host_id).where(Gpu.id == chosen)
        place = session.execute(statement).one()
    return Explanation(
        fits=place is not None,
        gpus=fitting + sum(reason.count or 0 for reason in reasons),
        fitting=fitting,
        host=place and place[0],
        gpu=place and place[1],
        reasons=[*short, *reasons],
    )


def _chosen(session: Session, wanted: Wanted) -> UUID | None:
    found: UUID | None = session.scalar(best(wanted.shape, wanted.placement), parameters(session, wanted))
    return found
