# SPDX-License-Identifier: Apache-2.0
"""Column types that mean the same on both engines."""

from datetime import UTC, datetime

from sqlalchemy import BigInteger, DateTime, Dialect, Integer
from sqlalchemy.types import TypeDecorator


class Instant(TypeDecorator[datetime]):
    """A time in UTC. SQLite has no time zones: there the zone is removed on writing and added on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        moment = value.astimezone(UTC)
        return moment.replace(tzinfo=None) if dialect.name == "sqlite" else moment

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


# SQLite assigns row numbers only to a column of exactly this type, INTEGER.
RowNumber = BigInteger().with_variant(Integer(), "sqlite")
