# SPDX-License-Identifier: Apache-2.0
"""Numbers that grow with every change: generations for If-Match, and desired generations that hosts wait for."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from sqlalchemy import bindparam, or_, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.models import Gpu, Host, Installation, Slice, Tenant
from vgpumgr_api.db.statements import change, table_of
from vgpumgr_api.errors import Refusal

BATCH = 500

_HOSTS = table_of(Host)
BUMP_CLAIMED = (
    update(_HOSTS)
    .where(
        _HOSTS.c.id == bindparam("claimed_on"),
        _HOSTS.c.state == "ready",
        _HOSTS.c.fenced_at.is_(None),
        _HOSTS.c.enroll_hash.is_(None),
        _HOSTS.c.epoch_confirmed,
    )
    .values(desired_generation=_HOSTS.c.desired_generation + 1)
)
"""Like `bump`, after a claim. It affects no row if the host has stopped taking claims since its GPU was chosen.

So a transaction that locks the host's row, to drain or fence it or to confirm its epoch, sees every claim on it.
"""


@dataclass(frozen=True)
class Seen:
    """The state of an object that a change is based on. `mark` identifies the object and the epoch; None: not given."""

    generation: int
    mark: str | None = None


IfMatch = Seen | int | None
"""An int is a `Seen` that does not identify the object."""


def mark_of(epoch: UUID, identity: UUID) -> str:
    """Returns a mark that differs for other objects of the same name, and for the same object before a restore."""
    return sha256(epoch.bytes + identity.bytes).hexdigest()[:16]


def require_match(session: Session, if_match: IfMatch, identity: UUID, generation: int) -> None:
    """Refuses a change whose client has not seen the latest state. The caller holds the row's lock."""
    if if_match is None:
        raise Refusal(Code.GENERATION_REQUIRED, "read the object first and send its ETag in If-Match")
    refuse_other(session, if_match, identity, generation)


def refuse_other(session: Session, if_match: IfMatch, identity: UUID, generation: int) -> None:
    """Like `require_match`, for changes that are also permitted without If-Match."""
    if if_match is None:
        return
    seen = Seen(if_match) if isinstance(if_match, int) else if_match
    if seen.mark is not None and seen.mark != mark_of(session.scalars(select(Installation.epoch)).one(), identity):
        raise Refusal(
            Code.GENERATION_STALE,
            "this ETag is of another object of that name, or from before a backup was restored; read it again and"
            " decide",
        )
    if seen.generation != generation:
        raise Refusal(
            Code.GENERATION_STALE, f"it was changed and is at generation {generation} now; read it again and decide"
        )


def bump(session: Session, hosts: Iterable[UUID]) -> None:
    """Advances hosts' desired generation. Takes the last locks of a transaction, and is called at most once in it."""
    ids = sorted(set(hosts))
    for start in range(0, len(ids), BATCH):
        some = ids[start : start + BATCH]
        if len(some) > 1:
            # An UPDATE of several rows locks them in no particular order, so two such statements could deadlock.
            session.execute(select(Host.id).where(Host.id.in_(some)).order_by(Host.id).with_for_update()).all()
        change(session, update(Host).where(Host.id.in_(some)).values(desired_generation=Host.desired_generation + 1))


def bump_claimed(session: Session, hosts: Iterable[UUID]) -> None:
    """Runs `BUMP_CLAIMED` for each host. Raises TryAgain if one has stopped taking claims."""
    for host_id in sorted(set(hosts)):
        if not session.connection().execute(BUMP_CLAIMED, {"claimed_on": host_id}).rowcount:
            raise TryAgain


def hosts_of(session: Session, tenant_id: UUID) -> set[UUID]:
    """Returns the hosts on which a tenant, or a project of it, has slices."""
    return set(
        session.scalars(
            select(Gpu.host_id)
            .join(Slice, Slice.gpu_id == Gpu.id)
            .join(Tenant, Tenant.id == Slice.tenant_id)
            .where(or_(Tenant.id == tenant_id, Tenant.account_id == tenant_id))
            .distinct()
        )
    )
