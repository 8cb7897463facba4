# SPDX-License-Identifier: Apache-2.0
"""What a column holds, in words that both engines and every later release understand, and its values in JSON."""

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
    """`python`: what a value is in Python if it is not what it is in JSON. `classes`: column types of this kind."""

    classes: tuple[type[TypeEngine[Any]], ...]
    make: Callable[[], TypeEngine[Any]]
    to_json: Callable[[Any], Any] | None = None
    from_json: Callable[[Any], Any] | None = None


# In the order in which they are tried: a boolean is no integer.
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
    """Raises BackupError for a column that a backup could not carry."""
    for name, kind in KINDS.items():
        if isinstance(column.type, kind.classes):
            return name
    raise BackupError(f"{column}: a backup has no kind for columns of {column.type!r}")


def encoder(table: Table) -> Callable[[Any], list[Any]]:
    """Returns what makes a line of the file of a row."""
    converters = [KINDS[kind_of(column)].to_json for column in table.columns]
    return lambda row: _converted(row, converters)


def decoder(columns: Mapping[str, str]) -> Callable[[list[Any]], dict[str, Any]]:
    """Returns what makes a row to be inserted of a line of the file."""
    converters = [KINDS[kind].from_json for kind in columns.values()]
    return lambda line: dict(zip(columns, _converted(line, converters), strict=True))


def table_of(name: str, columns: Mapping[str, str]) -> Table:
    """A table as its file describes it, which is of the schema's revision then."""
    return Table(name, MetaData(), *(Column(each, KINDS[kind].make()) for each, kind in columns.items()))


def _converted(values: Any, converters: list[Callable[[Any], Any] | None]) -> list[Any]:
    return [
        value if value is None or convert is None else convert(value)
        for value, convert in zip(values, converters, strict=True)
    ]
