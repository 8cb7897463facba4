# SPDX-License-Identifier: Apache-2.0
"""Replaces the content of a database with a backup, in one transaction: until its commit nothing has changed.

Afterwards the epoch is new. No host deletes anything until an operator has confirmed the epoch, and no host takes
claims before it has reported its devices.
"""

import random
import time
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, func, insert, inspect, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from vgpumgr_api.actors import Actor
from vgpumgr_api.backups import columns
from vgpumgr_api.backups.file import BackupError, Header, verified
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database, given_up
from vgpumgr_api.db.models import Base, Host, Installation, Tenant
from vgpumgr_api.installation import installation

INSERTED_AT_ONCE = 1000
ATTEMPTS = 5
AGAIN_S = 1.0
"""The longest pause before the next attempt."""


def check(path: Path) -> Header:
    """Returns the header of a file that can be restored. Raises BackupError."""
    with verified(path) as (header, lines):
        _require_known(path, header)
        for _ in lines:
            pass
        return header


def restore(database: Database, path: Path, actor: Actor, *, force: bool) -> tuple[Header, UUID]:
    """Returns the file's header and the new epoch.

    Raises BackupError, and SchemaError for a database whose schema revision is not this program's. If PostgreSQL
    aborts the restore in favour of a transaction of an API that serves, as after a deadlock, it begins again.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _restored(database, path, actor, force=force)
        except DBAPIError as error:
            if attempt == ATTEMPTS or not given_up(error):
                raise
        time.sleep(random.uniform(0, AGAIN_S))
    raise AssertionError("the last attempt returns or raises")


def _restored(database: Database, path: Path, actor: Actor, *, force: bool) -> tuple[Header, UUID]:
    """Restores in one transaction."""
    with verified(path) as (header, lines):
        _require_known(path, header)
        with database.engine.begin() as connection:
            schema.lock(connection)
            _make_room(connection, header, force=force)
            schema.upgrade_to(connection, header.revision)
            _load(connection, path, lines)
            schema.upgrade_to(connection, "head")
            _set_row_numbers(connection)
            with Session(connection, join_transaction_mode="rollback_only", expire_on_commit=False) as session:
                session.info["now"] = database.clock()
                detail = {"rows": header.rows, "release": header.release, "step": header.revision, "forced": force}
                epoch = installation.restored(session, actor, made_at=header.made_at, detail=detail)
                session.commit()
        return header, epoch


def _require_known(path: Path, header: Header) -> None:
    if not schema.is_known(header.revision):
        raise BackupError(
            f"{path} is of schema step {header.revision}, which is newer than this program; install release"
            f" {header.release} or a newer one"
        )


def _make_room(connection: Connection, header: Header, *, force: bool) -> None:
    """Drops the tables of the database, after checking that their content may be lost."""
    if schema.revision_at(connection) is None:
        others = inspect(connection).get_table_names()
        if others:
            raise BackupError(f"the database has tables that are not vgpumgr's, such as {others[0]}; name another one")
        return
    schema.require_current_at(connection)
    here = connection.execute(select(Installation.created_at)).scalar()
    in_use = any(connection.execute(select(table.id).limit(1)).first() for table in (Tenant, Host))
    if in_use and here != header.installed_at:
        raise BackupError(
            "the backup is of another installation than the database, which has tenants or hosts; restore it into an"
            " empty database"
        )
    if not force:
        raise BackupError("the database is in use; --force replaces its contents, which are lost")
    schema.drop(connection)


def _load(connection: Connection, path: Path, lines: Iterable[Any]) -> None:
    """Inserts all rows, one table after another."""
    for head, rows in _tables(path, lines):
        try:
            place, decode = columns.table_of(head["table"], head["columns"]), columns.decoder(head["columns"])
        except KeyError as error:
            raise BackupError(f"{path}: {error.args[0]!r} is unknown to this program") from None
        while some := list(islice(rows, INSERTED_AT_ONCE)):
            connection.execute(insert(place), [decode(line) for line in some])


def _tables(path: Path, lines: Iterable[Any]) -> Iterator[tuple[dict[str, Any], Iterator[list[Any]]]]:
    head: dict[str, Any] | None = None
    for is_row, run in groupby(lines, key=lambda line: isinstance(line, list)):
        if not is_row:
            *_, head = run  # of consecutive table lines, only the last table has rows
        elif head is None:
            raise BackupError(f"{path} is damaged: it has rows without a table")
        else:
            yield head, run


def _set_row_numbers(connection: Connection) -> None:
    """Advances PostgreSQL's sequences past the inserted row numbers, because explicit numbers do not advance them."""
    if connection.dialect.name != "postgresql":
        return
    for table in Base.metadata.sorted_tables:
        number = table.autoincrement_column
        if number is not None and number.autoincrement is True:
            last = connection.execute(select(func.max(number))).scalar()
            if last is not None:
                connection.execute(
                    text("SELECT setval(pg_get_serial_sequence(:table, :column), :last)"),
                    {"table": table.name, "column": number.name, "last": last},
                )
