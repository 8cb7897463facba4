# SPDX-License-Identifier: Apache-2.0
"""Finding rows by what clients call them. Who may see what was found is the caller's question."""

import re
from uuid import UUID

from sqlalchemy import ColumnElement, bindparam, delete, false, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from vgpumgr.wire.problem import Code
from vgpumgr_api.db import models, records
from vgpumgr_api.db.statements import change
from vgpumgr_api.errors import Refusal
from vgpumgr_api.services.actors import Actor, unknown

# Asking the database for other names is pointless, and PostgreSQL raises on some.
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

# Made once, since every claim runs them.
_TENANT = select(models.Tenant).where(models.Tenant.name == bindparam("named"))
_PROFILE = select(models.Profile).where(models.Profile.name == bindparam("named"))


def tenant_named(session: Session, name: str) -> models.Tenant:
    """Returns a tenant or raises Refusal(OBJECT_UNKNOWN)."""
    found = session.scalar(_TENANT, {"named": name}) if _NAME.fullmatch(name) else None
    if found is None:
        raise unknown("tenant", name)
    return found


def profile_named(session: Session, name: str) -> models.Profile:
    """Returns a profile or raises Refusal(OBJECT_UNKNOWN)."""
    found = session.scalar(_PROFILE, {"named": name}) if _NAME.fullmatch(name) else None
    if found is None:
        raise unknown("profile", name)
    return found


def host_named(session: Session, name: str, *, lock: bool = False) -> models.Host:
    """Returns a host, by name or by UUID, or raises Refusal(OBJECT_UNKNOWN)."""
    found = None
    if _NAME.fullmatch(name):
        statement = select(models.Host).where(models.Host.name == name)
        found = session.scalar(statement.with_for_update() if lock else statement)
        if found is None and len(name) == 36:
            try:
                statement = select(models.Host).where(models.Host.id == UUID(name))
            except ValueError:
                pass
            else:
                found = session.scalar(statement.with_for_update() if lock else statement)
    if found is None:
        raise unknown("host", name)
    return found


def on_host(session: Session, actor: Actor, name: str) -> ColumnElement[bool]:
    """Returns the condition on `models.Host` that selects what is on a host.

    To a tenant a host that does not exist looks like one that has nothing of the tenant; who sees the cloud is told.
    """
    try:
        return models.Host.id == host_named(session, name).id
    except Refusal:
        if actor.sees_the_cloud:
            raise
        return false()


def refuse_duplicate(session: Session, column: InstrumentedAttribute[str], name: str, *, kind: str) -> None:
    """Raises Refusal(OBJECT_EXISTS) if `name` is taken; the column's UNIQUE catches who comes at the same time."""
    if session.scalar(select(column).where(column == name)) is not None:
        raise Refusal(Code.OBJECT_EXISTS, f"{kind} {name} exists already; choose another name")


def remove(
    session: Session,
    table: type[models.Tenant | models.Profile | models.Host | records.Token],
    row_id: UUID,
    *,
    kind: str,
    name: object,
) -> None:
    """Deletes a row, or raises Refusal(OBJECT_UNKNOWN) if somebody else just did."""
    if change(session, delete(table).where(table.id == row_id)) == 0:
        raise unknown(kind, name)
