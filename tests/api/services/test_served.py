# SPDX-License-Identifier: Apache-2.0
"""After a migration, a process of the older release does nothing more, whatever it was doing."""

import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session
from vgpumgr_api.db import schema
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Tenant
from vgpumgr_api.errors import Refusal

from tests.api.services.refusals import refused
from tests.api.services.tables import FIRST
from vgpumgr.wire.problem import Code


@pytest.fixture
def old(old_url: str) -> Iterator[Database]:
    """The database as a process of the first release opens it."""
    served = Database(old_url, step=FIRST)
    yield served
    served.close()


def tenants(session: Session) -> list[str]:
    return list(session.scalars(select(Tenant.name)))


def migrate(url: str) -> None:
    own = Database(url)
    schema.upgrade(own)
    schema.require_current(own)
    own.close()


def test_it_serves_its_step_and_no_other(old: Database, old_url: str) -> None:
    assert old.run(tenants) == []
    migrate(old_url)
    for read_only in (False, True, False):
        with refused(Code.DATABASE_OUTDATED):
            old.run(tenants, read_only=read_only)
    present = Database(old_url, step=schema.newest())
    assert present.run(tenants) == []
    present.close()


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_what_it_was_at_is_not_done(old: Database, old_url: str) -> None:
    """SQLite would make the migration wait for the transaction."""
    at_work, go_on = threading.Event(), threading.Event()
    outcomes: list[object] = []

    def slow(session: Session) -> None:
        found = tenants(session)
        at_work.set()
        assert go_on.wait(30)
        found += tenants(session)

    def work() -> None:
        try:
            outcomes.append(old.run(slow))
        except Refusal as refusal:
            outcomes.append(refusal.code)

    working = threading.Thread(target=work)
    working.start()
    assert at_work.wait(30)
    migrate(old_url)
    go_on.set()
    working.join(30)
    assert outcomes == [Code.DATABASE_OUTDATED]


def test_a_migration_with_nothing_to_do_throws_nobody_out(old_url: str) -> None:
    migrate(old_url)
    present = Database(old_url, step=schema.newest())

    def work(session: Session) -> list[str]:
        if not present.is_sqlite:
            migrate(old_url)
        return tenants(session)

    assert present.run(work) == []
    present.close()
