# SPDX-License-Identifier: Apache-2.0
"""Which tables a database has, and their migration.

Nothing is migrated without an operator: the service refuses to start until ``vgpumgr-api migrate`` was run.
"""

import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

# imported to register their tables in Base.metadata
from vgpumgr_api.db import labels, ledger, observations, progress, records, reservations, served  # noqa: F401
from vgpumgr_api.db.database import Database, given_up, lost
from vgpumgr_api.db.models import Base

MIGRATIONS = Path(__file__).resolve().parents[1] / "migrations"
UPGRADE_LOCK = 0x76677075_00000001
TRIGGER_FUNCTIONS = """
    SELECT DISTINCT t.tgfoid::regprocedure::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(:tables)
"""


class SchemaError(Exception):
    """The database is not the one that this program needs. The message is one line that says what to do."""


PATIENCE_S = 3600.0
"""How long a process waits while another upgrades the schema."""


THROWN_OUT_MAX = 10
"""How often this process retries after its connection ended. Another migration ends it only once, so further ends are
caused by the server.
"""


def upgrade(
    database: Database, *, make: bool = True, after: Callable[[Connection, str, str], None] | None = None
) -> None:
    """Runs the missing migration steps, in one transaction.

    If several processes upgrade at once, one does so; the others wait for it and find nothing left to do. Connections
    of other processes are ended, and a process of the older version cannot connect again; see `served`. Without `make`,
    a database without tables is refused. `after` is called in the transaction with the steps before and after the
    migration, if an existing database was migrated.
    """
    deadline = time.monotonic() + PATIENCE_S
    thrown_out = 0
    while True:
        database.close()
        try:
            return _upgrade(database, make=make, after=after)
        except DBAPIError as error:
            # Another process that migrates has ended our connection, or holds a lock.
            thrown_out += lost(error)
            if time.monotonic() >= deadline or thrown_out > THROWN_OUT_MAX:
                raise
            if not lost(error) and not given_up(error):
                raise
        time.sleep(random.uniform(0.05, 0.2))


def _upgrade(database: Database, *, make: bool, after: Callable[[Connection, str, str], None] | None) -> None:
    with database.engine.begin() as connection:
        lock(connection)
        found = revision_at(connection)
        _refuse_newer(found)
        if found is None and not make:
            raise SchemaError("the database has no tables; run: vgpumgr-api init")
        if found not in (None, newest()):
            _stand_alone(connection)
        upgrade_to(connection, "head")
        if after is not None and found not in (None, newest()):
            after(connection, str(found), str(newest()))


def lock(connection: Connection) -> None:
    """Prevents other schema changes and backups until the end of the transaction."""
    # On SQLite, BEGIN IMMEDIATE has locked the file already.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})


def _stand_alone(connection: Connection) -> None:
    try:
        served.end_others(connection, UPGRADE_LOCK)
    except served.StillThereError as error:
        raise SchemaError(str(error)) from None


def hold_still(connection: Connection) -> None:
    """Prevents schema changes until the end of the transaction, which only reads."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock_shared(:key)"), {"key": UPGRADE_LOCK})


def upgrade_to(connection: Connection, revision: str) -> None:
    """Runs the missing steps up to `revision`, in the caller's transaction."""
    run_steps(connection, lambda scripts, at: scripts._upgrade_revs(revision, at))


def run_steps(connection: Connection, steps: Callable[[ScriptDirectory, Any], Any]) -> None:
    """Runs the steps that `steps` chooses for the database's current step, in the caller's transaction.

    Alembic's commands do the same, but read all steps from their files each time.
    """
    config, found = _config(), scripts()
    config.attributes["connection"] = connection
    with EnvironmentContext(config, found, fn=lambda at, _: steps(found, at)):
        found.run_env()


def drop(connection: Connection) -> None:
    """Drops all tables of this program's revision with their content, in the caller's transaction."""
    functions: list[str] = []
    if connection.dialect.name == "postgresql":
        functions = list(connection.execute(text(TRIGGER_FUNCTIONS), {"tables": list(Base.metadata.tables)}).scalars())
    Base.metadata.drop_all(connection)
    for function in functions:
        connection.execute(text(f"DROP FUNCTION {function}"))
    connection.execute(text("DROP TABLE alembic_version"))


def require_current(database: Database) -> None:
    """Raises SchemaError unless the database has exactly the tables that this program knows."""
    with database.engine.connect() as connection:
        require_current_at(connection)


def require_current_at(connection: Connection) -> str:
    """Like `require_current`, in the caller's transaction. Returns the database's step."""
    found = revision_at(connection)
    if found is None:
        raise SchemaError("the database has no tables; run: vgpumgr-api init")
    _refuse_newer(found)
    if found != newest():
        raise SchemaError(f"the database is at step {found}, this program needs {newest()}; run: vgpumgr-api migrate")
    return found


def revision(database: Database) -> str | None:
    """Returns the last step that was applied to this database, None if it has no tables."""
    with database.engine.connect() as connection:
        return revision_at(connection)


def revision_at(connection: Connection) -> str | None:
    """Like `revision`, in the caller's transaction."""
    return MigrationContext.configure(connection).get_current_revision()


@cache
def scripts() -> ScriptDirectory:
    """Returns the steps that this program knows."""
    return ScriptDirectory.from_config(_config())


@cache
def newest() -> str | None:
    """Returns the last step that this program knows."""
    return scripts().get_current_head()


def differences(database: Database) -> list[object]:
    """Returns the differences between the tables and the models. Any difference means that a migration is missing."""
    from alembic.autogenerate import compare_metadata

    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, Base.metadata))


def is_known(revision: str) -> bool:
    """Whether this program can migrate a database that is at `revision`."""
    return any(script.revision == revision for script in scripts().walk_revisions())


def _refuse_newer(revision: str | None) -> None:
    if revision is not None and not is_known(revision):
        raise SchemaError(
            f"the database is at step {revision}, which is newer than this program; install the version that made it"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
