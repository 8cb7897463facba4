# SPDX-License-Identifier: Apache-2.0
"""Changing rows without loading them, and what both engines know but SQLAlchemy spells once per engine."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from sqlalchemy import ColumnElement, CursorResult, Executable, Insert, Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from vgpumgr_api.db.models import Base


def change(session: Session, statement: Executable) -> int:
    """Runs an UPDATE or DELETE and returns how many rows it met. Objects already loaded do not notice."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount


def insert(session: Session, model: type[Base], values: Mapping[str, Any]) -> None:
    """Inserts a row at once and loads nothing: cheaper than an object, for rows that every change writes."""
    session.connection().execute(_insert(model), values)


def insert_unless_there(
    session: Session, table: type[Base], values: Mapping[str, Any], *, outdated: ColumnElement[bool]
) -> bool:
    """Inserts a row; returns False if its key is taken, unless by a row that is `outdated`, which it then replaces.

    Waits for a transaction that is about to take the key.
    """
    make = postgresql.insert if is_postgresql(session) else sqlite.insert
    primary = table_of(table).primary_key
    inserted = (
        make(table)
        .values(values)
        .on_conflict_do_update(
            index_elements=list(primary),
            set_={name: value for name, value in values.items() if name not in primary},
            where=outdated,
        )
        .returning(*primary)
    )
    return session.execute(inserted).first() is not None


def upsert(session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts `rows`, or replaces what the rows with their primary keys hold. All have the same columns."""
    if not rows:
        return
    primary = [column.name for column in table.__table__.primary_key]
    others = [name for name in rows[0] if name not in primary]
    make = postgresql.insert if is_postgresql(session) else sqlite.insert
    statement = make(table)
    statement = statement.on_conflict_do_update(
        index_elements=primary, set_={name: statement.excluded[name] for name in others}
    )
    session.connection().execute(statement, [dict(row) for row in rows])


def table_of(model: type[Base]) -> Table:
    """Returns the table of a model, whose statements are made and run without the cost of objects."""
    return cast("Table", model.__table__)


@cache
def _insert(model: type[Base]) -> Insert:
    return table_of(model).insert().inline()


def is_postgresql(session: Session) -> bool:
    """Which of the two engines this is."""
    return session.get_bind().dialect.name == "postgresql"
