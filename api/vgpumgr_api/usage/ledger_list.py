# SPDX-License-Identifier: Apache-2.0
"""The ledger as a list: lives of claims and hosts' counts, summed by time and by party.

Rows are read in order and summed as they arrive, so no list takes more memory than a page. Lives that are equal within
a span of time are read as one row with their number, so that the cost of a page does not grow with claims times hours.
Sums are Python integers, because bytes times microseconds may not fit a column.
"""

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CTE,
    ColumnElement,
    Integer,
    Select,
    String,
    case,
    cast,
    column,
    func,
    literal,
    null,
    or_,
    select,
    tuple_,
    union_all,
    values,
)
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.usage import By, Granularity, LedgerRow, LedgerRowPage
from vgpumgr_api.actors import Actor
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import now
from vgpumgr_api.db.types import Instant
from vgpumgr_api.errors import Refusal
from vgpumgr_api.resources.paging import PageRequest, checked_size
from vgpumgr_api.usage import books
from vgpumgr_api.usage.ledger_scope import LedgerFilter, reachable, require_kept, require_whole_hours
from vgpumgr_api.usage.metering import COUNTED

_KEYS = {
    By.ACCOUNT: ("account", "account_id"),
    By.TENANT: ("account", "account_id", "tenant", "tenant_id"),
    By.GPU: ("account", "account_id", "tenant", "tenant_id", "host", "gpu"),
}
_GRANTED = ("share_permille", "mem_bytes", "started_at", "deleted_at", "ended_at", "lives")
_US = timedelta(microseconds=1)
_DAY = timedelta(days=1)

SPANS_AT_ONCE = 256
"""The maximum number of spans in one statement. A page reads one span first, because that may fill the page, and
doubles the number each time.
"""

READ_AT_ONCE = 20_000
"""The maximum number of lives and counts that a page sums: the page ends after the row that reaches this number."""

Key = tuple[str, ...]
Span = tuple[datetime, datetime]


def list_ledger(session: Session, actor: Actor, page: PageRequest, wanted: LedgerFilter) -> LedgerRowPage:
    """Returns rows by time, party and correction, the earliest first. Rows without any usage are left out."""
    require_whole_hours(wanted)
    require_kept(session, wanted.since)
    size = checked_size(page.size)
    start, after = _parsed(page.token, wanted) if page.token else (wanted.since, None)
    state = books.state(session)
    rows: list[tuple[Key, LedgerRow]] = []
    read = 0
    spans = _spans(start, wanted)
    at_once = 1
    while together := list(islice(spans, at_once)):
        for key, row, summands in _rows(session, actor, wanted, together, after, state):
            if len(rows) == size or read >= READ_AT_ONCE:
                return _page(rows, state, _token(rows[-1], wanted))
            rows.append((key, row))
            read += summands
        after = None
        at_once = min(2 * at_once, SPANS_AT_ONCE)
    return _page(rows, state, "")


def _page(rows: Sequence[tuple[Key, LedgerRow]], state: books.State, token: str) -> LedgerRowPage:
    return LedgerRowPage(items=[row for _, row in rows], next_page_token=token, closed_before=state.closed_before)


def _spans(start: datetime, wanted: LedgerFilter) -> Iterator[Span]:
    """Yields the spans of the request: hours, days (the first and last may be partial), or the whole range."""
    while start < wanted.until:
        until = wanted.until
        if wanted.granularity is Granularity.HOUR:
            until = start + books.HOUR
        elif wanted.granularity is Granularity.DAY:
            until = min(start.astimezone(UTC).replace(hour=0) + _DAY, wanted.until)
        yield start, until
        start = until


@dataclass
class _Sums:
    """The sums for one row, and the number of summands."""

    summands: int = 0
    slice_us: int = 0
    releasing_us: int = 0
    granted_ns: int = 0
    mem_byte_us: int = 0
    counted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))

    def add(self, row: Any, since: datetime, until: datetime) -> None:
        self.summands += 1
        if row.started_at is None:
            for name in COUNTED:
                self.counted[name] += getattr(row, name)
            return
        lives = int(row.lives)
        claimed_us = lives * _overlap_us(row.started_at, row.deleted_at, since, until)
        self.slice_us += claimed_us
        self.granted_ns += claimed_us * row.share_permille  # a permille of a microsecond is a nanosecond
        self.mem_byte_us += claimed_us * row.mem_bytes
        if row.deleted_at is not None:
            self.releasing_us += lives * _overlap_us(row.deleted_at, row.ended_at, since, until)

    @property
    def anything(self) -> bool:
        return bool(self.slice_us or self.releasing_us or any(self.counted.values()))


def _overlap_us(begun: datetime, ended: datetime | None, since: datetime, until: datetime) -> int:
    last = until if ended is None else min(ended, until)
    return max(0, (last - max(begun, since)) // _US)


def _rows(
    session: Session,
    actor: Actor,
    wanted: LedgerFilter,
    spans: Sequence[Span],
    after: Key | None,
    state: books.State,
) -> Iterator[tuple[Key, LedgerRow, int]]:
    """Yields the rows of these spans, each with its number of summands.

    `after`: the key of a row in the first span, of which only later rows are yielded.
    """
    names = ("span", *_KEYS[wanted.by], "correction")
    found = session.execute(_statement(session, actor, wanted, spans, after), execution_options={"yield_per": 1000})
    try:
        for (span, *key), group in groupby(found, key=lambda row: [getattr(row, name) for name in names]):
            since, until = spans[span]
            known_until = min(until, now(session), wanted.as_of or until)
            sums = _Sums()
            for row in group:
                sums.add(row, since, known_until)
            if sums.anything:
                party = dict(zip(_KEYS[wanted.by], key, strict=False))
                closed = state.closed_before >= until
                yield tuple(key), _row(party, key[-1], sums, since, until, closed), sums.summands
    finally:
        found.close()


def _row(
    party: dict[str, str], correction: str, sums: _Sums, since: datetime, until: datetime, closed: bool
) -> LedgerRow:
    return LedgerRow(
        since=since,
        until=until,
        account=party["account"],
        account_id=UUID(party["account_id"]),
        tenant=party.get("tenant", ""),
        tenant_id=UUID(party["tenant_id"]) if "tenant_id" in party else None,
        host=party.get("host", ""),
        gpu=party.get("gpu", ""),
        correction=correction == "1",
        closed=closed,
        slice_us=sums.slice_us,
        releasing_us=sums.releasing_us,
        granted_ns=sums.granted_ns,
        mem_byte_us=sums.mem_byte_us,
        **sums.counted,
    )


def _statement(
    session: Session, actor: Actor, wanted: LedgerFilter, spans: Sequence[Span], after: Key | None
) -> Select[*tuple[Any, ...]]:
    """Selects both kinds of rows in one order: by span, then by party, and corrections last."""
    entry = ledger.LedgerEntry
    since, until = spans[0][0], spans[-1][1]
    times = _table(spans)
    # Lives are first grouped over the whole range. Equal lives that last throughout the range are then joined with each
    # span as one row.
    grant = ledger.Grant
    seen = _clipped(grant, _party(grant, wanted.by), literal(1), literal(since, Instant()), literal(until, Instant()))
    lives = _alike(seen.where(*reachable(session, actor, wanted, grant))).cte("lives")
    party = [lives.c[name] for name in _KEYS[wanted.by]]
    clipped = _clipped(lives.c, party, lives.c.lives, times.c.since, times.c.until, times.c.span)
    # Spans in the future are left out: nothing is known of them, and open lives would be read for each.
    known = min(now(session), wanted.as_of or now(session))
    alike = _alike(clipped.where(times.c.since < literal(known, Instant()))).subquery()
    granted = select(
        alike.c.span,
        *(alike.c[name] for name in _KEYS[wanted.by]),
        literal("0").label("correction"),
        *(alike.c[name] for name in _GRANTED),
        *(null().label(name) for name in COUNTED),
    )
    counted = select(
        times.c.span,
        *_party(entry, wanted.by),
        _correction(),
        *(null().label(name) for name in _GRANTED),
        *(getattr(entry, name) for name in COUNTED),
    ).where(
        *reachable(session, actor, wanted, entry),
        entry.hour >= since,
        entry.hour < until,
        entry.hour >= times.c.since,
        entry.hour < times.c.until,
    )
    if wanted.as_of is not None:
        counted = counted.where(entry.booked < wanted.as_of)
    both = union_all(granted, counted).subquery()
    keys = [both.c[name] for name in (*_KEYS[wanted.by], "correction")]
    statement = select(both).order_by(both.c.span, *keys)
    if after is not None:
        further = tuple_(*keys) > tuple_(*(literal(value) for value in after))
        statement = statement.where(or_(both.c.span > 0, further))
    return statement


def _clipped(
    lives: Any, party: Sequence[Any], number: ColumnElement[int], since: Any, until: Any, *span: ColumnElement[int]
) -> Select[*tuple[Any, ...]]:
    """Selects lives that overlap a time range, clipped to it: times after the end of the range become NULL."""
    started, deleted, ended = lives.started_at, lives.deleted_at, lives.ended_at
    return select(
        *span,
        *party,
        lives.share_permille,
        lives.mem_bytes,
        case((started > since, started), else_=since).label("started_at"),
        case((deleted >= until, null()), (deleted < since, since), else_=deleted).label("deleted_at"),
        case((ended < until, ended), else_=null()).label("ended_at"),
        number.label("lives"),
    ).where(started < until, or_(ended.is_(None), ended > since))


def _alike(clipped: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """Groups equal rows into one, with their number."""
    *same, number = clipped.subquery().c
    return select(*same, func.sum(number).label("lives")).group_by(*same)


def _table(spans: Sequence[Span]) -> CTE:
    columns = (column("span", Integer), column("since", Instant()), column("until", Instant()))
    return values(*columns, name="times").data([(number, *span) for number, span in enumerate(spans)]).cte("times")


def _party(row: Any, by: By) -> tuple[Any, ...]:
    ids = {name: cast(getattr(row, name), String).label(name) for name in ("account_id", "tenant_id")}
    return tuple(ids[name] if name in ids else getattr(row, name) for name in _KEYS[by])


def _correction() -> Any:
    return case((ledger.LedgerEntry.booked > ledger.LedgerEntry.hour, "1"), else_="0").label("correction")


def _token(last: tuple[Key, LedgerRow], wanted: LedgerFilter) -> str:
    key, row = last
    text = json.dumps([*_asked(wanted), row.since.isoformat(), *key])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _asked(wanted: LedgerFilter) -> list[str]:
    """Returns the request that a token is valid for, apart from its position."""
    return [
        "ledger",
        wanted.since.isoformat(),
        wanted.until.isoformat(),
        wanted.granularity.value,
        wanted.by.value,
        wanted.tenant or "",
        wanted.account or "",
        "" if wanted.as_of is None else wanted.as_of.isoformat(),
    ]


def _parsed(token: str, wanted: LedgerFilter) -> tuple[datetime, Key]:
    detail = "page_token is not one of this list; begin without one"
    refusal = Refusal(
        Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field="query.page_token"),)
    )
    asked = _asked(wanted)
    try:
        said = json.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
        if not isinstance(said, list) or not all(isinstance(each, str) and "\0" not in each for each in said):
            raise refusal
        start, key = datetime.fromisoformat(said[len(asked)]), tuple(said[len(asked) + 1 :])
        "".join(key).encode()  # raises ValueError for a lone surrogate
        starts = (since for since, _ in _spans(wanted.since, wanted))
        if said[: len(asked)] != asked or len(key) != len(_KEYS[wanted.by]) + 1 or start not in starts:
            raise refusal
    except (binascii.Error, ValueError, TypeError, IndexError, RecursionError):
        raise refusal from None
    return start, key
