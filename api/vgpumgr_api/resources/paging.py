# SPDX-License-Identifier: Apache-2.0
"""Lists in pages. A page begins after the last key of the previous one, so that no row is missed or repeated."""

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

from vgpumgr.wire.common import COUNTER_MAX
from vgpumgr.wire.problem import Code, Reason
from vgpumgr_api.db.types import Instant
from vgpumgr_api.errors import Refusal

PAGE_SIZE, PAGE_SIZE_MAX = 100, 1000

TOKEN_MAX = 1024
"""The maximum length of a token in characters. The longest tokens are those of the ledger and of unbooked counts,
because hosts may report names in any script.
"""


@dataclass(frozen=True, kw_only=True)
class PageRequest:
    """The requested part of a list. A `size` above PAGE_SIZE_MAX means PAGE_SIZE_MAX.

    `bound`: the filters of the request; a token is valid only with the filters that it was issued for.
    """

    size: int = PAGE_SIZE
    token: str = ""
    bound: str = ""


def fetch(
    session: Session,
    statement: Select[*tuple[Any, ...]],
    *,
    kind: str,
    keys: Sequence[InstrumentedAttribute[Any]],
    page: PageRequest,
) -> tuple[list[Row[*tuple[Any, ...]]], str]:
    """Returns the rows of a page, in the order of `keys`, and the token of the next page or "".

    `keys` are unique together and of type UUID, str, int or Instant. `kind` names the list; a token is valid only for
    it.
    """
    size = checked_size(page.size)
    if page.token:
        after = _parse(page.token, bound=[kind, page.bound], keys=keys)
        columns: list[ColumnElement[Any]] = [key.expression for key in keys]
        bounds = [literal(value, type_=key.type) for value, key in zip(after, keys, strict=True)]
        statement = statement.where(tuple_(*columns) > tuple_(*bounds))
    rows = list(session.execute(statement.add_columns(*keys).order_by(*keys).limit(size + 1)))
    token = _format(rows[size - 1][-len(keys) :], bound=[kind, page.bound]) if len(rows) > size else ""
    return rows[:size], token


def checked_size(size: int) -> int:
    """Returns the number of items in a page."""
    if size < 1:
        raise _invalid("page_size", "page_size is less than 1")
    return min(size, PAGE_SIZE_MAX)


def _format(values: Sequence[Any], *, bound: list[str]) -> str:
    text = json.dumps([*bound, *(str(value) for value in values)], ensure_ascii=False)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _parse(token: str, *, bound: list[str], keys: Sequence[InstrumentedAttribute[Any]]) -> list[Any]:
    refusal = _invalid("page_token", "page_token is not one of this list with these filters; begin without one")
    try:
        padded = token + "=" * (-len(token) % 4)
        kind, filters, *values = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if [kind, filters] != bound or len(values) != len(keys):
            raise refusal
        return [_key(value, key) for value, key in zip(values, keys, strict=True)]
    except (binascii.Error, ValueError, TypeError, RecursionError):
        raise refusal from None


def _key(value: Any, key: InstrumentedAttribute[Any]) -> Any:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError
    value.encode()  # raises ValueError for a lone surrogate
    if key.type.python_type is int:
        return _number(value)
    if isinstance(key.type, Instant):
        return _instant(value)
    return UUID(value) if key.type.python_type is UUID else value


def _number(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 19 and int(value) <= COUNTER_MAX):
        raise ValueError
    return int(value)


def _instant(value: str) -> datetime:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None or not 1 < moment.year < MAXYEAR:
        raise ValueError
    return moment


def _invalid(field: str, detail: str) -> Refusal:
    return Refusal(
        Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field=f"query.{field}"),)
    )
