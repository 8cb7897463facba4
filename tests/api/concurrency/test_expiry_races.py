# SPDX-License-Identifier: Apache-2.0
"""Expired reservations while other transactions lock what the expiry would give back."""

from collections import Counter

import pytest
from sqlalchemy import ExceptionContext, select, text
from sqlalchemy.orm import Session
from vgpumgr_api.claims import reservations
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.models import Gpu, Host
from vgpumgr_api.resources.lookup import tenant_named
from vgpumgr_api.tenancy import quotas

from tests.api.concurrency.audit import Audit
from tests.api.concurrency.uncommitted import behind
from tests.api.conftest import Clock
from tests.api.services.hearing import hearing
from tests.api.world import World

pytestmark = pytest.mark.parametrize("engine_name", ["postgresql"])

ACCOUNT, FIRST, LATER = "acme", "web", "blue"


LOCKS = pytest.mark.parametrize("locked", ["project", "account", "gpu"])


@pytest.fixture
def expired(world: World, clock: Clock) -> None:
    """An expired reservation of a project on one host; another tenant's, on another host, expired later."""
    profile = world.profile(share=200)
    world.tenant(ACCOUNT)
    for name, account in ((FIRST, ACCOUNT), (LATER, None)):
        world.host(name)
        world.tenant(name, account=account)
        clock.advance(1)
        world.reserve(name, profile, expires_in_s=60, host=name)
    clock.advance(60)


def lock(session: Session, what: str, of: str = FIRST) -> None:
    """Locks what a reservation gives back: a GPU or a quota."""
    if what == "gpu":
        host = select(Host.id).where(Host.name == of).scalar_subquery()
        assert session.scalars(select(Gpu.id).where(Gpu.host_id == host).with_for_update()).all()
        return
    owner = tenant_named(session, {"project": of, "account": ACCOUNT}[what])
    assert quotas.lock_owners(session, [(owner, what)])


def impatient(session: Session) -> bool:
    """Ends one expired reservation, with a short limit for waiting on locks."""
    session.execute(text("SET LOCAL lock_timeout = 10"))
    return reservations.expire(session)


def slices(world: World) -> dict[str, int]:
    return {name: world.quota(name).used_slices for name in (FIRST, LATER)}


@LOCKS
@pytest.mark.usefixtures("expired")
def test_what_another_has_locked_keeps_no_later_one_from_its_end(
    world: World, database: Database, url: str, locked: str
) -> None:
    _, ended, waited = behind(
        database, url, lambda session: lock(session, locked), lambda: database.run(reservations.expire)
    )
    assert (ended, waited) == (True, False)
    assert slices(world) == {FIRST: 1, LATER: 0}
    assert Audit(url).violations() == []


@LOCKS
@pytest.mark.usefixtures("expired")
def test_if_there_is_nothing_else_it_is_waited_for_as_claims_wait(
    world: World, database: Database, url: str, locked: str
) -> None:
    """Another transaction may hold the lock that the expiry waits for, and want a lock that the expiry took before it
    skipped that reservation.
    """
    counted, order = Counter[str](), ["account", "project", "gpu"]
    with Session(database.engine) as holding, holding.begin():
        lock(holding, "gpu")
        assert database.run(reservations.expire)
    assert slices(world) == {FIRST: 1, LATER: 0}

    def first(session: Session) -> None:
        counted["first"] += 1
        lock(session, locked)

    def then(session: Session) -> None:
        for each in order[order.index(locked) + 1 :]:
            lock(session, each)

    def late(session: Session) -> bool:
        counted["late"] += 1
        return reservations.expire(session)

    _, ended, waited = behind(database, url, first, lambda: database.run(late), then=then)
    assert (ended, waited) == (True, True)
    assert counted == {"first": 1, "late": 1}
    assert slices(world) == {FIRST: 0, LATER: 0}
    assert Audit(url).violations() == []


@LOCKS
@pytest.mark.usefixtures("expired")
def test_one_that_stays_locked_is_left_for_another_time(world: World, database: Database, locked: str) -> None:
    with Session(database.engine) as holding, holding.begin():
        lock(holding, locked)
        assert database.run(impatient)
        assert not database.run(impatient)
    assert slices(world) == {FIRST: 1, LATER: 0}
    assert database.run(reservations.expire)
    assert slices(world) == {FIRST: 0, LATER: 0}


@LOCKS
@pytest.mark.parametrize("briefly", ["project", "gpu"])
@pytest.mark.usefixtures("expired")
def test_one_that_stays_locked_keeps_none_from_its_end_that_was_locked_meanwhile(
    world: World, database: Database, locked: str, briefly: str
) -> None:
    gave_up = []
    with Session(database.engine) as staying, staying.begin(), Session(database.engine) as passing, passing.begin():
        lock(staying, locked)
        lock(passing, briefly, LATER)

        def let_go(context: ExceptionContext) -> None:
            gave_up.append(context.original_exception)
            passing.commit()

        with hearing(database.engine, "handle_error", let_go):
            assert database.run(impatient)
    assert len(gave_up) == 1, "for the first alone it is waited"
    assert slices(world) == {FIRST: 1, LATER: 0}
