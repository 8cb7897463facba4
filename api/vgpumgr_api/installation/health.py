# SPDX-License-Identifier: Apache-2.0
"""Whether this process can serve: the database answers and has the tables that this program knows."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr_api.db import schema
from vgpumgr_api.db.models import Installation
from vgpumgr_api.errors import Refusal


def check(session: Session) -> None:
    """Raises Refusal(DATABASE_OUTDATED) for other tables. `Database.run` raises DATABASE_BUSY if nothing answers."""
    found = schema.revision_at(session.connection())
    if found != schema.newest():
        raise Refusal(
            Code.DATABASE_OUTDATED,
            f"the database is at step {found}, this program needs {schema.newest()}; run: vgpumgr-api migrate",
        )
    session.scalars(select(Installation.epoch)).one()
