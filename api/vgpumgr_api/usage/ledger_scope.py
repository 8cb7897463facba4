# SPDX-License-Identifier: Apache-2.0
"""The requested part of the ledger, and the part that an actor may see.

Permissions are by id, not by name: a tenant sees nothing of an earlier tenant of the same name. An actor that sees the
cloud may also ask for deleted tenants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.usage import By, Granularity
from vgpumgr_api.actors import Actor, require_person, require_tenant, unknown
from vgpumgr_api.db import ledger
from vgpumgr_api.errors import Refusal
from vgpumgr_api.resources.lookup import tenant_named
from vgpumgr_api.resources.times import require_order
from vgpumgr_api.usage import books

Table = type[ledger.Grant] | type[ledger.LedgerEntry]

HOURS_MAX = 24 * 92
"""The maximum range by hours; by days it is ten times as long."""


@dataclass(frozen=True, kw_only=True)
class LedgerFilter:
    """The requested rows, from `since` to before `until`. `as_of`: as they were known at the beginning of that hour."""

    since: datetime
    until: datetime
    granularity: Granularity = Granularity.TOTAL
    by: By = By.TENANT
    tenant: str | None = None
    account: str | None = None
    as_of: datetime | None = None


def require_whole_hours(wanted: LedgerFilter) -> None:
    """Refuses a time range that is empty, too long, or not made of whole hours."""
    for field in ("since", "until", "as_of"):
        moment = getattr(wanted, field)
        if moment is not None and moment != books.hour_of(moment):
            raise _invalid(field, f"{field} is not the beginning of an hour of UTC, like 2026-11-21T12:00:00Z")
    require_order(wanted.since, wanted.until)
    hours = (wanted.until - wanted.since) // books.HOUR
    longest = {Granularity.HOUR: HOURS_MAX, Granularity.DAY: 10 * HOURS_MAX}.get(wanted.granularity)
    if longest is not None and hours > longest:
        raise _invalid(
            "until", f"{hours} hours are too long a range by the {wanted.granularity.value}; ask for {longest} at most"
        )


def require_kept(session: Session, since: datetime) -> None:
    """Refuses a time for which the ledger is no longer kept."""
    kept_from = books.state(session).kept_from
    if since < kept_from:
        raise Refusal(Code.USAGE_EXPIRED, f"usage is kept from {kept_from.isoformat()} on; ask from then on")


def reachable(session: Session, actor: Actor, wanted: LedgerFilter, row: Table) -> Sequence[ColumnElement[bool]]:
    """Returns the conditions on a table that select the rows requested and permitted. Raises OBJECT_UNKNOWN."""
    require_person(actor)
    conditions: list[ColumnElement[bool]] = []
    if not actor.sees_the_cloud:
        conditions.append(or_(row.tenant_id == actor.tenant_id, row.account_id == actor.tenant_id))
    for name, column in ((wanted.tenant, row.tenant), (wanted.account, row.account)):
        if name is not None:
            _require_known(session, actor, name)
            conditions.append(column == name)
    return conditions


def _require_known(session: Session, actor: Actor, name: str) -> None:
    try:
        require_tenant(actor, tenant_named(session, name))
    except Refusal:
        was = select(ledger.Grant.id).where(ledger.Grant.tenant == name).limit(1)
        if not actor.sees_the_cloud or session.scalar(was) is None:
            raise unknown("tenant", name) from None


def _invalid(field: str, detail: str) -> Refusal:
    return Refusal(
        Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field=f"query.{field}"),)
    )
