# SPDX-License-Identifier: Apache-2.0
"""Makes backups. The API may run meanwhile: a backup is a snapshot of one moment."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Table, select
from sqlalchemy.orm import Session

import vgpumgr
from vgpumgr_api.backups import columns
from vgpumgr_api.backups.file import Header, new_file, write_body, write_header
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database, now
from vgpumgr_api.db.models import Base, Installation

FETCHED_AT_ONCE = 1000
SUFFIX = ".backup"


def make(database: Database, path: Path) -> Header:
    """Writes a backup of `database` to a new file that only its owner can read. The schema must match this program."""
    with new_file(path) as file:
        header = database.run(lambda session: _write(session, file), read_only=True)
        return write_header(file, header)


def make_in(database: Database, directory: Path, *, keep: int) -> tuple[Path, Header]:
    """Like `make`, under a name with the time; then removes all but the `keep` latest backups with such names."""
    path = directory / f"vgpumgr-{datetime.now(UTC):%Y%m%dT%H%M%SZ}{SUFFIX}"
    header = make(database, path)
    for old in sorted(directory.glob(f"vgpumgr-[0-9]*T[0-9]*Z{SUFFIX}"), reverse=True)[keep:]:
        old.unlink(missing_ok=True)
    return path, header


def _write(session: Session, file: IO[bytes]) -> Header:
    schema.hold_still(session.connection())
    installation = session.scalars(select(Installation)).one()
    revision = schema.require_current_at(session.connection())
    rows = write_body(file, _lines(session))
    return Header(
        release=vgpumgr.__version__,
        revision=revision,
        epoch=installation.epoch,
        installed_at=installation.created_at,
        made_at=now(session),
        rows=rows,
    )


def _lines(session: Session) -> Iterator[Any]:
    """Yields the tables in an order in which their rows can be inserted."""
    for table in Base.metadata.sorted_tables:
        yield {"table": table.name, "columns": {column.name: columns.kind_of(column) for column in table.columns}}
        encode = columns.encoder(table)
        statement = select(table).order_by(*_owners_first(table), *table.primary_key)
        options = {"yield_per": FETCHED_AT_ONCE}
        for row in session.connection().execute(statement, execution_options=options):
            yield encode(row)


def _owners_first(table: Table) -> Iterator[Any]:
    """Yields sort keys that put rows with a reference to the same table last: projects after their accounts."""
    for column in table.columns:
        if any(key.column.table is table for key in column.foreign_keys):
            yield column.is_not(None)
