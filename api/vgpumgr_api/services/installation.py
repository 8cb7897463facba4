# SPDX-License-Identifier: Apache-2.0
"""The database as a whole: its first row, and what an operator declares after restoring a backup."""

from uuid import UUID, uuid4

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from vgpumgr_api.db.database import now
from vgpumgr_api.db.models import Host, Installation
from vgpumgr_api.db.statements import change
from vgpumgr_api.services import events
from vgpumgr_api.services.actors import Actor, require_operator


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


def new_epoch(session: Session, actor: Actor) -> UUID:
    """Declares that this database was restored: no host obeys its tombstones until an operator confirms that host.

    Returns the new epoch. Operators only.
    """
    require_operator(actor)
    installation = session.scalars(select(Installation).with_for_update()).one()
    installation.epoch = uuid4()
    session.execute(select(Host.id).order_by(Host.id).with_for_update()).all()
    change(
        session,
        update(Host).values(
            epoch_confirmed=False, desired_generation=Host.desired_generation + 1, generation=Host.generation + 1
        ),
    )
    events.record(session, actor, "epoch.new", installation.epoch)
    session.flush()
    return installation.epoch
