# SPDX-License-Identifier: Apache-2.0
"""Usage: what each tenant's groups obtained and were entitled to, and the ledger."""

import csv
import io
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from vgpumgr.wire.common import Instant, Name, Page
from vgpumgr.wire.resources import Usage
from vgpumgr.wire.usage import By, Grant, Granularity, LedgerRow, LedgerRowPage, UnbookedReason, UnbookedRow
from vgpumgr_api.edge.call import Call, CallDep, PageDep, authenticate, turns_of
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.overload.turns import metered
from vgpumgr_api.resources.paging import PAGE_SIZE_MAX, PageRequest
from vgpumgr_api.usage import grants, ledger_list, unbooked, usage
from vgpumgr_api.usage.ledger_scope import LedgerFilter
from vgpumgr_api.usage.unbooked import UnbookedFilter

router = APIRouter(prefix="/v1/usage", tags=["usage"], route_class=Route)

Since = Annotated[Instant, Query(description="from this instant on")]
Until = Annotated[Instant, Query(description="before this instant")]
OfTenant = Annotated[Name | None, Query(description="only of this tenant, even if it was deleted")]
OfAccount = Annotated[Name | None, Query(description="only of this account and its projects, even if it was deleted")]


async def _wanted(
    since: Since,
    until: Until,
    granularity: Annotated[Granularity, Query(description="the time that a row covers")] = Granularity.TOTAL,
    by: Annotated[By, Query(description="what a row is for")] = By.TENANT,
    tenant: OfTenant = None,
    account: OfAccount = None,
    as_of: Annotated[Instant | None, Query(description="leaves out what was booked from this hour on")] = None,
) -> LedgerFilter:
    return LedgerFilter(
        since=since,
        until=until,
        granularity=granularity,
        by=by,
        tenant=tenant,
        account=account,
        as_of=as_of,
    )


EXPORT = "export"
"""The kind of turn for each page of an export."""

CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}
Read = Callable[[Call, PageRequest], Page[Any]]
"""Reads a page of rows."""


async def _unbooked_wanted(
    since: Annotated[Instant | None, Query(description="hours that begin at this instant or later")] = None,
    until: Annotated[Instant | None, Query(description="hours that begin before this instant")] = None,
    host: Name | None = None,
    tenant: Annotated[Name | None, Query(description="reported under this name, even if no tenant has it")] = None,
    reason: UnbookedReason | None = None,
) -> UnbookedFilter:
    return UnbookedFilter(since=since, until=until, host=host, tenant=tenant, reason=reason)


UnbookedDep = Annotated[UnbookedFilter, Depends(_unbooked_wanted)]
WantedDep = Annotated[LedgerFilter, Depends(_wanted)]


@router.get("")
def list_usage(call: CallDep, page: PageDep, tenant: Name | None = None, host: Name | None = None) -> Page[Usage]:
    """Lists counters per tenant and GPU, as last reported."""
    return call.read(usage.list_usage, page, tenant=tenant, host=host)


@router.get("/ledger")
def list_ledger(call: CallDep, page: PageDep, wanted: WantedDep) -> LedgerRowPage:
    """Lists what was granted and used by hour, by day or in total. `since` and `until` are whole hours."""
    return call.read(ledger_list.list_ledger, page, wanted)


@router.get("/ledger.csv", response_class=StreamingResponse, responses=CSV)
def export_ledger(call: CallDep, wanted: WantedDep) -> StreamingResponse:
    """Returns all of these rows as CSV, after a line of names. An answer that breaks off is incomplete."""
    return _export(call, LedgerRow, lambda call, page: call.read(ledger_list.list_ledger, page, wanted))


@router.get("/unbooked")
def list_unbooked(call: CallDep, page: PageDep, wanted: UnbookedDep) -> Page[UnbookedRow]:
    """Lists by hour what hosts counted and the ledger does not have. For operators."""
    return call.read(unbooked.list_unbooked, page, wanted)


@router.get("/unbooked.csv", response_class=StreamingResponse, responses=CSV)
def export_unbooked(call: CallDep, wanted: UnbookedDep) -> StreamingResponse:
    """Returns all of these rows as CSV, after a line of names. An answer that breaks off is incomplete."""
    return _export(call, UnbookedRow, lambda call, page: call.read(unbooked.list_unbooked, page, wanted))


@router.get("/grants")
def list_grants(
    call: CallDep, page: PageDep, since: Since, until: Until, tenant: OfTenant = None, account: OfAccount = None
) -> Page[Grant]:
    """Lists claims that existed in a time range, from which `slice_us`, `granted_ns` and `mem_byte_us` are computed."""
    wanted = LedgerFilter(since=since, until=until, tenant=tenant, account=account)
    return call.read(grants.list_grants, page, wanted)


def _export(call: Call, kind: type[BaseModel], read: Read) -> StreamingResponse:
    """Reads the first page before the answer begins, so that an invalid request can still be refused."""
    first = read(call, PageRequest(size=PAGE_SIZE_MAX))
    return StreamingResponse(_csv(call, kind, read, first), media_type="text/csv; charset=utf-8; header=present")


async def _csv(call: Call, kind: type[BaseModel], read: Read, page: Page[Any]) -> AsyncIterator[str]:
    """Yields one page at a time, each in its own transaction and turn, so that a slow reader blocks nobody."""
    yield _lines([list(kind.model_fields)])
    while True:
        yield _lines([_cell(getattr(row, name)) for name in kind.model_fields] for row in page.items)
        if not page.next_page_token:
            return
        more = PageRequest(size=PAGE_SIZE_MAX, token=page.next_page_token)
        async with turns_of(call.request).turn(call.actor, EXPORT):
            page = await run_in_threadpool(metered, _next, call, read, more)


def _next(call: Call, read: Read, more: PageRequest) -> Page[Any]:
    """Authenticates again: the token may have ended since the last page, and then the answer breaks off."""
    return read(Call(call.request, call.response, authenticate(call.request)), more)


def _lines(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


_UNPLAIN = re.compile(r"^[^A-Za-z0-9]|[^A-Za-z0-9._:-]")


def _cell(value: object) -> str:
    """Returns a cell. Unusual characters become "?", because hosts choose names freely and could inject formulas."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _UNPLAIN.sub("?", value)
    return "" if value is None else str(value)
