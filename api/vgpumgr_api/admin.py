# SPDX-License-Identifier: Apache-2.0
"""Commands for the API's own machine: create a database, migrate it, back it up and restore it."""

import os
from pathlib import Path
from uuid import UUID

from sqlalchemy import Connection, make_url
from sqlalchemy.exc import DBAPIError

from vgpumgr.wire.resources import TokenCreate, TokenCreated, TokenRole
from vgpumgr_api.actors import local_operator
from vgpumgr_api.auth import tokens
from vgpumgr_api.backups import make
from vgpumgr_api.backups import restore as restoring
from vgpumgr_api.backups.file import Header
from vgpumgr_api.config import Config
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.trouble import Trouble, first_line
from vgpumgr_api.errors import Refusal
from vgpumgr_api.installation import installation

ACTOR = local_operator("operator:local", TokenRole.ADMIN)


class AdminError(Exception):
    """A command cannot be carried out. The message is one line that says what to do."""


def initialise(config: Config) -> TokenCreated:
    """Creates the tables, the first row and the first operator's token. Refuses a database that has been in use."""
    file = database_file(config)
    if file is not None:
        _create(file)
    database = Database(config.database)
    try:
        database.require_own_processes()
        if schema.revision(database) is None:
            schema.upgrade(database)
        schema.require_current(database)
        if not database.run(installation.ensure):
            raise AdminError("this database is in use already; for another token run: vgpumgr-api create-token")
        return create_token(database, TokenCreate(role=TokenRole.OPERATOR))
    except DBAPIError as error:
        raise unreachable(config, error) from error
    finally:
        database.close()


def migrate(config: Config) -> str:
    """Migrates the tables and returns what was done. API processes of the older version then refuse all requests.

    If several processes migrate at once, one does the work and the others return when it has finished.
    """
    database = _opened(config)
    done = "nothing to do: the tables are up to date"

    def note(connection: Connection, before: str, step: str) -> None:
        nonlocal done
        done = f"the tables were brought from step {before} to {step}"
        installation.migrated(connection, ACTOR, at=database.clock(), before=before, step=step)

    try:
        database.require_own_processes()
        schema.upgrade(database, make=False, after=note)
        return done
    except DBAPIError as error:
        raise unreachable(config, error) from error
    finally:
        database.close()


def checked(config: Config) -> Database:
    """Returns the database if its tables match this program. The caller closes it."""
    database = _opened(config)
    try:
        database.require_own_processes()
        schema.require_current(database)
        if not database.run(installation.is_made, read_only=True):
            raise AdminError("the database was not created completely; run: vgpumgr-api init")
    except DBAPIError as error:
        database.close()
        raise unreachable(config, error) from error
    except BaseException:
        database.close()
        raise
    return database


def create_token(database: Database, request: TokenCreate) -> TokenCreated:
    """Creates a credential and requires none: anyone who can write the database could create one anyway."""
    return database.run(lambda session: tokens.create_token(session, ACTOR, request))


def new_epoch(database: Database) -> UUID:
    """Declares the database restored, with a new epoch."""
    return database.run(lambda session: installation.new_epoch(session, ACTOR))


def backup(database: Database, file: Path | None, *, directory: Path | None, keep: int) -> tuple[Path, Header, bool]:
    """Writes a backup to a new `file`, or to `directory` under a generated name; the last `keep` stay there.

    Also returns whether the backup was entered in the audit, which is impossible in a read-only database.
    """
    if directory is not None:
        path, header = make.make_in(database, directory, keep=keep)
    elif file is not None:
        path, header = file, make.make(database, file)
    else:
        raise AdminError("name a file or a directory for the backup")
    detail = {"rows": header.rows, "step": header.revision, "made_at": header.made_at.isoformat()}
    try:
        database.run(lambda session: installation.backed_up(session, ACTOR, path.name, detail))
    except Refusal:
        if database.condition.trouble is not Trouble.READ_ONLY:
            raise
        return path, header, False
    return path, header, True


def check_backup(file: Path) -> Header:
    """Returns the header of a backup that can be restored."""
    return restoring.check(file)


def restore(config: Config, file: Path, *, force: bool) -> tuple[Header, UUID]:
    """Restores a backup, creating an SQLite file if there is none. Returns the backup's header and the new epoch."""
    restoring.check(file)
    place = database_file(config)
    if place is not None:
        _create(place)
    database = Database(config.database)
    try:
        database.require_own_processes()
        return restoring.restore(database, file, ACTOR, force=force)
    except DBAPIError as error:
        raise unreachable(config, error) from error
    finally:
        database.close()


def database_file(config: Config) -> Path | None:
    """Returns the SQLite file, or None for a database server."""
    url = make_url(config.database)
    if url.get_backend_name() != "sqlite":
        return None
    return Path(url.database or "")


def unreachable(config: Config, error: DBAPIError) -> AdminError:
    """Returns the error to report for a driver's error: its first line, and the SQLite file concerned."""
    file = database_file(config)
    about = "" if file is None else f" {file}"
    return AdminError(f"the database{about} cannot be used: {first_line(error)}")


def _opened(config: Config) -> Database:
    file = database_file(config)
    # SQLite would create an empty file if there is none.
    if file is not None and not file.exists():
        raise AdminError(f"there is no database {file}; run: vgpumgr-api init")
    return Database(config.database)


def _create(file: Path) -> None:
    """Creates a file that only its owner can read, because it contains hashes of credentials and the use of tenants."""
    try:
        if not file.parent.is_dir():
            raise AdminError(f"{file.parent}: no such directory; create it, owned by the user of the API")
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        file.chmod(0o600)
    except OSError as error:
        raise AdminError(f"{file}: {error.strerror}") from None
