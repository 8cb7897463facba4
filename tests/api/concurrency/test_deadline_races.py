# SPDX-License-Identifier: Apache-2.0
"""A deadline that expires at the moment at which the awaited report arrives."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session
from vgpumgr_api.claims import deadlines
from vgpumgr_api.claims.deadline_settings import Deadlines
from vgpumgr_api.db.database import Database, now
from vgpumgr_api.db.observations import HostReport

from tests.api.concurrency.uncommitted import behind
from tests.api.world import Agent, World, absent
from vgpumgr.wire.resources import SliceState

pytestmark = pytest.mark.parametrize("engine_name", ["postgresql"])

LIMITS = Deadlines()


def silent_for_a_lease(session: Session) -> None:
    long_ago = now(session) - timedelta(seconds=2 * LIMITS.lease_s)
    session.execute(update(HostReport).values(reported_at=long_ago, lost_at=long_ago))


def within(session: Session, agent: Agent) -> Agent:
    """Returns the same host, which now reports inside this transaction."""
    database: Any = SimpleNamespace(run=lambda work, **_: work(session))
    return replace(agent, database=database)


def test_a_host_that_returns_when_its_lease_ends_keeps_what_is_attached(
    world: World, database: Database, url: str
) -> None:
    agent = world.host("one")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile())
    opened = absent(claimed.id, present=True, open=True)
    assert agent.report(slices=[opened])
    database.run(silent_for_a_lease)

    reported, _, _ = behind(
        database,
        url,
        lambda session: within(session, agent).report(slices=[opened]),
        lambda: database.run(lambda session: deadlines.ended_leases(session, LIMITS)),
    )

    assert reported is True
    found = world.slice(claimed.id)
    assert (found.state, found.state_reason) == (SliceState.ATTACHED, "")


def test_a_lease_that_ended_first_is_taken_back_by_the_report(world: World, database: Database, url: str) -> None:
    agent = world.host("one")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile())
    opened = absent(claimed.id, present=True, open=True)
    assert agent.report(slices=[opened])
    database.run(silent_for_a_lease)

    _, reported, waited = behind(
        database,
        url,
        lambda session: deadlines.ended_leases(session, LIMITS),
        lambda: agent.report(slices=[opened]),
    )

    assert (reported, waited) == (True, True)
    assert world.slice(claimed.id).state is SliceState.ATTACHED
