# SPDX-License-Identifier: Apache-2.0
"""The audit: which actor did what. Entries are written in the transaction of the action, and read by admins.

The database itself rejects changes and deletions of entries; see migration 0002.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, bindparam, select
from sqlalchemy.orm import Session

from vgpumgr.wire.audit import AuditEntry
from vgpumgr.wire.common import Page
from vgpumgr_api.actors import Actor, require_admin
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import now
from vgpumgr_api.db.statements import filled, insert
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.resources.text import printable
from vgpumgr_api.resources.times import require_order

_ENTRY = records.AuditEntry


_SAID = ("at", "actor", "request_id", "tenant", "object", "generation", "detail", "role", "credential", "source")
INSERT = filled(_ENTRY, "said", _SAID).values(action=bindparam("said__kind"))
"""The INSERT of `write`, for `events.INSERTS`."""


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Selects entries; None selects all. `since` is inclusive, `until` is exclusive."""

    actor: str | None = None
    action: str | None = None
    object: str | None = None
    tenant: str | None = None
    request_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Returns the conditions that an entry must meet."""
        equal = {
            _ENTRY.actor: self.actor,
            _ENTRY.action: self.action,
            _ENTRY.object: self.object,
            _ENTRY.tenant: self.tenant,
            _ENTRY.request_id: self.request_id,
        }
        found = [column == printable(value) for column, value in equal.items() if value is not None]
        if self.since is not None:
            found.append(_ENTRY.at >= self.since)
        if self.until is not None:
            found.append(_ENTRY.at < self.until)
        return found


def write(
    session: Session,
    actor: Actor,
    action: str,
    subject: object,
    *,
    tenant: str | None,
    generation: int | None,
    detail: dict[str, Any],
) -> None:
    """Adds an entry. Called by `events.record`, which records every change, and for refusals."""
    insert(
        session,
        _ENTRY,
        {
            "at": now(session),
            "action": action,
            "actor": actor.name,
            **credentials_of(actor),
            "request_id": printable(actor.request_id)[:64],
            "tenant": tenant,
            "object": str(subject),
            "generation": generation,
            "detail": detail,
        },
    )


def refused(session: Session, actor: Actor, asked: str, detail: dict[str, Any]) -> None:
    """Adds an entry for a refused request. There is no event, because nothing changed."""
    tenant = None
    if actor.tenant_id is not None:
        tenant = session.scalar(select(models.Tenant.name).where(models.Tenant.id == actor.tenant_id))
    write(session, actor, "request.refused", asked[:128], tenant=tenant, generation=None, detail=detail)


def credentials_of(actor: Actor) -> dict[str, Any]:
    """Returns the details of an actor that are part of an entry but not of an event."""
    return {"role": actor.role.value, "credential": actor.token_id, "source": actor.source[:64]}


def list_audit(session: Session, actor: Actor, page: PageRequest, wanted: AuditFilter) -> Page[AuditEntry]:
    """Returns entries, oldest first. For admins only.

    An entry whose transaction began earlier and committed later has the smaller number, so it appears before entries
    that existed already.
    """
    require_admin(actor)
    require_order(wanted.since, wanted.until)
    rows, token = fetch(session, select(_ENTRY).where(*wanted.conditions()), kind="audit", keys=[_ENTRY.id], page=page)
    return Page(items=[_answer(row[0]) for row in rows], next_page_token=token)


def _answer(entry: records.AuditEntry) -> AuditEntry:
    return AuditEntry(
        id=entry.id,
        at=entry.at,
        action=entry.action,
        actor=entry.actor,
        role=entry.role,
        credential=entry.credential,
        source=entry.source,
        request_id=entry.request_id,
        tenant=entry.tenant,
        object=entry.object,
        generation=entry.generation,
        detail=entry.detail,
    )
