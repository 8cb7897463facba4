# SPDX-License-Identifier: Apache-2.0
"""Expired parts of the ledger are deleted in small batches, because a fleet counts millions of rows a day."""

from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy
from sqlalchemy import func, select, text
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.records import AuditEntry
from vgpumgr_api.usage import books

from tests.api.conftest import Clock

AT_ONCE = 4
KEPT_DAYS = 30


def count(database: Database, table: Any) -> int:
    return database.run(lambda session: session.scalar(select(func.count()).select_from(table)) or 0, read_only=True)


def entry(database: Database, days: int, number: int) -> ledger.LedgerEntry:
    """Returns an entry of this many days ago."""
    hour = books.hour_of(database.clock()) - timedelta(days=days)
    owner = {"tenant_id": uuid4(), "tenant": "acme", "account_id": uuid4(), "account": "acme"}
    sums = {"run_ns": number, "due_ns": 0, "assured_ns": 0, "throttled_ns": 0, "reserved_ns": 0}
    return ledger.LedgerEntry(hour=hour, booked=hour, host="one", gpu="0000:03:00.0", **owner, **sums)


def test_what_is_old_goes_in_steps_and_is_answered_no_more_from_the_first_on(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "FORGOTTEN_AT_ONCE", AT_ONCE)
    old, new = 2 * AT_ONCE + 1, 3

    def add(session: Any) -> None:
        session.add_all([entry(database, 40, number) for number in range(old)])
        session.add_all([entry(database, 1, number) for number in range(new)])

    database.run(add)
    left, more = [count(database, ledger.LedgerEntry)], True
    while more:
        more = database.run(lambda session: books.tend(session, kept_days=KEPT_DAYS))
        kept_from = database.run(books.state).kept_from
        assert kept_from == clock.now.replace(hour=0) - timedelta(days=KEPT_DAYS)
        left.append(count(database, ledger.LedgerEntry))
    steps = [before - after for before, after in pairwise(left)]
    assert left[-1] == new
    # The first transaction also sets the new limit, so it may delete two batches.
    assert steps[0] <= 2 * AT_ONCE
    assert all(step <= AT_ONCE for step in steps[1:])
    said = database.run(lambda session: session.scalars(select(AuditEntry.action)).all())
    assert said.count("usage.forgotten") == 1


def counted(database: Database, *, meters: int, hours: int) -> None:
    """Makes counts of meters for the last hours, and for each meter one count in an hour that is too old to be reported
    again.
    """

    def add(session: Any) -> None:
        present = int(database.clock().timestamp()) // 3600
        sums = dict.fromkeys(("run_ns", "due_ns", "assured_ns", "throttled_ns", "reserved_ns"), 1)
        for _ in range(meters):
            meter = ledger.Meter(
                id=uuid4(), host_id=uuid4(), revision=1, told_at=database.clock(), complete_hour=present
            )
            session.add(meter)
            for ago in (*range(hours), books.COUNTS_KEPT_HOURS + 1):
                of = {"meter_id": meter.id, "hour": present - ago, "gpu": "0000:03:00.0", "tenant": "acme"}
                session.add(ledger.MeterCount(**of, **sums))

    database.run(add)


def test_counts_that_no_host_sends_again_go_in_steps(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "FORGOTTEN_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(books, "METERS_AT_ONCE", 3)
    counted(database, meters=10, hours=2)
    steps = []
    more = True
    while more:
        before = count(database, ledger.MeterCount)
        more = database.run(books.forget_counts)
        steps.append(before - count(database, ledger.MeterCount))
    assert count(database, ledger.MeterCount) == 20
    assert sum(steps) == 10
    assert max(steps) <= AT_ONCE


def test_no_statement_reads_all_counts_to_find_the_old_ones(database: Database) -> None:
    """10,000 hosts may have hundreds of millions of counts, and each replica looks every five minutes."""
    counted(database, meters=20, hours=200)
    asked: list[tuple[str, Any]] = []

    def note(*event: Any) -> None:
        asked.append((event[2], event[3]))

    with database.engine.connect() as connection:
        connection.execute(text("ANALYZE"))
        connection.commit()
    sqlalchemy.event.listen(database.engine, "before_cursor_execute", note)
    try:
        database.run(books.forget_counts)
    finally:
        sqlalchemy.event.remove(database.engine, "before_cursor_execute", note)
    plans = []
    with database.engine.connect() as connection:
        for statement, parameters in [each for each in asked if "meter_counts" in each[0]]:
            how = "EXPLAIN QUERY PLAN " if database.is_sqlite else "EXPLAIN "
            plans += [str(row) for row in connection.exec_driver_sql(how + statement, parameters)]
    assert plans
    assert not [line for line in plans if "Seq Scan on meter_counts" in line or "SCAN meter_counts" in line], plans
