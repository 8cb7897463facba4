# SPDX-License-Identifier: Apache-2.0
"""The database as a whole: its first row, and the declaration that it was restored."""

from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, select, update
from sqlalchemy.orm import Session

from vgpumgr_api.actors import Actor, require_operator
from vgpumgr_api.auth import credentials
from vgpumgr_api.db.database import now
from vgpumgr_api.db.models import Host, Installation
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import change
from vgpumgr_api.events import audit, events
from vgpumgr_api.resources.text import printable

UNKNOWN_YET = 1
"""Stands for any number of slices that the database does not know, until a host of this epoch counts them."""


def is_made(session: Session) -> bool:
    """Whether this database has an epoch, which ``vgpumgr-api init`` adds last, before a token."""
    return session.scalar(select(Installation.id)) is not None


def ensure(session: Session) -> bool:
    """Adds an epoch to a new database. Returns False if it has one."""
    if is_made(session):
        return False
    session.add(Installation(id=1, epoch=uuid4(), created_at=now(session)))
    session.flush()
    return True


def new_epoch(session: Session, actor: Actor, *, detail: dict[str, Any] | None = None) -> UUID:
    """Declares that this database was restored, and returns the new epoch. For operators only.

    No host obeys the database's tombstones until an operator has confirmed that host. A host also takes no claims
    until, with a confirmed document of the new epoch, it has reported its slices, because the database may not know
    some of them.
    """
    require_operator(actor)
    installation = session.scalars(select(Installation).with_for_update()).one()
    installation.epoch = uuid4()
    # Each report is processed before or after this, because it locks the report row first and the host last.
    session.execute(select(HostReport.host_id).order_by(HostReport.host_id).with_for_update()).all()
    # Without a boot_id, no heartbeat can name the last report, so each host must send a new one.
    change(session, update(HostReport).values(unknown_slices=UNKNOWN_YET, boot_id=None))
    session.execute(select(Host.id).order_by(Host.id).with_for_update()).all()
    change(
        session,
        update(Host).values(
            epoch_confirmed=False, desired_generation=Host.desired_generation + 1, generation=Host.generation + 1
        ),
    )
    events.record(session, actor, "epoch.new", installation.epoch, detail=detail)
    session.flush()
    return installation.epoch


def restored(session: Session, actor: Actor, *, made_at: datetime, detail: dict[str, Any]) -> UUID:
    """Like `new_epoch`, for a database just restored from a backup of `made_at`. `detail`: further details.

    Enrolment tokens become void, because each may be used only once and may have been used after the backup.
    """
    for host in session.scalars(select(Host).where(Host.enroll_hash.is_not(None)).order_by(Host.id)):
        credentials.revoke_enrolment(session, host)
    epoch = new_epoch(session, actor, detail={"backup_made_at": made_at.isoformat()})
    _note(session, actor, "database.restored", epoch, {"backup_made_at": made_at.isoformat(), **detail})
    return epoch


def backed_up(session: Session, actor: Actor, file: str, detail: dict[str, Any]) -> None:
    """Records in the audit that a backup was made."""
    _note(session, actor, "database.backed_up", printable(file)[:128], detail)


def migrated(connection: Connection, actor: Actor, *, at: datetime, before: str, step: str) -> None:
    """Records in the caller's transaction that the tables were migrated from one step to another."""
    with Session(connection, join_transaction_mode="rollback_only", expire_on_commit=False) as session:
        session.info["now"] = at
        _note(session, actor, "database.migrated", step, {"before": before})
        session.commit()


def _note(session: Session, actor: Actor, what: str, subject: object, detail: dict[str, Any]) -> None:
    """Writes to the audit only: watchers of events see a new epoch, and need no other event."""
    audit.write(session, actor, what, subject, tenant=None, generation=None, detail=detail)
