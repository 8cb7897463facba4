# SPDX-License-Identifier: Apache-2.0
"""Numbers that grow with every change: those that clients match, and those that hosts wait for."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.models import Gpu, Host, Slice, Tenant
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal

BATCH = 500


def require_match(if_match: int | None, generation: int, *, required: bool = True) -> None:
    """Refuses a change by someone who has not seen the latest state. The caller holds the row's lock."""
    if if_match is None:
        if required:
            raise Refusal(Code.GENERATION_REQUIRED, "read the object first and send its generation in If-Match")
    elif if_match != generation:
        raise Refusal(
            Code.GENERATION_STALE, f"it was changed and is at generation {generation} now; read it again and decide"
        )


def bump(session: Session, hosts: Iterable[UUID]) -> None:
    """Tells hosts that their desired state changed. The last locks a transaction takes, and at most once."""
    ids = sorted(set(hosts))
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        if len(some) > 1:
            # An UPDATE of many rows locks them in any order; two of those could wait for each other.
            session.execute(select(Host.id).where(Host.id.in_(some)).order_by(Host.id).with_for_update()).all()
        change(session, update(Host).where(Host.id.in_(some)).values(desired_generation=Host.desired_generation + 1))


def bump_claimed(session: Session, hosts: Iterable[UUID]) -> None:
    """As `bump`, after claims: of hosts that have stopped taking them since their GPUs were chosen none is made.

    A drain that holds the host's row has thereby seen every claim on it.
    """
    for host_id in sorted(set(hosts)):
        statement = update(Host).where(Host.id == host_id, Host.state == "ready")
        if not change(session, statement.values(desired_generation=Host.desired_generation + 1)):
            raise TryAgain


def hosts_of(session: Session, tenant_id: UUID) -> set[UUID]:
    """Returns where a tenant, or a project of it, has slices."""
    return set(
        session.scalars(
            select(Gpu.host_id)
            .join(Slice, Slice.gpu_id == Gpu.id)
            .join(Tenant, Tenant.id == Slice.tenant_id)
            .where(or_(Tenant.id == tenant_id, Tenant.account_id == tenant_id))
            .distinct()
        )
    )
