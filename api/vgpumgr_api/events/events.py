# SPDX-License-Identifier: Apache-2.0
"""Events, written in the transaction that caused them and read in one order; see `outbox`."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import COUNTER_MAX
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import EventPage
from vgpumgr_api.actors import Actor, require_person, require_tenant
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import filled, insert, prefixed
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import audit, outbox
from vgpumgr_api.events.outbox import Told, Wanted
from vgpumgr_api.resources.lookup import tenant_named
from vgpumgr_api.resources.paging import PAGE_SIZE, checked_size
from vgpumgr_api.resources.text import printable

_RECORDED = "events recorded"
_SAID = ("at", "kind", "actor", "request_id", "tenant_id", "account_id", "tenant", "object", "detail")
INSERTS = (filled(records.Event, "said", _SAID), audit.INSERT)
"""The INSERTs of `record`, for `Together`; the parameters are those of `said`."""


@dataclass(frozen=True)
class Begun:
    """The start of a watch: the selected events, and a position in an epoch."""

    wanted: Wanted
    position: int
    epoch: UUID


def record(
    session: Session,
    actor: Actor,
    kind: str,
    subject: object,
    *,
    tenant: models.Tenant | None = None,
    generation: int | None = None,
    detail: dict[str, Any] | None = None,
) -> None:
    """Records that `actor` did `kind`, for example ``slice.claimed``, to `subject`.

    It is recorded as an event for watchers and in the audit. Without `tenant`, only operators get the event.
    `generation`: that of the object afterwards.
    """
    session.info[_RECORDED] = recorded(session) + 1
    insert(session, records.Event, _row(session, actor, kind, subject, tenant, detail))
    audit.write(
        session,
        actor,
        kind,
        subject,
        tenant=tenant.name if tenant else None,
        generation=generation,
        detail=detail or {},
    )


def recorded(session: Session) -> int:
    """Returns how many events this session has recorded."""
    count: int = session.info.get(_RECORDED, 0)
    return count


def said(
    session: Session,
    actor: Actor,
    kind: str,
    subject: object,
    *,
    tenant: models.Tenant,
    generation: int,
    detail: dict[str, Any],
) -> dict[str, Any]:
    """Returns what `record` would write, as the parameters of `INSERTS`."""
    row = _row(session, actor, kind, subject, tenant, detail)
    return prefixed("said", {**row, **audit.credentials_of(actor), "generation": generation})


def _row(
    session: Session,
    actor: Actor,
    kind: str,
    subject: object,
    tenant: models.Tenant | None,
    detail: dict[str, Any] | None,
) -> dict[str, Any]:
    return {
        "at": now(session),
        "kind": kind,
        "actor": actor.name,
        "request_id": printable(actor.request_id)[:64],
        "tenant_id": tenant.id if tenant else None,
        "account_id": tenant.account_id if tenant else None,
        "tenant": tenant.name if tenant else None,
        "object": str(subject),
        "detail": detail or {},
    }


def has_unnumbered(session: Session, _actor: Actor) -> bool:
    """Whether there are events without a number. For a read-only transaction."""
    return outbox.has_unnumbered(session)


def number(session: Session, _actor: Actor) -> bool:
    """Numbers the new events, for `list_events` and `begin_watch`. Returns True if there may be more.

    It needs its own transaction, because it blocks other numbering until the end, and a list may take long.
    """
    return outbox.number(session)


def list_events(
    session: Session,
    actor: Actor,
    *,
    after: int = 0,
    size: int = PAGE_SIZE,
    about: frozenset[str] = frozenset(),
    tenant: str | None = None,
    epoch: str = "",
    unnumbered: bool = False,
) -> EventPage:
    """Returns events numbered above `after`, oldest first. For a read-only transaction that follows `number`.

    `unnumbered`: what `number` returned. `next_page_token` is the next `after` if there are more events, else "". If
    many events are new, a page may be short or empty without being the last. `after` 0: from the oldest event kept.
    `epoch`: as for `begin_watch`. Raises Refusal(WATCH_EXPIRED) like `begin_watch`.
    """
    wanted = wanted_by(session, actor, about=about, tenant=tenant)
    size = checked_size(size)
    _check(after)
    row = records.Event
    found = session.scalars(
        select(row).where(row.seq > after, *wanted.conditions()).order_by(row.seq).limit(size + 1)
    ).all()
    present = _require_there(session, after, epoch)
    if after:
        outbox.require_kept(session, after)
    token = ""
    if len(found) > size:
        token = str(found[size - 1].seq)
    elif unnumbered:
        token = str(outbox.newest(session))
    items = [outbox.answer(event, wanted) for event in found[:size]]
    return EventPage(items=items, next_page_token=token, epoch=epoch_name(present))


def begin_watch(
    session: Session, actor: Actor, *, after: int | None, epoch: str, about: frozenset[str], tenant: str | None
) -> Begun:
    """Returns where a watch begins. `after` None: now; 0: at the oldest event kept.

    `epoch`: the epoch in the client's position, in the digits of `epoch_name`; "" if there is none. For a read-only
    transaction that follows `number`. Raises Refusal(WATCH_EXPIRED) if the watch cannot continue from the position.
    """
    wanted = wanted_by(session, actor, about=about, tenant=tenant)
    _check(after or 0)
    present = _require_there(session, after or 0, epoch)
    if after is None:
        return Begun(wanted, outbox.newest(session), present)
    if after == 0:
        return Begun(wanted, outbox.oldest(session) - 1, present)
    outbox.require_kept(session, after)
    return Begun(wanted, after, present)


def catch_up(session: Session, actor: Actor, begun: Begun, after: int, limit: int) -> tuple[list[Told], int]:
    """Like `outbox.read`, for a watch that has begun. Raises WATCH_EXPIRED also if the epoch has changed."""
    _require_there(session, after, epoch_name(begun.epoch))
    return outbox.read(session, actor, begun.wanted, after, limit)


def wanted_by(session: Session, actor: Actor, *, about: frozenset[str], tenant: str | None) -> Wanted:
    """Returns the selection of events that the actor asked for and may see."""
    require_person(actor)
    of = None
    if tenant is not None:
        owner = tenant_named(session, tenant)
        require_tenant(actor, owner)
        of = owner.id
    return Wanted(owner=None if actor.sees_the_cloud else actor.tenant_id, about=about, of=of)


def epoch_name(epoch: UUID) -> str:
    """Returns the part of an epoch in a watcher's position, which is enough to distinguish epochs."""
    return epoch.hex[:12]


def _require_there(session: Session, after: int, epoch: str) -> UUID:
    """Returns the current epoch. Refuses a position of another epoch, or above the newest event."""
    present = session.scalars(select(models.Installation.epoch)).one()
    if epoch and epoch != epoch_name(present):
        raise outbox.expired("the database was restored since then and has other events")
    if after and after > (last := outbox.newest(session)):
        raise outbox.expired(f"there is no event {after}; the newest is {last}")
    return present


def _check(after: int) -> None:
    if not 0 <= after <= COUNTER_MAX:
        raise Refusal(Code.FIELD_INVALID, "after is not the number of an event; begin with 0")
