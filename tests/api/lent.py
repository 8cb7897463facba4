# SPDX-License-Identifier: Apache-2.0
"""A database that many tests use one after the other; each test finds it like `vgpumgr-api init` leaves one.

Making a database for each test costs more than most tests: PostgreSQL copies hundreds of files, and SQLAlchemy compiles
each statement again for each engine. Here the engine stays, with its connections and compiled statements, and only the
content is restored. A database that cannot be restored is made again: its tables were altered or analyzed, or a
connection still uses it.
"""

import contextlib
import copy
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import psycopg
from sqlalchemy import event
from vgpumgr_api.db.clock import machine_clock
from vgpumgr_api.db.database import Database

from tests.api.cluster import Cluster


class Lender(ABC):
    """Lends one database to one test at a time."""

    def __init__(self) -> None:
        self._database: Database | None = None

    @contextlib.contextmanager
    def lend(self, clock: Callable[[], datetime]) -> Iterator[Database]:
        """Lends a database to one test; listeners on its statements are removed with the loan."""
        if self._database is None:
            self._database = self._make()
        lent = copy.copy(self._database)
        lent.clock = clock
        lent.engine = self._database.engine.execution_options()
        lent._writer = threading.Lock()
        yield lent
        if self._is_in_use(lent) or not self._put_back():
            self.close()

    def close(self) -> None:
        """Removes the database; the next test gets a new one."""
        if self._database is not None:
            self._database.close()
            self._database = None
            self._remove()

    def _is_in_use(self, lent: Database) -> bool:
        return lent.engine.pool.checkedout() > 0  # type: ignore[attr-defined]

    @abstractmethod
    def _make(self) -> Database: ...

    @abstractmethod
    def _put_back(self) -> bool:
        """Restores the content of the template; returns whether that worked."""

    @abstractmethod
    def _remove(self) -> None: ...


class SqliteLender(Lender):
    """Copies the pages of the template over those of the file, including table definitions."""

    def __init__(self, template: Path, directory: Path) -> None:
        super().__init__()
        self._template = template
        self._directory = directory
        self._number = 0

    def _make(self) -> Database:
        self._number += 1
        self._path.write_bytes(self._template.read_bytes())
        made = Database(f"sqlite:///{self._path}", clock=machine_clock)
        # These tests do not simulate power failures.
        event.listen(made.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
        return made

    def _put_back(self) -> bool:
        assert self._database is not None
        fresh, used = sqlite3.connect(self._template), sqlite3.connect(self._path, timeout=1)
        try:
            used.execute("PRAGMA synchronous = OFF")
            fresh.backup(used)
        except sqlite3.OperationalError:  # another connection reads or writes
            return False
        finally:
            fresh.close()
            used.close()
        return True

    def _remove(self) -> None:
        for path in self._directory.glob(f"{self._path.name}*"):
            path.unlink()

    @property
    def _path(self) -> Path:
        return self._directory / f"lent-{self._number}.db"


NAME = "lent"
LARGE_BYTES = 8 << 20

WATCH = """
    CREATE SCHEMA lending;
    CREATE TABLE lending.altered (what text);
    CREATE FUNCTION lending.note() RETURNS event_trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO lending.altered VALUES (tg_tag); END $$;
"""
"""Each change of a definition adds a row to `altered`."""

PUT_BACK = """
    CREATE FUNCTION lending.put_back() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM lending.altered) OR EXISTS (
            SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
            AND backend_type = 'client backend' AND state IS DISTINCT FROM 'idle'
        ) OR EXISTS (
            SELECT FROM pg_statistic s JOIN pg_class c ON c.oid = s.starelid
            WHERE c.relnamespace = 'public'::regnamespace
        ) THEN
            RETURN false;
        END IF;
        SET LOCAL lock_timeout = '2s';
        SET LOCAL session_replication_role = replica;  -- without triggers, which keep audit and ledger from changes
        IF {size} > {large} THEN
            TRUNCATE {tables};
        ELSE
            {delete}
        END IF;
        {insert}
        {sequences}
        RETURN true;
    END $$;
    CREATE EVENT TRIGGER lending_altered ON ddl_command_end EXECUTE FUNCTION lending.note();
    CREATE EVENT TRIGGER lending_dropped ON sql_drop EXECUTE FUNCTION lending.note();
"""


class PostgresqlLender(Lender):
    """A function in the database deletes the rows of all tables and inserts those of the template.

    Dead rows stay in the pages for a while, so a test that counts pages needs another database.
    """

    def __init__(self, cluster: Cluster, template: str) -> None:
        super().__init__()
        self._cluster = cluster
        self._template = template
        self._own: psycopg.Connection[tuple[bool]] | None = None

    def _make(self) -> Database:
        url = self._cluster.create(NAME, template=self._template)
        self._own = psycopg.connect(url, autocommit=True)
        self._own.execute(WATCH)
        tables = self._names("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        filled = [name for name in tables if self._names(f'SELECT 1 FROM "{name}" LIMIT 1')]
        for name in filled:
            self._own.execute(f'CREATE TABLE lending."{name}" AS TABLE public."{name}"'.encode())
        sequences = self._own.execute(
            "SELECT sequencename, coalesce(last_value, start_value), last_value IS NOT NULL FROM pg_sequences"
        ).fetchall()
        made = PUT_BACK.format(
            size=" + ".join(f"pg_total_relation_size('\"{name}\"')" for name in tables),
            large=LARGE_BYTES,
            tables=", ".join(f'"{name}"' for name in tables),
            delete=" ".join(f'DELETE FROM "{name}";' for name in tables),
            insert=" ".join(f'INSERT INTO "{name}" SELECT * FROM lending."{name}";' for name in filled),
            sequences=" ".join(f"PERFORM setval('\"{name}\"', {at}, {called});" for name, at, called in sequences),
        )
        self._own.execute(made.encode())
        return Database(url, clock=machine_clock)

    def _put_back(self) -> bool:
        assert self._own is not None
        try:
            row = self._own.execute("SELECT lending.put_back()").fetchone()
        except psycopg.Error:  # another connection holds a lock, or ours was terminated
            return False
        return row is not None and row[0]

    def _remove(self) -> None:
        assert self._own is not None
        self._own.close()
        self._cluster.drop(NAME)

    def _names(self, query: str) -> list[str]:
        assert self._own is not None
        return [str(name) for (name,) in self._own.execute(query.encode()).fetchall()]
