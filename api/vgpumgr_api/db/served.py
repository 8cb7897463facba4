# SPDX-License-Identifier: Apache-2.0
"""A process serves the tables that it knows and no others, also when a migration changes them while it runs.

On PostgreSQL whoever migrates first ends the connections of everybody else, and keeps new ones waiting; those who then
come in ask at which step the database is. So it costs a transaction nothing. SQLite is asked in each.
"""

from typing import Any

from sqlalchemy import Connection, Engine, event, text

from vgpumgr.wire.problem import Code
from vgpumgr_api.errors import Refusal

STEP = "SELECT version_num FROM alembic_version"
END_MS = 5000

# Those who wait to migrate, too, would find nothing left to do: they may stay. Who is just coming in will wait, too,
# before it is at work.
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
    """Somebody's connection did not end."""


def only_at(engine: Engine, step: str) -> None:
    """Refuses every connection, or transaction on SQLite, to a database that is at another step."""
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
    """Lets nobody else be at work until the end of this transaction, which changes tables. `lock`: who waits for that
    advisory lock does no harm.
    """
    if connection.dialect.name != "postgresql":  # BEGIN IMMEDIATE has seen to it
        return
    connection.execute(text("LOCK TABLE alembic_version IN ACCESS EXCLUSIVE MODE"))
    ended = connection.execute(
        text(END_OTHERS), {"patience_ms": END_MS, "high": lock >> 32, "low": lock & 0xFFFFFFFF}
    ).all()
    left = [pid for pid, gone in ended if not gone]
    if left:  # or it ended by itself before it was its turn
        connection.execute(text("SELECT pg_stat_clear_snapshot()"))
        left = list(connection.scalars(text(STILL_THERE), {"pids": left}))
    if left:
        raise StillThereError(f"the database's processes {left} do not end; stop what is at work there")


def _require(step: str, found: str | None) -> None:
    if found != step:
        raise Refusal(
            Code.DATABASE_OUTDATED,
            f"the database is at step {found} and this process knows {step}; it was migrated, start the API anew",
        )
