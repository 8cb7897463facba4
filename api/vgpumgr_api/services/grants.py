# SPDX-License-Identifier: Apache-2.0
"""Lives of claims, for the ledger: written in the transactions that make and end claims.

A life is billed from the claim until its owner gave it up, and known until it took no more room. Each is written once:
an instant that falls before what was closed counts as then, so that no clock of a replica changes the past.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, case, func, insert, literal, or_, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.usage import Grant
from vgpumgr_api.db import ledger, models
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import change
from vgpumgr_api.db.types import Instant
from vgpumgr_api.services.actors import Actor
from vgpumgr_api.services.ledger_scope import LedgerFilter, reachable, require_kept
from vgpumgr_api.services.paging import PageRequest, fetch

BATCH = 500


def begin(session: Session, claim: models.Slice, tenant: models.Tenant) -> None:
    """A claim was made, or came to another GPU. One statement."""
    account: Any = literal(tenant.name, ledger.Grant.account.type)
    if tenant.account_id is not None:
        account = select(models.Tenant.name).where(models.Tenant.id == tenant.account_id).scalar_subquery()
    found = select(
        literal(uuid4(), ledger.Grant.id.type),
        literal(claim.id, ledger.Grant.slice_id.type),
        literal(tenant.account_id or tenant.id, ledger.Grant.account_id.type),
        account,
        literal(tenant.id, ledger.Grant.tenant_id.type),
        literal(tenant.name, ledger.Grant.tenant.type),
        models.Host.name,
        models.Gpu.address,
        literal(claim.share_permille, ledger.Grant.share_permille.type),
        literal(claim.mem_bytes, ledger.Grant.mem_bytes.type),
        _instant(session),
    ).where(models.Gpu.id == claim.gpu_id, models.Host.id == models.Gpu.host_id)
    columns = ("id", "slice_id", "account_id", "account", "tenant_id", "tenant", "host", "gpu")
    change(
        session,
        insert(ledger.Grant).from_select([*columns, "share_permille", "mem_bytes", "started_at"], found),
    )


def deleted(session: Session, slice_id: UUID) -> None:
    """Its owner gave a claim up; repeating it changes nothing."""
    change(
        session,
        update(ledger.Grant)
        .where(ledger.Grant.slice_id == slice_id, ledger.Grant.deleted_at.is_(None))
        .values(deleted_at=_not_before_start(session)),
    )


def end(session: Session, slice_ids: Sequence[UUID]) -> None:
    """Claims take no more room, or their host was given up; repeating it changes nothing."""
    for start in range(0, len(slice_ids), BATCH):
        moment = _not_before_start(session)
        change(
            session,
            update(ledger.Grant)
            .where(ledger.Grant.slice_id.in_(slice_ids[start : start + BATCH]), ledger.Grant.ended_at.is_(None))
            .values(deleted_at=func.coalesce(ledger.Grant.deleted_at, moment), ended_at=moment),
        )


def list_grants(session: Session, actor: Actor, page: PageRequest, wanted: LedgerFilter) -> Page[Grant]:
    """Returns the lives that fall into a time, by id; those that go on included."""
    require_kept(session, wanted.since)
    row = ledger.Grant
    statement = select(row).where(
        *reachable(session, actor, wanted, row),
        row.started_at < wanted.until,
        or_(row.ended_at.is_(None), row.ended_at > wanted.since),
    )
    rows, token = fetch(session, statement, kind="grants", keys=[row.id], page=page)
    names = Grant.model_fields
    return Page(
        items=[Grant(**{name: getattr(each[0], name) for name in names}) for each in rows], next_page_token=token
    )


def _instant(session: Session) -> ColumnElement[datetime]:
    """Now, or the end of what is closed if that is later."""
    moment = literal(now(session), Instant())
    closed = select(ledger.Books.closed_before).scalar_subquery()
    return case((closed > moment, closed), else_=moment)


def _not_before_start(session: Session) -> ColumnElement[datetime]:
    moment = _instant(session)
    latest = func.coalesce(ledger.Grant.deleted_at, ledger.Grant.started_at)
    return case((latest > moment, latest), else_=moment)
