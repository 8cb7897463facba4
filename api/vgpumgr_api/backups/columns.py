# SPDX-License-Identifier: Apache-2.0
"""The kinds of columns in a backup, in terms that both engines and later releases understand, and their JSON form."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, Float, Integer, MetaData, String, Table, Uuid
from sqlalchemy.types import TypeEngine

from vgpumgr_api.backups.file import BackupError
from vgpumgr_api.db.types import Instant


@dataclass(frozen=True)
class Kind:
    """A kind of column. `classes`: the column types of this kind. `make` returns a column type of this kind.

    `to_json` and `from_json` convert a value whose Python form differs from its JSON form.
    """

    classes: tuple[type[TypeEngine[Any]], ...]
    make: Callable[[], TypeEngine[Any]]
    to_json: Callable[[Any], Any] | None = None
    from_json: Callable[[Any], Any] | None = None


# In the order in which the kinds are tried: Boolean comes before Integer, so that a boolean is not stored as one.
KINDS = {
    "uuid": Kind((Uuid,), Uuid, str, UUID),
    "instant": Kind((Instant,), Instant, datetime.isoformat, datetime.fromisoformat),
    "json": Kind((JSON,), lambda: JSON(none_as_null=True)),
    "boolean": Kind((Boolean,), Boolean),
    "integer": Kind((Integer,), BigInteger),
    "float": Kind((Float,), Double),
    "text": Kind((String,), String),
}


def kind_of(column: Column[Any]) -> str:
    """Returns the kind of a column. Raises BackupError for a column type that a backup cannot store."""
    for name, kind in KINDS.items():
        if isinstance(column.type, kind.classes):
            return name
    raise BackupError(f"{column}: a backup has no kind for columns of {column.type!r}")


def encoder(table: Table) -> Callable[[Any], list[Any]]:
    """Returns a function that converts a row to a line of the file."""
    converters = [KINDS[kind_of(column)].to_json for column in table.columns]
    return lambda row: _converted(row, converters)


def decoder(columns: Mapping[str, str]) -> Callable[[list[Any]], dict[str, Any]]:
    """Returns a function that converts a line of the file to a row for an insert."""
    converters = [KINDS[kind].from_json for kind in columns.values()]
    return lambda line: dict(zip(columns, _converted(line, converters), strict=True))


def table_of(name: str, columns: Mapping[str, str]) -> Table:
    """Returns a table with the columns that the backup describes, which may be those of an older schema revision."""
    return Table(name, MetaData(), *(Column(each, KINDS[kind].make()) for each, kind in columns.items()))


def _converted(values: Any, converters: list[Callable[[Any], Any] | None]) -> list[Any]:
    return [
        value if value is None or convert is None else convert(value)
        for value, convert in zip(values, converters, strict=True)
    ]
