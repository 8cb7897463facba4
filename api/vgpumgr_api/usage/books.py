# SPDX-License-Identifier: Apache-2.0
"""Which hours of the ledger are closed, and which are still kept.

An hour is closed `CLOSE_AFTER` after its end. Use that becomes known later is booked as a correction, in a separate
row. A booking transaction holds a shared lock on the row of the books until its commit, so nothing is added to an hour
once it is closed.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, case, delete, exists, false, func, select, tuple_, update
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from vgpumgr.wire.common import COUNTER_MAX
from vgpumgr_api.actors import Actor, local_operator
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import now
from vgpumgr_api.db.models import Base
from vgpumgr_api.db.statements import change, insert_unless_there, table_of
from vgpumgr_api.events import audit
from vgpumgr_api.installation.liveness import is_doubtful

HOUR = timedelta(hours=1)
CLOSE_AFTER = timedelta(minutes=15)
STEP, STEP_AFTER = timedelta(hours=2), timedelta(hours=1)
"""A longer step is closed only after the API has been alive for `STEP_AFTER`: a clock may have leapt, and a closed hour
cannot be reopened.
"""

FORGOTTEN, FORGOTTEN_AFTER = timedelta(days=3), timedelta(days=1)
"""The same two limits for deleting old rows."""

COUNTS_KEPT_HOURS = 30 * 24
"""How long the booked counts of a meter are kept. Hosts may send the counts of the last ten days again."""

FORGOTTEN_AT_ONCE = 5000
"""The maximum rows of one kind that one transaction deletes. Meanwhile no hour can be closed, and SQLite has no other
writer.
"""

UNBOOKED_KEPT = timedelta(days=92)
"""The maximum time that unbooked counts are kept, because hosts may report any amount."""

METERS_AT_ONCE = 500

METERS_WITHIN = timedelta(days=30)
"""A meter that was silent for this long while its host used another meter is regarded as lost."""

RETIRED = COUNTER_MAX
"""The revision of a lost meter. Any revision that the meter may still report is lower, so its host is told to begin a
new meter.
"""

SYSTEM = local_operator("system:usage")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class State:
    """Hours that begin before `closed_before` are closed; those before `kept_from` are deleted."""

    closed_before: datetime = EPOCH
    kept_from: datetime = EPOCH


def hour_of(moment: datetime) -> datetime:
    """Returns the beginning of the hour."""
    return moment.replace(minute=0, second=0, microsecond=0)


def state(session: Session) -> State:
    """Returns which hours are closed and kept, without a lock."""
    row = session.execute(select(ledger.Books.closed_before, ledger.Books.kept_from)).one_or_none()
    return State() if row is None else State(*row)


def held(session: Session) -> State:
    """Closes hours that are due. Returns which are closed, locked so that no other hour is closed until the commit."""
    due = hour_of(now(session) - CLOSE_AFTER)
    if session.scalar(select(ledger.Books.id)) is None:
        values = {"id": 1, "closed_before": EPOCH, "kept_from": EPOCH}
        insert_unless_there(session, ledger.Books, values, outdated=false())
    step = due - state(session).closed_before
    if step > timedelta(0) and not is_doubtful(session, step, allowed=STEP, after=STEP_AFTER):
        session.execute(select(ledger.Books.id).with_for_update())
        change(session, update(ledger.Books).where(ledger.Books.closed_before < due).values(closed_before=due))
    else:
        session.execute(select(ledger.Books.id).with_for_update(read=True))
    return state(session)


def forget_before(session: Session, actor: Actor, days: int) -> datetime:
    """Sets and returns the time from which the ledger is kept: the last `days` whole days. Adds an entry to the audit.

    Older rows are no longer returned from now on. `forget_rows` deletes them; some are deleted at once.
    """
    kept_from = now(session).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    before = held(session)
    step = kept_from - before.kept_from
    if step <= timedelta(0) or is_doubtful(session, step, allowed=FORGOTTEN, after=FORGOTTEN_AFTER):
        return before.kept_from
    change(session, update(ledger.Books).values(kept_from=kept_from))
    detail = {"kept_from": kept_from.isoformat()}
    audit.write(session, actor, "usage.forgotten", "usage", tenant=None, generation=None, detail=detail)
    forget_rows(session)
    return kept_from


def forget_rows(session: Session) -> bool:
    """Deletes some rows that are older than the ledger is kept. Returns True if there may be more."""
    kept_from = state(session).kept_from
    removed = [
        _remove(session, table, column < begin, by=column, limit=FORGOTTEN_AT_ONCE)
        for table, column, begin in (
            (ledger.LedgerEntry, ledger.LedgerEntry.hour, kept_from),
            (ledger.Unbooked, ledger.Unbooked.hour, max(kept_from, now(session) - UNBOOKED_KEPT)),
            (ledger.Grant, ledger.Grant.ended_at, kept_from),
        )
    ]
    return FORGOTTEN_AT_ONCE in removed


def forget_counts(session: Session) -> bool:
    """Deletes some counts that no host sends again, and counts of lost meters. Returns True if there may be more.

    Counts of a host that reports nothing stay, because it may come back. Only each meter's oldest count is examined,
    because there are as many counts as hosts have sent in `COUNTS_KEPT_HOURS`.
    """
    retired = _retire(session)
    count, meter = ledger.MeterCount, ledger.Meter
    oldest = select(func.min(count.hour)).where(count.meter_id == meter.id).scalar_subquery()
    kept_from = meter.complete_hour - COUNTS_KEPT_HOURS
    everything = case((meter.revision == RETIRED, COUNTER_MAX), else_=kept_from)
    behind = session.execute(select(meter.id, everything).where(oldest < everything).limit(METERS_AT_ONCE)).all()
    left = FORGOTTEN_AT_ONCE
    for meter_id, hour in behind:
        old = (count.meter_id == meter_id) & (count.hour < hour)
        left -= _remove(session, count, old, by=count.hour, limit=left)
        if left == 0:
            return True
    return METERS_AT_ONCE in (retired, len(behind))


def _retire(session: Session) -> int:
    """Marks some meters as lost, because no host adds to their counts any more. Returns the number of these meters."""
    meter, other = ledger.Meter, aliased(ledger.Meter)
    silent = meter.told_at < now(session) - METERS_WITHIN
    followed = exists().where(other.host_id == meter.host_id, other.told_at > meter.told_at)
    lost = select(meter.id).where(silent, meter.revision < RETIRED, followed).limit(METERS_AT_ONCE)
    found = session.scalars(lost.with_for_update(of=meter, skip_locked=True)).all()
    return change(session, update(meter).where(meter.id.in_(found)).values(revision=RETIRED))


def _remove(
    session: Session, table: type[Base], old: ColumnElement[bool], *, by: InstrumentedAttribute[Any], limit: int
) -> int:
    """Deletes the first `limit` rows in the order of column `by`, except rows that another transaction is deleting."""
    key = table_of(table).primary_key.columns
    # A common table expression with locks is evaluated once; PostgreSQL may evaluate a subquery for each row. The
    # expression is nested, not before DELETE, because Python's sqlite3 would then not report the number of rows.
    chosen = select(*key).where(old).order_by(by).limit(limit).with_for_update(skip_locked=True)
    some = chosen.cte("some", nesting=True)
    return change(session, delete(table).where(tuple_(*key).in_(select(*some.columns))))


def tend(session: Session, *, kept_days: int) -> bool:
    """Closes hours that are due and deletes some expired rows; `kept_days` 0: none expire. For housekeeping."""
    held(session)
    if kept_days:
        forget_before(session, SYSTEM, kept_days)
    return any([forget_rows(session), forget_counts(session)])
