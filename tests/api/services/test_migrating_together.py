# SPDX-License-Identifier: Apache-2.0
"""Several ``vgpumgr-api migrate`` at the same time: one migrates, and the others wait for as long as it takes."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Pool, select, text
from vgpumgr_api.db import database as databases
from vgpumgr_api.db import schema, served
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.records import AuditEntry
from vgpumgr_api.main import main

from tests.api.services.hearing import hearing
from tests.api.services.tables import FIRST

AT_ONCE = 5
WAIT_S = 0.3
"""The limit of one statement for a lock; the migration takes several times as long."""


@pytest.fixture
def settings(old_url: str, tmp_path: Path) -> Path:
    path = tmp_path / "api.toml"
    path.write_text(f'database = "{old_url}"\n')
    return path


@pytest.fixture
def own(old_url: str) -> Iterator[Database]:
    opened = Database(old_url)
    yield opened
    opened.close()


def migrations(database: Database) -> list[tuple[str, str]]:
    """Returns the migrations from the audit, as pairs of steps."""
    found = select(AuditEntry).where(AuditEntry.action == "database.migrated").order_by(AuditEntry.id)
    return database.run(
        lambda session: [(each.detail["before"], each.object) for each in session.scalars(found)], read_only=True
    )


@contextmanager
def slow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Iterator[list[str]]:
    """Makes the migration slow, and applies `WAIT_S` only to those that wait for it; yields who migrated."""
    who, run = [], schema.upgrade_to

    def upgrade_to(connection: Connection, revision: str) -> None:
        if schema.revision_at(connection) == FIRST:
            if connection.dialect.name == "postgresql":
                for limit in ("lock_timeout", "idle_in_transaction_session_timeout"):
                    connection.execute(text(f"SET LOCAL {limit} = 0"))
            who.append(threading.current_thread().name)
            time.sleep(seconds)
        run(connection, revision)

    with monkeypatch.context() as patched:
        patched.setattr(databases, "WAIT_S", WAIT_S)
        patched.setattr(schema, "upgrade_to", upgrade_to)
        yield who


def test_one_migrates_and_the_others_wait_however_long_it_takes(
    settings: Path, own: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(AT_ONCE)

    def migrate(_: int) -> int:
        together.wait()
        return main(["migrate", "--config", str(settings)])

    with slow(monkeypatch, 5 * WAIT_S) as who, ThreadPoolExecutor(AT_ONCE) as pool:
        assert list(pool.map(migrate, range(AT_ONCE))) == [0] * AT_ONCE
    assert len(who) == 1
    schema.require_current(own)
    assert migrations(own) == [(FIRST, schema.newest())]


def test_who_is_thrown_out_by_the_first_comes_again(
    settings: Path, own: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the first process, one that is connected but not yet in the queue looks like a process of the old release."""
    if own.is_sqlite:  # SQLite terminates no connections
        return
    reached, done, lock = threading.Event(), threading.Event(), schema.lock

    def late(connection: Connection) -> None:
        if threading.current_thread().name.startswith("late"):
            connection.execute(text("SELECT 1"))
            reached.set()
            assert done.wait(30)
        lock(connection)

    monkeypatch.setattr(schema, "lock", late)
    with ThreadPoolExecutor(1, thread_name_prefix="late") as pool:
        last = pool.submit(main, ["migrate", "--config", str(settings)])
        assert reached.wait(30)
        assert main(["migrate", "--config", str(settings)]) == 0
        done.set()
        assert last.result(30) == 0
    assert migrations(own) == [(FIRST, schema.newest())]


def test_who_is_thrown_out_while_it_comes_in_comes_again(
    settings: Path, own: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own.is_sqlite:
        return
    reached, done = threading.Event(), threading.Event()

    def greet(connection: psycopg.Connection[Any], _record: object) -> None:
        if threading.current_thread().name.startswith("late") and not done.is_set():
            connection.execute("SELECT 1")
            connection.rollback()
            reached.set()
            assert done.wait(30)
            connection.execute("SELECT 1")

    with hearing(Pool, "connect", greet), ThreadPoolExecutor(1, thread_name_prefix="late") as pool:
        last = pool.submit(main, ["migrate", "--config", str(settings)])
        assert reached.wait(30)
        try:
            assert main(["migrate", "--config", str(settings)]) == 0
        finally:
            done.set()
        assert last.result(30) == 0
    assert migrations(own) == [(FIRST, schema.newest())]


def test_who_leaves_by_itself_is_not_in_the_way(settings: Path, own: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    if own.is_sqlite:
        return
    twice = served.END_OTHERS.replace("pg_stat_activity a", "pg_stat_activity a CROSS JOIN generate_series(1, 2)")
    monkeypatch.setattr(served, "END_OTHERS", twice)  # the second time the process is gone
    with own.engine.connect() as other:
        other.execute(text("SELECT 1"))
        assert main(["migrate", "--config", str(settings)]) == 0
        other.invalidate()
    assert migrations(own) == [(FIRST, schema.newest())]


def test_nothing_to_migrate_leaves_no_entry(settings: Path, own: Database) -> None:
    for _ in range(2):
        assert main(["migrate", "--config", str(settings)]) == 0
    assert len(migrations(own)) == 1
