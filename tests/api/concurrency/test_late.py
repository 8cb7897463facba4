# SPDX-License-Identifier: Apache-2.0
"""A transaction that loses a race when its time is up: the client is told to retry, not that the API is broken."""

from uuid import uuid4

import pytest
from sqlalchemy.orm import Session
from vgpumgr_api.db import database as database_module
from vgpumgr_api.db import models
from vgpumgr_api.db.database import Database, now

from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.problem import Code


def test_a_collision_after_a_long_wait_is_answered_with_busy(
    world: World, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conflict occurs as if the other tenant of that name had blocked this transaction for the whole time limit."""
    taken = world.tenant()

    def collide(session: Session) -> None:
        session.add(models.Tenant(id=uuid4(), name=taken.name, generation=1, created_at=now(session)))

    monkeypatch.setattr(database_module, "WAIT_S", 0)
    with refused(Code.DATABASE_BUSY):
        database.run(collide)
