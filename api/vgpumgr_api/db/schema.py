# SPDX-License-Identifier: Apache-2.0
"""Which tables a database has, and bringing it up to date.

Nothing is upgraded behind an operator's back: the service refuses to start until ``vgpumgr-api upgrade`` was run.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from vgpumgr_api.db import observations, records  # noqa: F401  # their tables belong to Base.metadata
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Base

MIGRATIONS = Path(__file__).resolve().parents[1] / "migrations"
UPGRADE_LOCK = 0x76677075_00000001


class SchemaError(Exception):
    """The database is not the one that this program needs; the message is one line that says what to do."""


def upgrade(database: Database) -> None:
    """Runs what is missing, in one transaction. Of several that come at once the others find nothing left to do."""
    with database.engine.begin() as connection:
        # SQLite: BEGIN IMMEDIATE has locked the file already.
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": UPGRADE_LOCK})
        found = _revision(connection)
        _refuse_newer(found)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def require_current(database: Database) -> None:
    """Raises SchemaError unless the database has exactly the tables that this program knows."""
    found = revision(database)
    if found is None:
        raise SchemaError("the database has no tables; run: vgpumgr-api init")
    _refuse_newer(found)
    if found != newest():
        raise SchemaError(f"the database is at step {found}, this program needs {newest()}; run: vgpumgr-api upgrade")


def revision(database: Database) -> str | None:
    """Returns the last step that was made in this database, None if it has no tables."""
    with database.engine.connect() as connection:
        return _revision(connection)


def newest() -> str | None:
    """Returns the last step that this program knows."""
    return ScriptDirectory.from_config(_config()).get_current_head()


def differences(database: Database) -> list[object]:
    """Returns how the tables differ from the models; nothing, or a migration is missing."""
    from alembic.autogenerate import compare_metadata

    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, Base.metadata))


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(revision: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaError(
            f"the database is at step {revision}, which is newer than this program; install the version that made it"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config
