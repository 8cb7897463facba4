# SPDX-License-Identifier: Apache-2.0
"""Changes of rows without loading them, and features of both engines that SQLAlchemy spells differently."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, reduce
from operator import add
from typing import Any, TypeVar, cast
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BindParameter,
    ClauseElement,
    ColumnElement,
    CursorResult,
    Executable,
    Function,
    Insert,
    Table,
    Update,
    Uuid,
    any_,
    bindparam,
    func,
    literal_column,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.sql import visitors

from vgpumgr_api.db.models import Base

_PLAIN = re.compile(r"[a-z_]*")


def change(session: Session, statement: Executable) -> int:
    """Runs an UPDATE or DELETE and returns the number of affected rows. Objects already loaded are not updated."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount


def larger_of(session: Session) -> Callable[..., Function[Any]]:
    """Returns the SQL function for the larger of two values, neither of which may be NULL."""
    return func.greatest if is_postgresql(session) else func.max


def insert(session: Session, model: type[Base], values: Mapping[str, Any]) -> None:
    """Inserts a row at once without an object: cheaper, for rows that every change writes."""
    session.connection().execute(_insert(model), values)


def insert_unless_there(
    session: Session,
    table: type[Base],
    values: Mapping[str, Any],
    *,
    outdated: ColumnElement[bool],
    parameters: Mapping[str, Any] | None = None,
) -> bool:
    """Inserts a row. Returns False if its key is taken by a row that is not `outdated`; an outdated row is replaced.

    Waits for a transaction that is inserting the same key. `outdated` must be a module-level constant, because
    statements are cached by it; `parameters` are its parameters.
    """
    statement = _insert_unless_there(table, tuple(values), outdated, postgres=is_postgresql(session))
    return (
        session.connection().execute(statement, {**prefixed("row", values), **(parameters or {})}).first() is not None
    )


def upsert(session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]]) -> None:
    """Inserts `rows`, or replaces the rows with the same primary keys. All rows have the same columns."""
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


def among(session: Session, column: ColumnElement[UUID], values: Iterable[UUID]) -> ColumnElement[bool]:
    """Returns the condition that a column has one of many values.

    On PostgreSQL its text does not depend on the number of values, so that the statement is not planned again.
    """
    several = list(values)
    if is_postgresql(session):
        return column == any_(bindparam(None, several, ARRAY(Uuid())))
    return column.in_(several)


E = TypeVar("E", bound=ClauseElement)


def spelled_out(statement: E) -> E:
    """Returns the statement with its constants in its text, for statements that run often.

    PostgreSQL plans such a statement once for each connection, because the generic plan costs no more than a plan for
    specific parameters. With the constants as parameters, the generic plan could use no partial index for them and
    would not know how small a LIMIT is, so PostgreSQL would plan the statement each time.
    """

    def spell(element: Any, **_: Any) -> Any:
        if not isinstance(element, BindParameter) or element.required:
            return None
        value = element.value
        if type(value) is int or (isinstance(value, str) and _PLAIN.fullmatch(value)):
            return literal_column(repr(value), element.type)
        return None

    return cast("E", visitors.replacement_traverse(statement, {}, spell))


def table_of(model: type[Base]) -> Table:
    """Returns the table of a model. Statements on the table avoid the cost of ORM objects."""
    return cast("Table", model.__table__)


@cache
def _insert(model: type[Base]) -> Insert:
    return table_of(model).insert().inline()


@lru_cache(maxsize=64)
def _insert_unless_there(
    model: type[Base], columns: tuple[str, ...], outdated: ColumnElement[bool], *, postgres: bool
) -> Executable:
    table = table_of(model)
    make = postgresql.insert if postgres else sqlite.insert
    statement = make(table).values(parameters_for(model, "row", columns))
    primary = [column.name for column in table.primary_key]
    return statement.on_conflict_do_update(
        index_elements=primary,
        set_={name: statement.excluded[name] for name in columns if name not in primary},
        where=outdated,
    ).returning(*table.primary_key)


class Together:
    """Independent changes of one row each, run as one statement where the engine supports that.

    All changes take their values from the same parameters.
    """

    def __init__(self, *changes: Insert | Update) -> None:
        self._changes = [(change, _parameters_of(change)) for change in changes]
        # Each CTE is carried out even if the SELECT does not read it; see PostgreSQL's manual, "Data-Modifying
        # Statements in WITH".
        changed = [
            change.returning(literal_column("1")).cte(f"change_{number}") for number, change in enumerate(changes)
        ]
        counts = (select(func.count()).select_from(each).scalar_subquery() for each in changed)
        self._one = select(reduce(add, counts))

    def run(self, session: Session, parameters: Mapping[str, Any]) -> bool:
        """Returns whether each change affected its row. If not, the caller rolls back."""
        connection = session.connection()
        if is_postgresql(session):
            done: int = connection.execute(self._one, parameters).scalar_one()
        else:
            done = sum(
                connection.execute(change, {name: parameters[name] for name in names}).rowcount
                for change, names in self._changes
            )
        return done == len(self._changes)


def filled(model: type[Base], prefix: str, columns: Iterable[str]) -> Insert:
    """Returns an INSERT of one row with a parameter for each of `columns`; see `prefixed`."""
    return table_of(model).insert().values(parameters_for(model, prefix, columns))


def parameters_for(model: type[Base], prefix: str, columns: Iterable[str]) -> dict[str, BindParameter[Any]]:
    """Returns a parameter for each of `columns`."""
    table = table_of(model)
    return {name: bindparam(f"{prefix}__{name}", type_=table.c[name].type) for name in columns}


def prefixed(prefix: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row as parameters whose names collide neither with columns nor with rows of other prefixes."""
    return {f"{prefix}__{name}": value for name, value in row.items()}


def _parameters_of(statement: Insert | Update) -> frozenset[str]:
    return frozenset(
        each.key for each in visitors.iterate(statement) if isinstance(each, BindParameter) and each.required
    )


def is_postgresql(session: Session) -> bool:
    """Whether the engine is PostgreSQL, not SQLite."""
    return session.get_bind().dialect.name == "postgresql"
