# SPDX-License-Identifier: Apache-2.0
"""The database as a whole: its first row, and what an operator declares after restoring a backup."""

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
"""Stands for any number of slices that the database does not know, until a host that goes by its epoch counts them."""


def is_made(session: Session) -> bool:
    """Whether this database has an epoch: the last thing that ``vgpumgr-api init`` gives it before a token."""
    return session.scalar(select(Installation.id)) is not None


def ensure(session: Session) -> bool:
    """Gives a new database its epoch; returns False if it has one."""
    if is_made(session):
        return False
    session.add(Installation(id=1, epoch=uuid4(), created_at=now(session)))
    session.flush()
    return True


def new_epoch(session: Session, actor: Actor, *, detail: dict[str, Any] | None = None) -> UUID:
    """Declares that this database was restored: no host obeys its tombstones until an operator confirms that host.

    Nor does a host take claims before it has reported, by a confirmed document of the new epoch, what it has: some of
    that the database may not know. Returns the new epoch. Operators only.
    """
    require_operator(actor)
    installation = session.scalars(select(Installation).with_for_update()).one()
    installation.epoch = uuid4()
    # Reports come before or after: they lock their row first and their host last.
    session.execute(select(HostReport.host_id).order_by(HostReport.host_id).with_for_update()).all()
    # Without a boot_id no sign of life passes for a report that was taken in.
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
    """As `new_epoch`, of a database that was just filled from a backup of `made_at`. `detail`: what else of the run.

    Tokens for enrolment are void, since each is good for one use and may have been used after the backup.
    """
    for host in session.scalars(select(Host).where(Host.enroll_hash.is_not(None)).order_by(Host.id)):
        credentials.revoke_enrolment(session, host)
    epoch = new_epoch(session, actor, detail={"backup_made_at": made_at.isoformat()})
    _note(session, actor, "database.restored", epoch, {"backup_made_at": made_at.isoformat(), **detail})
    return epoch


def backed_up(session: Session, actor: Actor, file: str, detail: dict[str, Any]) -> None:
    """Notes that a backup was made."""
    _note(session, actor, "database.backed_up", printable(file)[:128], detail)


def migrated(connection: Connection, actor: Actor, *, at: datetime, before: str, step: str) -> None:
    """Notes in the caller's transaction that the tables were brought from one step to another."""
    with Session(connection, join_transaction_mode="rollback_only", expire_on_commit=False) as session:
        session.info["now"] = at
        _note(session, actor, "database.migrated", step, {"before": before})
        session.commit()


def _note(session: Session, actor: Actor, what: str, subject: object, detail: dict[str, Any]) -> None:
    """For the audit alone: who watches events sees a new epoch, and nothing else changes for it."""
    audit.write(session, actor, what, subject, tenant=None, generation=None, detail=detail)
