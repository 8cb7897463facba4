# SPDX-License-Identifier: Apache-2.0
"""What of the ledger is closed, and what is still kept.

An hour is closed `CLOSE_AFTER` after its end: from then on what becomes known of it is a correction, in a row of its
own. Who books holds the row of the books shared until the commit, so that nothing comes into an hour once it is closed.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import delete, false, select, update
from sqlalchemy.orm import Session

from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import change, insert_unless_there
from vgpumgr_api.services import audit
from vgpumgr_api.services.actors import Actor, local_operator
from vgpumgr_api.services.liveness import is_doubtful

HOUR = timedelta(hours=1)
CLOSE_AFTER = timedelta(minutes=15)
STEP, STEP_AFTER = timedelta(hours=2), timedelta(hours=1)
"""More is closed at once only when the API has been alive so long: a clock may have leapt, and nothing opens again."""

FORGOTTEN, FORGOTTEN_AFTER = timedelta(days=3), timedelta(days=1)
"""The same for what is forgotten."""

COUNTS_KEPT_HOURS = 30 * 24
"""How long it is known what a meter counted in an hour that the ledger has; hosts send those of ten days again."""

SYSTEM = local_operator("system:usage")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class State:
    """Hours that begin before `closed_before` are closed, those before `kept_from` are gone."""

    closed_before: datetime = EPOCH
    kept_from: datetime = EPOCH


def hour_of(moment: datetime) -> datetime:
    """Returns when its hour began."""
    return moment.replace(minute=0, second=0, microsecond=0)


def state(session: Session) -> State:
    """Returns what is closed and kept, without a lock."""
    row = session.execute(select(ledger.Books.closed_before, ledger.Books.kept_from)).one_or_none()
    return State() if row is None else State(*row)


def held(session: Session) -> State:
    """Closes what is due and returns what is closed until the commit: nobody closes more meanwhile."""
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
    """Removes what is older than so many whole days; returns from when on the ledger is kept. In the audit."""
    kept_from = now(session).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)
    before = held(session)
    step = kept_from - before.kept_from
    if step <= timedelta(0) or is_doubtful(session, step, allowed=FORGOTTEN, after=FORGOTTEN_AFTER):
        return before.kept_from
    change(session, update(ledger.Books).values(kept_from=kept_from))
    entries = change(session, delete(ledger.LedgerEntry).where(ledger.LedgerEntry.hour < kept_from))
    change(session, delete(ledger.Unbooked).where(ledger.Unbooked.hour < kept_from))
    grants = change(session, delete(ledger.Grant).where(ledger.Grant.ended_at < kept_from))
    audit.write(
        session,
        actor,
        "usage.forgotten",
        "usage",
        tenant=None,
        generation=None,
        detail={"kept_from": kept_from.isoformat(), "entries": entries, "grants": grants},
    )
    return kept_from


def forget_counts(session: Session) -> None:
    """Removes counts of hours that no host sends again. Those of a host that tells nothing stay: it may come back."""
    count, meter = ledger.MeterCount, ledger.Meter
    oldest = select(meter.complete_hour - COUNTS_KEPT_HOURS).where(meter.id == count.meter_id).scalar_subquery()
    change(session, delete(count).where(count.hour < oldest))


def tend(session: Session, *, kept_days: int) -> bool:
    """Closes what is due and removes what is no longer kept; `kept_days` 0: all is. For housekeeping."""
    held(session)
    if kept_days:
        forget_before(session, SYSTEM, kept_days)
    forget_counts(session)
    return False
