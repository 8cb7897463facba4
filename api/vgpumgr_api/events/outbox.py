# SPDX-License-Identifier: Apache-2.0
"""The events as one log, which is numbered, read in the order of its numbers, and trimmed at its old end.

An event gets its number not when it is written, but from the first reader after its commit. Numbers that are assigned
on writing may be committed in another order: a watcher that had seen 6 would miss a 5 committed later. Readers assign
numbers one after another, so numbers have no gaps and never change, and a long transaction delays no reader. (The usual
way, reading only below pg_snapshot_xmin, orders by transaction ids, which do not survive a dump and restore.)

The log is trimmed only at its old end, and its newest event always stays. So exactly the events below the smallest
number are missing, and a reader that asks for them gets WATCH_EXPIRED.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, ColumnElement, bindparam, delete, func, or_, select, text, update
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Event, TokenRole
from vgpumgr_api.actors import Actor, require_credential
from vgpumgr_api.db import models
from vgpumgr_api.db.database import Database, now
from vgpumgr_api.db.records import Event as Row
from vgpumgr_api.db.records import Token
from vgpumgr_api.db.statements import change, is_postgresql, table_of
from vgpumgr_api.errors import Refusal

NUMBERING_LOCK = 0x76677075_00000002
NUMBERED_AT_ONCE = 10_000
TRIMMED_AT_ONCE = 1000

OPERATOR = TokenRole.OPERATOR.value
_OPERATORS = frozenset({TokenRole.ADMIN.value, OPERATOR})

_EVENTS = table_of(Row)
_UNNUMBERED = select(Row.id).where(Row.seq.is_(None))
# Given the ids of the rows, PostgreSQL reads no other rows, however wrong its estimate of the unnumbered rows is.
_PLACES = (
    func.unnest(bindparam("rows", type_=ARRAY(BigInteger())))
    .table_valued("id", with_ordinality="place")
    .render_derived()
)
_NUMBERED = (
    update(_EVENTS)
    .where(_EVENTS.c.id == _PLACES.c.id)
    .values(seq=bindparam("last", type_=BigInteger()) + _PLACES.c.place)
)
_NUMBERED_ONE = update(_EVENTS).where(_EVENTS.c.id == bindparam("row")).values(seq=bindparam("number"))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The events that a watcher gets.

    `owner`: those of a tenant and its projects; None: all events, including those without a tenant. Of these, `about`
    selects kinds of object (empty: all), and `of` selects one tenant (None: all).
    """

    owner: UUID | None
    about: frozenset[str] = frozenset()
    of: UUID | None = None

    def matches(self, event: "Told") -> bool:
        return (
            (self.owner is None or self.owner in (event.tenant_id, event.account_id))
            and (not self.about or event.about in self.about)
            and (self.of is None or event.tenant_id == self.of)
        )

    def conditions(self) -> list[ColumnElement[bool]]:
        """Returns the same selection as SQL conditions."""
        found: list[ColumnElement[bool]] = []
        if self.owner is not None:
            found.append(or_(Row.tenant_id == self.owner, Row.account_id == self.owner))
        if self.about:
            found.append(or_(*(Row.kind.startswith(f"{each}.", autoescape=True) for each in sorted(self.about))))
        if self.of is not None:
            found.append(Row.tenant_id == self.of)
        return found

    def actor_of(self, event: Row) -> str:
        """Returns the actor of an event. Tenants do not learn operators' names and tokens; they see only the role."""
        role = event.actor.partition(":")[0]
        return OPERATOR if self.owner is not None and role in _OPERATORS else event.actor

    def data_of(self, event: "Told") -> bytes:
        """Returns the JSON of an event, with the actor that `actor_of` returns."""
        return event.data if self.owner is None else event.to_tenants or event.data


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it is sent: `data` is its JSON, and `to_tenants` the JSON for tenants if that differs."""

    seq: int
    about: str
    tenant_id: UUID | None
    account_id: UUID | None
    data: bytes
    to_tenants: bytes = b""

    @property
    def size(self) -> int:
        return len(self.data) + len(self.to_tenants)


@dataclass(frozen=True, kw_only=True)
class News:
    """The result of one look at the log: the new events, as many as fit, and the newest number.

    `alive`: those of the given credentials that still exist. All of this is from one snapshot.
    """

    epoch: UUID
    last: int
    events: Sequence[Told]
    alive: frozenset[UUID]


def has_unnumbered(session: Session) -> bool:
    """Whether there are events without a number."""
    return session.scalar(_UNNUMBERED.limit(1)) is not None


def number(session: Session) -> bool:
    """Numbers the committed events, at most `NUMBERED_AT_ONCE`. Returns True if there may be more."""
    if not has_unnumbered(session):
        return False
    if is_postgresql(session):
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": NUMBERING_LOCK})
    last = newest(session)
    ids = session.scalars(_UNNUMBERED.order_by(Row.id).limit(NUMBERED_AT_ONCE)).all()
    if ids and is_postgresql(session):
        session.connection().execute(_NUMBERED, {"rows": ids, "last": last})
    elif ids:
        numbers = [{"row": row, "number": last + place} for place, row in enumerate(ids, start=1)]
        session.connection().execute(_NUMBERED_ONE, numbers)
    return len(ids) == NUMBERED_AT_ONCE


def look(database: Database, after: int | None, limit: int, credentials: Collection[UUID]) -> News:
    """Numbers new events and reads the log. `after` None: reads the newest `limit` events."""
    if database.run(has_unnumbered, read_only=True):
        database.run(number)
    return database.run(lambda session: _news(session, after, limit, credentials), read_only=True)


def newest(session: Session) -> int:
    """Returns the largest number assigned, 0 before the first."""
    return session.scalar(select(func.max(Row.seq))) or 0


def oldest(session: Session) -> int:
    """Returns the smallest number kept, 1 before the first."""
    return session.scalar(select(func.min(Row.seq))) or 1


def require_kept(session: Session, after: int) -> None:
    """Refuses a position after which events were trimmed. Without a snapshot, call it after reading."""
    first = oldest(session)
    if after + 1 < first:
        raise expired(f"events up to {first - 1} are no longer kept, and you have seen those up to {after}")


def expired(why: str) -> Refusal:
    return Refusal(Code.WATCH_EXPIRED, f"{why}; read the lists again and watch from now on")


def _news(session: Session, after: int | None, limit: int, credentials: Collection[UUID]) -> News:
    last = newest(session)
    if after is None:
        after = max(last - limit, 0)
    found = session.scalars(select(Row).where(Row.seq > after).order_by(Row.seq).limit(limit)).all()
    alive = session.scalars(select(Token.id).where(Token.id.in_(list(credentials)))).all() if credentials else ()
    return News(
        epoch=session.scalars(select(models.Installation.epoch)).one(),
        last=last,
        events=[told(each) for each in found],
        alive=frozenset(alive),
    )


def read(session: Session, actor: Actor, wanted: Wanted, after: int, limit: int) -> tuple[list[Told], int]:
    """Returns the events that `actor` gets after a position, and the number up to which they are complete.

    For a read-only transaction. Raises Refusal: WATCH_EXPIRED if events are missing, AUTH_INVALID if the actor's
    credential was revoked.
    """
    require_credential(session, actor)
    require_kept(session, after)
    found = session.scalars(
        select(Row).where(Row.seq > after, *wanted.conditions()).order_by(Row.seq).limit(limit)
    ).all()
    complete_to = (found[-1].seq or 0) if len(found) == limit else max(newest(session), after)
    return [told(each) for each in found], complete_to


def trim(session: Session, *, kept_s: int, kept: int) -> bool:
    """Trims some events that are older than `kept_s` or not among the newest `kept`. Returns True if more are left.

    It numbers events first, so that a log without readers is numbered and stays short, too. If two processes trim at
    once, they delete the same events.
    """
    unnumbered = number(session)
    last = newest(session)
    old = now(session) - timedelta(seconds=kept_s)
    bound = count = 0
    rows = select(Row).where(Row.seq < last).order_by(Row.seq).limit(TRIMMED_AT_ONCE)
    for seq, at in session.execute(rows.with_only_columns(func.coalesce(Row.seq, 0), Row.at)):
        # Trimming stops at the first event to keep, so that an event with an older time than its predecessors does not
        # cause them to be deleted.
        if at >= old and seq > last - kept:
            break
        bound, count = seq, count + 1
    if bound:
        change(session, delete(Row).where(Row.seq <= bound))
    return unnumbered or count == TRIMMED_AT_ONCE


def answer(event: Row, wanted: Wanted) -> Event:
    """Returns an event as the API answers it."""
    return Event(
        seq=event.seq or 0,
        at=event.at,
        kind=event.kind,
        actor=wanted.actor_of(event),
        tenant=event.tenant,
        object=event.object,
        detail=event.detail,
    )


def told(event: Row) -> Told:
    """Returns an event as watchers get it."""
    said = answer(event, _EVERYTHING)
    theirs = answer(event, _OF_A_TENANT)
    return Told(
        said.seq,
        said.kind.partition(".")[0],
        event.tenant_id,
        event.account_id,
        said.model_dump_json().encode(),
        theirs.model_dump_json().encode() if event.tenant_id is not None and theirs != said else b"",
    )


_EVERYTHING = Wanted(owner=None)
_OF_A_TENANT = Wanted(owner=UUID(int=0))
