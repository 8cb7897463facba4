# SPDX-License-Identifier: Apache-2.0
"""What happened, written in the transaction that did it, and read in one order.

An event gets its number not when it is written but when the first reader after its commit comes, because numbers
handed out earlier need not be committed in their order: a watcher that had seen 6 would miss a 5 committed later.
Readers number one after the other, so that the numbers have no gaps and never change. (The usual way, reading only
below pg_snapshot_xmin, orders by transaction ids, and those do not survive a dump and restore.)
"""

from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, text, true, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import COUNTER_MAX, Page
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Event
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import insert, is_postgresql
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services import audit
from vgpumgr_api.services.actors import Actor, require_person
from vgpumgr_api.services.paging import PAGE_SIZE, checked_size
from vgpumgr_api.services.text import printable

NUMBERING_LOCK = 0x76677075_00000002
NUMBERED_AT_ONCE = 10_000


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
    """Writes down that `actor` did `kind`, as in ``slice.claimed``, to `subject`; for operators only if no `tenant`.

    As an event for those who watch and in the audit. `generation`: what the object has after it.
    """
    insert(
        session,
        records.Event,
        {
            "at": now(session),
            "kind": kind,
            "actor": actor.name,
            "request_id": printable(actor.request_id)[:64],
            "tenant_id": tenant.id if tenant else None,
            "account_id": tenant.account_id if tenant else None,
            "tenant": tenant.name if tenant else None,
            "object": str(subject),
            "detail": detail or {},
        },
    )
    audit.write(
        session,
        actor,
        kind,
        subject,
        tenant=tenant.name if tenant else None,
        generation=generation,
        detail=detail or {},
    )


def list_events(session: Session, actor: Actor, *, after: int = 0, size: int = PAGE_SIZE) -> Page[Event]:
    """Returns events numbered above `after`, oldest first. Not for a read-only transaction: it numbers them.

    `next_page_token` is the next `after` if more are there already, else "".
    """
    require_person(actor)
    size = checked_size(size)
    if not 0 <= after <= COUNTER_MAX:
        raise Refusal(Code.FIELD_INVALID, "after is not the number of an event; begin with 0")
    _number(session)
    mine: ColumnElement[bool] = true()
    if not actor.sees_the_cloud:
        mine = or_(records.Event.tenant_id == actor.tenant_id, records.Event.account_id == actor.tenant_id)
    found = session.scalars(
        select(records.Event).where(records.Event.seq > after, mine).order_by(records.Event.seq).limit(size + 1)
    ).all()
    return Page(
        items=[_event(event) for event in found[:size]],
        next_page_token=str(found[size - 1].seq) if len(found) > size else "",
    )


def _number(session: Session) -> None:
    unnumbered = select(records.Event.id).where(records.Event.seq.is_(None))
    if session.scalar(unnumbered.limit(1)) is None:
        return
    if is_postgresql(session):
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": NUMBERING_LOCK})
    last = session.scalar(select(func.max(records.Event.seq))) or 0
    ids = session.scalars(unnumbered.order_by(records.Event.id).limit(NUMBERED_AT_ONCE)).all()
    if ids:
        session.connection().execute(
            update(records.Event.__table__)  # type: ignore[arg-type]
            .where(records.Event.__table__.c.id == text(":row"))
            .values(seq=text(":number")),
            [{"row": row, "number": last + number} for number, row in enumerate(ids, start=1)],
        )


def _event(event: records.Event) -> Event:
    return Event(
        seq=event.seq or 0,
        at=event.at,
        kind=event.kind,
        actor=event.actor,
        tenant=event.tenant,
        object=event.object,
        detail=event.detail,
    )
