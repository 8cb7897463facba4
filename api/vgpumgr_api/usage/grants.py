# SPDX-License-Identifier: Apache-2.0
"""Grants: the lives of claims for the ledger, written in the transactions that make and end claims.

A life is billed from the claim until its owner deletes it, and recorded until its capacity is released. Each of these
times is written once. A time before the end of the closed hours is replaced by that end, so that no replica's clock can
change the past.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Insert, case, func, insert, literal, or_, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.usage import Grant
from vgpumgr_api.actors import Actor
from vgpumgr_api.db import ledger, models
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import change, parameters_for, prefixed, table_of
from vgpumgr_api.db.types import Instant
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.resources.times import require_order
from vgpumgr_api.usage.ledger_scope import LedgerFilter, reachable, require_kept

BATCH = 500

_LIFE = ("id", "account_id", "account", "tenant", "host", "gpu")


def beginning(claim: Mapping[str, ColumnElement[Any]]) -> Insert:
    """Returns the INSERT of a life, for a claim that was made or moved to another GPU. `life` returns its parameters.

    `claim`: SQL expressions for the claim's columns.
    """
    own = parameters_for(ledger.Grant, "life", _LIFE)
    shared = {"slice_id": claim["id"], "tenant_id": claim["tenant_id"]}
    shared |= {name: claim[name] for name in ("share_permille", "mem_bytes")}
    return insert(ledger.Grant).values(**own, **shared, started_at=_not_closed(claim["created_at"]))


def life(tenant: models.Tenant, account: models.Tenant | None, host: str, gpu: str) -> dict[str, Any]:
    """Returns the parameters of `beginning`."""
    owner = account or tenant
    row = (uuid4(), owner.id, owner.name, tenant.name, host, gpu)
    return prefixed("life", dict(zip(_LIFE, row, strict=True)))


def deleted(session: Session, slice_id: UUID) -> None:
    """Records that a claim's owner deleted it. Repeating this changes nothing."""
    change(
        session,
        update(ledger.Grant)
        # A life that was not deleted has not ended either. The condition on `ended_at` makes the index of open lives
        # usable.
        .where(ledger.Grant.slice_id == slice_id, ledger.Grant.ended_at.is_(None), ledger.Grant.deleted_at.is_(None))
        .values(deleted_at=_not_before_start(session)),
    )


def end(session: Session, slice_ids: Sequence[UUID]) -> None:
    """Records that claims released their capacity, or that their host was fenced. Repeating this changes nothing."""
    for start in range(0, len(slice_ids), BATCH):
        moment = _not_before_start(session)
        change(
            session,
            update(ledger.Grant)
            .where(ledger.Grant.slice_id.in_(slice_ids[start : start + BATCH]), ledger.Grant.ended_at.is_(None))
            .values(deleted_at=func.coalesce(ledger.Grant.deleted_at, moment), ended_at=moment),
        )


def move(session: Session, gpu_id: UUID, address: str) -> None:
    """Continues the lives on a GPU that moved to another address.

    From now on the host's counts for this GPU are under the new address. The caller holds the GPU's lock.
    """
    slices = session.scalars(select(models.Slice.id).where(models.Slice.gpu_id == gpu_id).with_for_update()).all()
    go_on(session, slices, address)


def go_on(session: Session, slices: Sequence[UUID], address: str) -> None:
    """Ends lives, and begins new ones on a GPU at another address. The caller holds the locks of the slices."""
    columns = table_of(ledger.Grant).c
    rows = [
        dict(row)
        for start in range(0, len(slices), BATCH)
        for row in session.execute(
            select(*columns).where(
                columns.slice_id.in_(slices[start : start + BATCH]), columns.ended_at.is_(None), columns.gpu != address
            )
        ).mappings()
    ]
    if not rows:
        return
    end(session, [row["slice_id"] for row in rows])
    moment = session.scalar(select(_instant(session)))
    others = [
        row | {"id": uuid4(), "gpu": address, "started_at": moment, "deleted_at": row["deleted_at"] and moment}
        for row in rows
    ]
    session.connection().execute(insert(ledger.Grant), others)


def resume(session: Session, slice_id: UUID) -> None:
    """Begins another life of a deleted claim that is claimed again. The caller holds the slice's lock."""
    columns = table_of(ledger.Grant).c
    latest = select(*columns).where(columns.slice_id == slice_id, columns.ended_at.is_(None))
    row = session.execute(latest).mappings().one_or_none()
    if row is None:
        return
    end(session, [slice_id])
    moment = session.scalar(select(_instant(session)))
    again = dict(row) | {"id": uuid4(), "started_at": moment, "deleted_at": None}
    session.connection().execute(insert(ledger.Grant), [again])


def list_grants(session: Session, actor: Actor, page: PageRequest, wanted: LedgerFilter) -> Page[Grant]:
    """Returns the lives that overlap a time range, by id, including those that have not ended."""
    require_order(wanted.since, wanted.until)
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
    return _not_closed(literal(now(session), Instant()))


def _not_closed(moment: ColumnElement[datetime]) -> ColumnElement[datetime]:
    """Returns the time, or the end of the closed hours if that is later."""
    closed = select(ledger.Books.closed_before).scalar_subquery()
    return case((closed > moment, closed), else_=moment)


def _not_before_start(session: Session) -> ColumnElement[datetime]:
    moment = _instant(session)
    latest = func.coalesce(ledger.Grant.deleted_at, ledger.Grant.started_at)
    return case((latest > moment, latest), else_=moment)
