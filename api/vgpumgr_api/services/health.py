# SPDX-License-Identifier: Apache-2.0
"""Whether the database answers."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr_api.db.models import Installation


def check(session: Session) -> None:
    """Reads the one row that there always is. `Database.run` raises Refusal(DATABASE_BUSY) if that fails."""
    session.scalars(select(Installation.epoch)).one()
