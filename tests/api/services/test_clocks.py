# SPDX-License-Identifier: Apache-2.0
"""Replicas on machines with different clocks, and a clock that jumps."""

import logging
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from vgpumgr_api.db.clock import FRESH_S, ServerClock
from vgpumgr_api.db.database import Database, now
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.fleet import fencing, heartbeats, hosts
from vgpumgr_api.installation import liveness
from vgpumgr_api.usage import books
from vgpumgr_api.usage.ledger_list import list_ledger
from vgpumgr_api.usage.ledger_scope import LedgerFilter

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import PageRequest, World
from vgpumgr.wire.fleet import Heartbeat
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostFence

HOUR_S, DAY_S = 3600, 86400


class Machine:
    """A replica's machine: `clock` is its wall clock, `boot_s` its monotonic clock."""

    def __init__(self, *, ahead: timedelta = timedelta(0)) -> None:
        self.ahead = ahead
        self.boot_s = 1000.0

    def clock(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def replica(self, url: str) -> Database:
        made = Database(url)
        assert made.server_clock is not None
        made.server_clock = made.clock = ServerClock(self.clock, lambda: self.boot_s)
        return made


@pytest.fixture
def server_url(database_url: str, engine_name: str) -> str:
    if engine_name == "sqlite":
        pytest.skip("all replicas of SQLite have one machine")
    return database_url


def test_a_replica_takes_the_time_from_the_database(server_url: str, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(ahead=timedelta(days=365))
    replica = machine.replica(server_url)
    with caplog.at_level(logging.INFO, "vgpumgr_api.clock"):
        first = replica.run(now)
        assert abs(first - datetime.now(UTC)) < timedelta(minutes=5)
        machine.boot_s += FRESH_S
        assert replica.run(now) == first + timedelta(seconds=FRESH_S)
        machine.boot_s += 1
        machine.ahead = timedelta(0)
        assert replica.run(now) < first + timedelta(minutes=5)
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]
    replica.close()


def test_a_replica_that_is_ahead_fences_no_host_that_lives(server_url: str) -> None:
    right = Database(server_url)
    world = World(right)
    world.host("host-a").report()
    replica = Machine(ahead=timedelta(seconds=120)).replica(server_url)
    generation = world.run(hosts.get_host, "host-a").generation
    with refused(Code.HOST_ONLINE):
        World(replica).run(fencing.fence_host, "host-a", HostFence(confirm="host-a"), if_match=generation)
    right.close()
    replica.close()


def test_a_host_was_not_heard_of_earlier_than_is_known(world: World, clock: Clock) -> None:
    host = world.host("host-a")
    host.report()

    def reported_at() -> datetime | None:
        return world.database.run(lambda session: session.scalar(select(HostReport.reported_at)))

    def say() -> None:
        beat = Heartbeat(boot_id=host.boot_id, agent_epoch=host.agent_epoch, seq=host.seq)
        source = heartbeats.source_of(host.actor, host.host_id)
        assert world.database.run(lambda session: heartbeats.note(session, {source: beat}))

    for speak in (host.report, say):
        known = reported_at()
        assert known is not None
        clock.advance(-90)
        speak()
        assert reported_at() == known
        clock.advance(-2 * HOUR_S)
        speak()
        assert reported_at() == clock.now  # the clock was wrong before
        clock.advance(3 * HOUR_S)
        speak()
        assert reported_at() == clock.now


def beat(world: World) -> None:
    world.database.run(liveness.beat)


def live(world: World, clock: Clock, seconds: int) -> None:
    for _ in range(0, seconds, 50):
        clock.advance(50)
        beat(world)


def tend(world: World) -> books.State:
    def work(session):  # type: ignore[no-untyped-def]
        books.tend(session, kept_days=90)
        return books.state(session)

    return world.database.run(work)  # type: ignore[no-any-return]


def test_a_clock_that_leaps_closes_and_forgets_nothing(world: World, clock: Clock) -> None:
    host = world.host("host-a")
    world.tenant("blue")
    profile = world.profile(share=250)
    began = clock.now
    beat(world)
    live(world, clock, 2 * HOUR_S)
    host.report()
    world.claim("blue", profile)
    live(world, clock, HOUR_S)
    host.report()
    before = tend(world)
    assert before.closed_before == books.hour_of(clock.now - books.CLOSE_AFTER)
    assert before.kept_from == books.EPOCH  # a day has not passed

    clock.advance(365 * DAY_S)
    beat(world)
    assert tend(world) == before
    clock.advance(-365 * DAY_S)
    beat(world)
    assert tend(world) == before
    claimed = world.claim("blue", profile)
    wanted = LedgerFilter(since=books.hour_of(began), until=books.hour_of(clock.now) + books.HOUR)
    rows = world.run(list_ledger, PageRequest(), wanted).items
    assert [row.tenant for row in rows] == ["blue"]
    assert claimed.state == "claimed"


def test_time_that_has_passed_is_believed_after_a_while(world: World, clock: Clock) -> None:
    beat(world)
    live(world, clock, HOUR_S)
    before = tend(world).closed_before
    clock.advance(20 * DAY_S)  # the API was switched off
    beat(world)
    assert tend(world).closed_before == before
    live(world, clock, HOUR_S)
    assert tend(world).closed_before == books.hour_of(clock.now - books.CLOSE_AFTER)
    assert tend(world).kept_from == books.EPOCH
    live(world, clock, DAY_S)
    midnight = clock.now.replace(hour=0, minute=0)
    assert tend(world).kept_from == midnight.replace(second=0) - timedelta(days=90)


def test_the_api_is_not_alive_between_a_gap_and_its_next_beat(world: World, clock: Clock) -> None:
    """The first action after a pause of the API does not rely on the beat before the pause."""
    beat(world)
    live(world, clock, 600)
    clock.advance(liveness.GAP.total_seconds())
    assert world.database.run(liveness.alive_for) == timedelta(seconds=660)
    clock.advance(1)
    assert world.database.run(liveness.alive_for) == timedelta(0)


def test_the_api_is_alive_anew_when_a_clock_was_put_right(world: World, clock: Clock) -> None:
    beat(world)
    clock.advance(365 * DAY_S)
    beat(world)
    clock.advance(-365 * DAY_S)
    beat(world)
    live(world, clock, 600)
    assert world.database.run(liveness.alive_for) == timedelta(seconds=600)
