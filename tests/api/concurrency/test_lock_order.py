# SPDX-License-Identifier: Apache-2.0
"""Two transactions that meet wait in one direction only, so the database aborts neither and none is repeated."""

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session
from vgpumgr_api.db.database import Database
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.fleet import agents, hosts
from vgpumgr_api.placement.obstacles import Wanted
from vgpumgr_api.placement.placement import take
from vgpumgr_api.resources.generations import bump

from tests.api.concurrency.uncommitted import behind
from tests.api.world import World
from vgpumgr.wire.fleet import Enroll

pytestmark = pytest.mark.parametrize("engine_name", ["postgresql"])


class Counted:
    """Counts how often each transaction was begun."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()

    def __call__(self, name: str, work: Callable[[Session], Any]) -> Callable[[Session], Any]:
        def counted(session: Session) -> Any:
            self.begun[name] += 1
            return work(session)

        return counted


def test_a_claim_on_a_gpu_and_one_of_what_is_held_there(world: World, database: Database, url: str) -> None:
    """The second claim needs no free room, so it takes no lock on free room. It may already hold a GPU that the first
    claim wants.
    """
    host = world.host("one")
    world.tenant("acme")
    profile = world.profile(share=250)
    held = world.reserve("acme", profile)
    wanted = Wanted(share_permille=profile.share_permille, mem_bytes=profile.mem_bytes)
    place, claimed, waited = behind(
        database,
        url,
        lambda session: take(session, wanted),
        lambda: world.claim("acme", profile, reservation=held.id),
    )
    assert not waited
    assert (place.host_id, claimed.host) == (host.host_id, "one")


def test_a_report_and_an_enrolment_of_the_same_host(world: World, database: Database, url: str) -> None:
    """A report locks its own row first and the host last; an enrolment does the same."""
    agent, counted = world.host("one"), Counted()
    token = world.run(hosts.reenroll, "one").enroll_token
    request = Enroll(agent_version="2", boot_id=uuid4())
    row = select(HostReport.host_id).where(HostReport.host_id == agent.host_id).with_for_update()
    _, enrolled, waited = behind(
        database,
        url,
        counted("report", lambda session: session.execute(row).all()),
        lambda: database.run(counted("enrolment", lambda session: agents.enroll(session, token, request))),
        then=lambda session: bump(session, [agent.host_id]),
    )
    assert waited
    assert enrolled.host_id == agent.host_id
    assert counted.begun == {"report": 1, "enrolment": 1}
