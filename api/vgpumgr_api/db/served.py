# SPDX-License-Identifier: Apache-2.0
"""A process serves only the tables that it knows, even if they are migrated while it runs.

On PostgreSQL, a migration ends all other connections first and keeps new ones waiting. A new connection checks the
database's step, so transactions need no check. On SQLite each transaction checks the step.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event, text

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal

STEP = "SELECT version_num FROM alembic_version"
END_MS = 5000

# Connections of other processes that wait to migrate may stay, because they will find nothing left to do. A connection
# that is just starting may stay, too, because it will wait before it does any work.
END_OTHERS = """
    SELECT pid, pg_terminate_backend(pid, :patience_ms) FROM pg_stat_activity a
    WHERE datname = current_database() AND usename = current_user AND backend_type = 'client backend'
    AND pid <> pg_backend_pid() AND coalesce(state, 'starting') <> 'starting' AND NOT EXISTS (
        SELECT FROM pg_locks l WHERE l.pid = a.pid AND NOT l.granted AND l.locktype = 'advisory'
        AND l.classid::bigint = :high AND l.objid::bigint = :low
    )
"""


STILL_THERE = "SELECT pid FROM pg_stat_activity WHERE pid = ANY(:pids) ORDER BY pid"


class StillThereError(Exception):
    """The connection of another process did not end."""


def only_at(engine: Engine, step: str) -> None:
    """Refuses every connection, or on SQLite every transaction, to a database that is at another step."""
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "begin")
        def ask(connection: Connection) -> None:
            _require(step, connection.exec_driver_sql(STEP).scalar())

        return

    @event.listens_for(engine, "connect")
    def ask_first(connection: Any, _record: object) -> None:
        try:
            with connection.cursor() as cursor:
                found = cursor.execute(STEP).fetchone()
            connection.rollback()
            _require(step, found and found[0])
        except BaseException:
            connection.close()
            raise


def end_others(connection: Connection, lock: int) -> None:
    """Ends all other connections and keeps new ones waiting until the end of this transaction, which changes tables.

    `lock`: an advisory lock; connections that wait for it are left alone.
    """
    if connection.dialect.name != "postgresql":  # BEGIN IMMEDIATE excludes other writers
        return
    connection.execute(text("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE"))
    ended = connection.execute(
        text(END_OTHERS), {"patience_ms": END_MS, "high": lock >> 32, "low": lock & 0xFFFFFFFF}
    ).all()
    left = [pid for pid, gone in ended if not gone]
    if left:  # some of these may have ended by themselves
        connection.execute(text("SELECT pg_stat_clear_snapshot()"))
        left = list(connection.scalars(text(STILL_THERE), {"pids": left}))
    if left:
        raise StillThereError(f"the database's processes {left} do not end; stop what they run")


def _require(step: str, found: str | None) -> None:
    if found != step:
        raise Refusal(
            Code.DATABASE_OUTDATED,
            f"the database was migrated to step {found}, and this process knows {step}; restart the API",
        )
