# SPDX-License-Identifier: Apache-2.0
"""Connections and transactions, for PostgreSQL and SQLite alike.

A transaction is a function of a session. The whole function is repeated when the database aborts the transaction in
favour of another one (a deadlock, a lock timeout), so the function must have no effects outside the database. It is
repeated once when its connection is lost before the function ends, because nothing was stored then. This happens to the
first transaction after a restart of the server, whose pooled connection is stale. If the connection is lost later, the
transaction is not repeated, because it is then unknown whether it was committed.
"""

import contextlib
import math
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from vgpumgr.wire.problem import Code
from vgpumgr_api.db import file, pooler, served
from vgpumgr_api.db.clock import ServerClock, machine_clock
from vgpumgr_api.db.file import DatabaseFile
from vgpumgr_api.db.trouble import Condition, Trouble, first_line, trouble_of, unusable
from vgpumgr_api.errors import Refusal

T = TypeVar("T")


class _LostError(Exception):
    """The connection broke before anything was committed."""


class TryAgain(Exception):  # noqa: N818  # says what to do, and reaches nobody
    """Raised by a service that found a change that its snapshot could not show. The next attempt sees the change."""


ATTEMPTS = 8
CONFLICTS = 3
"""After so many conflicts with other rows, the error is a defect: a new attempt would have seen those rows."""

WAIT_S = 10.0
"""How long one attempt waits for a connection, or for a lock if no client waits for the result."""

LOCK_S = 2.0
"""How long one attempt of a request waits for a lock. This is short, because the request occupies a connection
meanwhile.
"""

STATEMENT_S = 30.0
"""The timeout of one statement of a request."""

STEPS = 100_000
"""SQLite checks the time after this many instructions of its virtual machine, which take a few milliseconds."""

RESTED_S = 1.0
"""A connection that was used within this time is not checked."""

READ_ONLY, PATIENT = "vgpumgr_read_only", "vgpumgr_patient"
CONNECTIONS = 32

UNTIL_S = "until_s"
"""The key under which a SQLite connection stores the deadline of its statement."""

# serialization_failure, deadlock_detected, lock_not_available
_GIVEN_UP = {"40001", "40P01", "55P03"}
_CANCELED = "57014"

# admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout
_ENDED = {"57P01", "57P02", "57P03", "57P05"}
_PATIENT = text("SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', :lock_timeout, true)")
_HAS_STORED = text("SELECT count(pg_current_xact_id_if_assigned()) FROM (SELECT) AS one")

# foreign_key_violation, unique_violation, exclusion_violation
_OTHER_ROWS = {"23503", "23505", "23P01"}
_OTHER_ROWS_SQLITE = {
    sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY,
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
}


class Database:
    """One database and its pool of connections, shared by threads.

    `clock` returns the time; by default it is the PostgreSQL server's clock, or this machine's for SQLite. One
    transaction sees one time, `now(session)`. `step`: the only migration step that this process serves; at any other
    step Refusal(DATABASE_OUTDATED) is raised. `serving`: clients wait for the result, so statements end after
    `STATEMENT_S`, and on PostgreSQL waits for locks end after `LOCK_S`. SQLite has one lock for all writers: a request
    waits up to `WAIT_S` for other threads of this process, and up to `WAIT_S` for other processes.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], datetime] | None = None,
        step: str | None = None,
        serving: bool = False,
    ) -> None:
        parsed = make_url(url)
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self.server_clock = ServerClock() if clock is None and not self.is_sqlite else None
        self.clock = self.server_clock or clock or machine_clock
        self.condition = Condition()
        self._file = file.of_url(parsed) if self.is_sqlite else None
        self.engine = (
            _sqlite_engine(parsed, serving=serving) if self.is_sqlite else _postgresql_engine(parsed, serving=serving)
        )
        if self._file is not None:
            _watch_file(self.engine, self._file)
        self._serving = serving
        if step is not None:
            served.only_at(self.engine, step)
        # SQLite has one writer at a time, for which other connections poll. Writers of this process queue here instead.
        self._writer = threading.Lock()

    def run(
        self, fn: Callable[[Session], T], *, read_only: bool = False, snapshot: bool = True, patient: bool = False
    ) -> T:
        """Runs `fn` in one transaction and commits it. An exception from `fn` rolls the transaction back.

        A `read_only` transaction sees one snapshot throughout. Without `snapshot`, each of its statements may see
        another snapshot, which saves PostgreSQL the begin and end of a transaction. A `patient` transaction may take
        long, because no client waits for it. Raises Refusal: DATABASE_BUSY if the database cannot be reached or aborted
        the transaction too often; DATABASE_UNUSABLE if the database is reachable but cannot be used, for example
        because its disk is full. `condition` contains the cause.
        """
        deadline = time.monotonic() + WAIT_S
        lost, conflicts = False, 0
        for attempt in range(1, ATTEMPTS + 1):
            try:
                options = self._options(read_only=read_only, snapshot=snapshot, patient=patient)
                self._require_file()
                done, stored = self._once(fn, options, read_only=read_only, patient=patient)
                self.condition.worked(stored=stored)
                return done
            except IntegrityError as error:
                # A concurrent transaction committed after our check; the next attempt sees its change and reports it.
                conflicts += 1
                if conflicts == CONFLICTS or not _of_others(error):
                    raise
                if self._was_last(attempt, deadline):
                    raise _busy("others changed what this request needs") from error
            except _LostError as error:
                if lost:
                    raise _busy("the database cannot be reached") from error
                lost = True
                continue
            except TryAgain as error:
                if self._was_last(attempt, deadline):
                    raise _busy("others keep changing what this request needs") from error
            except DataError as error:
                raise Refusal(Code.FIELD_INVALID, "a value does not fit the database; shorten it") from error
            except PoolTimeoutError as error:
                raise _busy("all connections to the database are in use") from error
            except DBAPIError as error:
                if _canceled(error):
                    raise _busy(f"the database took longer than {STATEMENT_S:g} s; ask for less") from error
                if not given_up(error):
                    self._note(error, read_only=read_only)
                    raise
                if self._was_last(attempt, deadline):
                    raise _busy("others held what this request needs") from error
            time.sleep(random.uniform(0, 0.01 * 2**attempt))  # spreads the attempts of concurrent transactions
        raise AssertionError("unreachable")

    def require_usable(self) -> None:
        """Raises Refusal(DATABASE_UNUSABLE) if the last transaction that wrote found the database unusable."""
        trouble = self.condition.trouble
        if trouble is not None and trouble is not Trouble.UNREACHABLE:
            raise unusable(trouble)

    def _note(self, error: DBAPIError, *, read_only: bool) -> None:
        """Raises Refusal for an error that the database caused, not the statement."""
        trouble = trouble_of(error)
        if trouble is not None and not (read_only and trouble is Trouble.READ_ONLY):
            self.condition.note(trouble, self._with_place(first_line(error)))
            raise unusable(trouble) from error
        if _unreachable(error):
            self.condition.note(Trouble.UNREACHABLE, self._with_place(first_line(error)))
            raise _busy("the database cannot be reached") from error

    def _with_place(self, cause: str) -> str:
        return cause if self._file is None else f"{self._file.path}: {cause}"

    def _require_file(self) -> None:
        fault = None if self._file is None else self._file.fault()
        if fault is not None:
            self.condition.note(Trouble.FILE_GONE, fault)
            raise unusable(Trouble.FILE_GONE)

    @staticmethod
    def _was_last(attempt: int, deadline: float) -> bool:
        """Whether to give up. A client waits for `WAIT_S` plus the last attempt, not for all attempts."""
        return attempt == ATTEMPTS or time.monotonic() >= deadline

    def _once(
        self, fn: Callable[[Session], T], options: dict[str, Any], *, read_only: bool, patient: bool
    ) -> tuple[T, bool]:
        """Also returns whether anything was stored, which is determined only while `condition` has a trouble."""
        with self._turn(read_only=read_only), Session(self.engine, expire_on_commit=False) as session, session.begin():
            try:
                connection = session.connection(execution_options=options)
                session.info["now"] = self.clock() if self.server_clock is None else self.server_clock.ask(connection)
                if patient and self._serving and not self.is_sqlite:
                    connection.execute(_PATIENT, {"lock_timeout": f"{_ms(WAIT_S)}ms"})
                troubled = self.condition.trouble is not None and not read_only
                before = self._stored(connection) if troubled else 0
                done = fn(session)
                if not read_only:
                    self._require_file()
                session.flush()
                return done, troubled and self._stored(connection) > before
            except DBAPIError as error:
                if lost(error):
                    raise _LostError from error
                raise

    def _stored(self, connection: Connection) -> int:
        """Returns a number that grows when this transaction changes something."""
        if self.is_sqlite:
            return int(connection.connection.driver_connection.total_changes)  # type: ignore[union-attr]
        return int(connection.execute(_HAS_STORED).scalar_one())

    def _options(self, *, read_only: bool, snapshot: bool, patient: bool) -> dict[str, Any]:
        if self.is_sqlite:
            return {READ_ONLY: read_only, PATIENT: patient}
        if read_only and not snapshot:
            return {"isolation_level": "AUTOCOMMIT"}
        if read_only:
            return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        return {"isolation_level": "READ COMMITTED"}

    @contextlib.contextmanager
    def _turn(self, *, read_only: bool) -> Iterator[None]:
        if read_only or not self.is_sqlite:
            yield
            return
        if not self._writer.acquire(timeout=WAIT_S):
            raise _busy("too many requests change something at once")
        try:
            yield
        finally:
            self._writer.release()

    def require_own_processes(self) -> None:
        """Raises PoolerError if connections do not keep their session settings. To be called once at startup."""
        for attempt in range(1, ATTEMPTS + 1) if not self.is_sqlite else ():
            try:
                pooler.require_own_process(self.engine)
                return
            except DBAPIError as error:  # a concurrent migration ends the connections of others
                if not lost(error) or attempt == ATTEMPTS:
                    raise

    def close(self) -> None:
        """Closes all connections that are not in use."""
        self.engine.dispose()


def now(session: Session) -> datetime:
    """Returns the time of this transaction."""
    moment: datetime = session.info["now"]
    return moment


def _busy(why: str) -> Refusal:
    return Refusal(Code.DATABASE_BUSY, f"{why}; try again in a moment")


def given_up(error: DBAPIError) -> bool:
    """Whether the database aborted the transaction in favour of another one."""
    if isinstance(error.orig, sqlite3.OperationalError):
        return (error.orig.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return _state(error) in _GIVEN_UP


def lost(error: DBAPIError) -> bool:
    """Whether an existing connection ended, even before it was ready for use. False for a failed connection attempt."""
    if error.connection_invalidated:
        return True
    if not isinstance(error, OperationalError) or isinstance(error.orig, sqlite3.Error):
        return False
    # psycopg sets `pgconn` only in errors of connection attempts.
    if getattr(error.orig, "pgconn", None) is not None:
        return False
    return _is_unspoken(error, "08") or _state(error) in _ENDED


def _canceled(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.OperationalError):
        return (error.orig.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_INTERRUPT
    return _state(error) == _CANCELED


def _state(error: DBAPIError) -> str | None:
    """Returns PostgreSQL's SQLSTATE; None if the server sent none."""
    return getattr(error.orig, "sqlstate", None)


def _of_others(error: IntegrityError) -> bool:
    """Whether other rows conflict with this one. Otherwise the row itself is invalid, and a retry would not help."""
    if isinstance(error.orig, sqlite3.IntegrityError):
        return error.orig.sqlite_errorcode in _OTHER_ROWS_SQLITE
    return _state(error) in _OTHER_ROWS


def _unreachable(error: DBAPIError) -> bool:
    if error.connection_invalidated:
        return True
    if isinstance(error.orig, sqlite3.OperationalError):
        return (error.orig.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_CANTOPEN
    return isinstance(error, OperationalError) and _is_unspoken(error, "08", "53", "57")


def _is_unspoken(error: DBAPIError, *classes: str) -> bool:
    """Whether the connection failed before the server answered, or the server answered with one of `classes`.

    Classes of SQLSTATE: 08 connection, 53 resources, 57 operator intervention.
    """
    state = _state(error)
    return state is None or state[:2] in classes


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _postgresql_engine(url: URL, *, serving: bool) -> Engine:
    settings: dict[str, int | str] = {
        "lock_timeout": _ms(WAIT_S),
        "idle_in_transaction_session_timeout": 6 * _ms(WAIT_S),
        "jit": "off",  # compiling a query over all GPUs takes longer than running it
    }
    if serving:
        settings |= {"lock_timeout": _ms(LOCK_S), "statement_timeout": _ms(STATEMENT_S)}
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        # A logged exception shows no parameters, because they may contain secrets or data of tenants.
        hide_parameters=True,
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=WAIT_S,
        # The connection used last is used next, because its statements are prepared in the server and its caches are
        # warm.
        pool_use_lifo=True,
        connect_args={
            "connect_timeout": int(WAIT_S),
        },
    )
    _set(engine, settings)
    _ask_the_rested(engine)
    return engine


def _set(engine: Engine, settings: Mapping[str, int | str]) -> None:
    """Sets these for each session. They are not start options, which poolers reject or silently drop."""
    chosen = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())

    @event.listens_for(engine, "connect")
    def set_all(connection: Any, _record: object) -> None:
        connection.execute(f"SELECT {chosen}")
        connection.commit()


def _ask_the_rested(engine: Engine) -> None:
    """Checks connections that were idle. `pool_pre_ping` would cost every transaction a round trip."""

    @event.listens_for(engine, "checkin")
    def rest(_connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["used_s"] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def ask(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        if time.monotonic() - record.info.get("used_s", math.inf) < RESTED_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


def _sqlite_engine(url: URL, *, serving: bool) -> Engine:
    engine = create_engine(
        url.set(drivername="sqlite+pysqlite"), hide_parameters=True, pool_size=CONNECTIONS, max_overflow=0
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, record: ConnectionPoolEntry) -> None:
        # The driver would otherwise begin transactions itself, late and never IMMEDIATE.
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {int(WAIT_S * 1000)}")
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if serving:
            connection.set_progress_handler(lambda: time.monotonic() > record.info.get(UNTIL_S, math.inf), STEPS)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get(READ_ONLY, False)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    @event.listens_for(engine, "before_cursor_execute")
    def allow(connection: Connection, *_: object) -> None:
        patient = connection.get_execution_options().get(PATIENT, False)
        connection.info[UNTIL_S] = math.inf if patient else time.monotonic() + STATEMENT_S

    return engine


def _watch_file(engine: Engine, watched: DatabaseFile) -> None:
    """Reports connections to `watched`, and prevents connections to a file that has replaced it."""

    @event.listens_for(engine, "do_connect")
    def require(*_: object) -> None:
        if watched.fault() is not None:
            raise unusable(Trouble.FILE_GONE)

    @event.listens_for(engine, "connect")
    def opened(*_: object) -> None:
        watched.opened()

    @event.listens_for(engine, "close")
    def closing(*_: object) -> None:
        watched.closing()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Turns on the write-ahead log, which is off only in a new file.

    While another connection changes the mode, SQLite fails at once, whatever its busy timeout.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0, 0.01))
