# SPDX-License-Identifier: Apache-2.0
"""Meters' counts are booked once, in their hour; a closed hour gets only corrections."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from vgpumgr_api.actors import local_operator
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import Database
from vgpumgr_api.fleet import hosts
from vgpumgr_api.usage import books, metering

from tests.api.conftest import Clock
from tests.api.services.hearing import hearing
from tests.api.services.refusals import refused
from tests.api.world import ADDRESS, Agent, World
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostCreate
from vgpumgr.wire.usage import Metered, Reading, Readings

NOON = int(datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()) // 3600
HOUR = timedelta(hours=1)


class Told:
    """A meter in its host's messages; every change has the next revision."""

    def __init__(self, agent: Agent, meter_id: UUID | None = None) -> None:
        self.agent = agent
        self.meter_id = meter_id or uuid4()
        self.newest = 0
        self.sent: Readings | None = None

    def reading(self, run_ns: int, *, tenant: str = "acme", hour: int = NOON, **members: Any) -> Reading:
        self.newest += 1
        said: dict[str, Any] = {"due_ns": run_ns, "assured_ns": 0, "throttled_ns": 0, "reserved_ns": 0}
        said |= {"gpu": ADDRESS, "revision": self.newest} | members
        return Reading(hour=hour, tenant=tenant, run_ns=run_ns, **said)

    def tell(self, *readings: Reading, after: int | None = None, **members: Any) -> Metered:
        said: dict[str, Any] = {"meter_id": self.meter_id, "through": self.newest, "newest": self.newest}
        least = min((reading.revision for reading in readings), default=self.newest + 1) - 1
        said |= {"after": least if after is None else after, "readings": list(readings)}
        self.sent = Readings(**(said | members))
        return self.again(self.sent)

    def again(self, readings: Readings | None) -> Metered:
        assert readings is not None
        actor, database = self.agent.actor, self.agent.database
        return database.run(lambda session: metering.meter(session, actor, self.agent.name, readings))


def entries(database: Database) -> list[tuple[int, int, str, int, int]]:
    """Returns the hour, the delay in hours until it was booked, tenant, run_ns and due_ns."""

    def read(session: Any) -> list[tuple[int, int, str, int, int]]:
        rows = session.scalars(select(ledger.LedgerEntry).order_by("hour", "tenant", "booked"))
        return [
            (
                int(row.hour.timestamp()) // 3600 - NOON,
                (row.booked - row.hour) // HOUR,
                row.tenant,
                row.run_ns,
                row.due_ns,
            )
            for row in rows
        ]

    return database.run(read, read_only=True)


@pytest.fixture
def agent(world: World) -> Agent:
    world.tenant("acme")
    found = world.host("one")
    world.claim("acme", world.profile())
    return found


@pytest.fixture
def told(agent: Agent) -> Told:
    return Told(agent)


def test_growth_is_booked_once_whatever_is_repeated(database: Database, told: Told) -> None:
    assert told.tell(told.reading(100)) == Metered(revision=1)
    first = told.sent
    told.again(first)
    assert told.tell(told.reading(250, due_ns=240)).revision == 2
    told.again(first)
    told.again(told.sent)
    assert entries(database) == [(0, 0, "acme", 250, 240)]


def test_what_is_due_goes_both_ways_and_counts_never_back(database: Database, told: Told) -> None:
    told.tell(told.reading(100, due_ns=140))
    told.tell(told.reading(90, due_ns=95))
    assert entries(database) == [(0, 0, "acme", 100, 95)]


def test_what_is_booked_is_not_booked_anew_under_an_old_revision(database: Database, told: Told) -> None:
    told.tell(told.reading(100, due_ns=140))
    first = told.sent
    assert first is not None
    told.tell(told.reading(120, due_ns=95))
    assert told.again(first.model_copy(update={"through": 2, "newest": 2})).revision == 2
    assert entries(database) == [(0, 0, "acme", 120, 95)]


def test_of_an_hour_that_is_told_twice_at_once_the_later_counts(database: Database, told: Told) -> None:
    first, second = told.reading(100, due_ns=140), told.reading(120, due_ns=95)
    told.tell(second, first)
    assert entries(database) == [(0, 0, "acme", 120, 95)]


def test_a_lost_message_leaves_a_gap_that_is_asked_for(database: Database, told: Told) -> None:
    lost = told.reading(100)
    assert told.tell(told.reading(5, hour=NOON - 1), after=1) == Metered(revision=0)
    assert entries(database) == []
    assert told.tell(lost, told.reading(107)).revision == 3
    assert entries(database) == [(0, 0, "acme", 107, 107)]


def test_a_part_is_booked_up_to_its_end(database: Database, told: Told) -> None:
    first, second = told.reading(100), told.reading(10, hour=NOON - 1)
    assert told.tell(first, second, through=1).revision == 1
    assert entries(database) == [(0, 0, "acme", 100, 100)]
    assert told.tell(second, after=1).revision == 2
    assert told.tell(first, through=1).revision == 2
    assert entries(database) == [(0, 0, "acme", 110, 110)]  # use before the first claim is not possible


def test_an_hour_is_closed_a_while_after_its_end_and_then_gets_corrections(
    database: Database, told: Told, clock: Clock
) -> None:
    told.tell(told.reading(100))
    clock.advance(3600 + 15 * 60 - 1)
    told.tell(told.reading(110))
    clock.advance(1)
    told.tell(told.reading(125))
    told.tell(told.reading(126), told.reading(3, hour=NOON + 1))
    clock.advance(7200)
    told.tell(told.reading(130))
    assert entries(database) == [
        (0, 0, "acme", 110, 110),
        (0, 1, "acme", 16, 16),
        (0, 3, "acme", 4, 4),
        (1, 0, "acme", 3, 3),
    ]


def test_a_clock_that_was_put_back_books_into_no_closed_hour(database: Database, told: Told, clock: Clock) -> None:
    told.tell(told.reading(100))
    clock.advance(3 * 3600)
    told.tell(told.reading(103))
    clock.advance(-2 * 3600 - 1800)
    told.tell(told.reading(110))
    assert entries(database) == [(0, 0, "acme", 100, 100), (0, 2, "acme", 7, 7), (0, 3, "acme", 3, 3)]


def test_the_database_itself_keeps_closed_hours(database: Database, told: Told, clock: Clock) -> None:
    told.tell(told.reading(100))

    def refuse(statement: str) -> None:
        with pytest.raises(IntegrityError), database.engine.begin() as connection:
            connection.execute(text(statement))

    with database.engine.begin() as connection:
        connection.execute(text("UPDATE usage_ledger SET run_ns = 100"))
    clock.advance(2 * 3600)
    told.tell()
    told.tell(told.reading(1, hour=NOON + 2))
    refuse("UPDATE usage_ledger SET run_ns = 99 WHERE run_ns = 100")
    refuse("UPDATE usage_ledger SET tenant = 'x', host = 'y' WHERE run_ns = 1")
    refuse("DELETE FROM usage_ledger WHERE run_ns = 1")
    refuse("DELETE FROM grants")
    refuse("UPDATE grants SET mem_bytes = 1")
    refuse("UPDATE grants SET deleted_at = started_at")
    refuse("UPDATE usage_books SET closed_before = '2020-01-01 00:00:00'")
    refuse("DELETE FROM usage_books")
    assert entries(database) == [(0, 0, "acme", 100, 100), (2, 0, "acme", 1, 1)]


def test_a_wrong_clock_of_a_host_bills_neither_the_past_nor_the_future(database: Database, told: Told) -> None:
    told.tell(told.reading(10, hour=0), told.reading(20, hour=NOON + 9000), told.reading(40, hour=100_000_000))
    assert entries(database) == [(0, 0, "acme", 70, 70)]


def test_nothing_is_booked_after_the_present_hour_also_if_the_claim_was(
    database: Database, told: Told, clock: Clock
) -> None:
    clock.advance(-2 * 3600)
    told.tell(told.reading(10, hour=NOON - 2))
    assert entries(database) == [(-2, 0, "acme", 10, 10)]


def test_a_restored_ledger_gets_again_what_it_lacks(database: Database, told: Told) -> None:
    """The ledger's revision is behind, so the meter reports everything from there on."""
    told.tell(told.reading(100))
    old = told.newest
    newest = told.reading(300)
    assert told.tell(newest, after=old + 5, newest=old + 9).revision == old
    assert told.tell(newest, after=old).revision == newest.revision
    assert entries(database) == [(0, 0, "acme", 300, 300)]


def test_a_meter_that_was_put_back_begins_anew(database: Database, told: Told) -> None:
    told.tell(told.reading(100), told.reading(200))
    told.newest = 0
    assert told.tell(told.reading(50)).restart
    again = Told(told.agent)
    again.tell(again.reading(30))
    assert entries(database) == [(0, 0, "acme", 230, 230)]


def test_a_meter_is_one_hosts_and_goes_with_its_machine(world: World, database: Database, told: Told) -> None:
    told.tell(told.reading(100))
    other = Told(world.host("two"), told.meter_id)
    other.newest = 1
    assert other.tell(other.reading(900)).restart
    assert entries(database) == [(0, 0, "acme", 100, 100)]
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE meters SET host_id = :id"), {"id": uuid4().hex})
    assert other.tell(other.reading(900), after=1) == Metered(revision=3)


def test_a_host_tells_of_itself_only_and_not_once_it_is_fenced(world: World, database: Database, told: Told) -> None:
    stranger = Told(world.host("two"))
    stranger.agent.name = "one"
    with refused(Code.OBJECT_UNKNOWN):
        stranger.tell(stranger.reading(5))
    from vgpumgr_api.fleet import fencing

    from vgpumgr.wire.resources import HostFence

    generation = world.run(hosts.get_host, "one").generation
    world.run(fencing.fence_host, "one", HostFence(confirm="one", force=True), if_match=generation)
    with refused(Code.HOST_FENCED):
        told.tell(told.reading(5))
    assert entries(database) == []


def test_names_that_nobody_had_are_not_booked_and_hold_nothing_up(database: Database, told: Told) -> None:
    told.tell(told.reading(5, tenant="nobody"), told.reading(6, tenant="ev\0il"), told.reading(7))
    assert entries(database) == [(0, 0, "acme", 7, 7)]


def test_a_tenant_pays_nothing_where_it_has_no_claim(world: World, database: Database, told: Told) -> None:
    told.tell(told.reading(5, gpu="0000:00:20.0"))
    other = Told(world.host("two"))
    other.tell(other.reading(6))
    assert entries(database) == []


def test_a_tenant_pays_nothing_for_one_that_had_its_name(world: World, database: Database, clock: Clock) -> None:
    from vgpumgr_api.tenancy import tenants

    agent = world.host("one")
    told, profile = Told(agent), world.profile()
    owners = []
    for _ in range(2):
        agent.report()
        owners.append(world.tenant("acme").id)
        claimed = world.claim("acme", profile)
        clock.advance(3600)
        world.delete(claimed.id)
        agent.confirm_gone(claimed.id)
        world.run(tenants.delete_tenant, "acme", if_match=None)
        clock.advance(3600)
    told.tell(told.reading(11, hour=NOON), told.reading(22, hour=NOON + 2))

    def whose(session: Any) -> dict[int, UUID]:
        return {row.run_ns: row.tenant_id for row in session.scalars(select(ledger.LedgerEntry))}

    assert database.run(whose) == {11: owners[0], 22: owners[1]}


def test_what_is_older_than_is_kept_goes_and_stays_away(
    world: World, database: Database, told: Told, clock: Clock
) -> None:
    told.tell(told.reading(100))
    clock.advance(40 * 86400)
    told.tell(told.reading(3, hour=NOON + 960))
    system = local_operator("system:usage")
    assert world.run(books.forget_before, 30, actor=system) == datetime(2026, 12, 1, tzinfo=UTC)
    told.tell(told.reading(105))
    assert entries(database) == [(960, 0, "acme", 3, 3)]
    told.tell(told.reading(1, hour=NOON + 227), told.reading(2, hour=NOON + 228))
    assert entries(database) == [(228, 732, "acme", 2, 2), (960, 0, "acme", 3, 3)]  # kept from that midnight on
    world.run(books.forget_before, 300, actor=system)
    assert database.run(books.state).kept_from == datetime(2026, 12, 1, tzinfo=UTC)
    database.run(books.forget_counts)
    assert told.tell(told.reading(4, hour=NOON + 960)).revision == told.newest
    assert entries(database) == [(228, 732, "acme", 2, 2), (960, 0, "acme", 4, 4)]


def test_a_dead_clock_of_a_host_loses_nothing_once_the_first_claim_is_forgotten(
    world: World, database: Database, told: Told, clock: Clock
) -> None:
    clock.advance(100 * 86400)
    kept_from = world.run(books.forget_before, 62, actor=local_operator("system:usage"))
    assert told.tell(told.reading(7, hour=10)).revision == told.newest
    [(hour, _, tenant, run_ns, _)] = entries(database)
    assert (NOON + hour, tenant, run_ns) == (int(kept_from.timestamp()) // 3600, "acme", 7)


@pytest.mark.parametrize("hour", [10, NOON + 1])
def test_a_clock_that_stays_wrong_has_nothing_booked_twice(
    database: Database, told: Told, clock: Clock, hour: int
) -> None:
    """The meter keeps counting in such an hour, however old the hour is for the API."""
    clock.advance(50 * 86400)
    for number in range(1, 6):
        clock.advance(60)
        told.tell(told.reading(10 * number, hour=hour))
        told.tell()
        database.run(books.forget_counts)
    assert sum(run_ns for _, _, _, run_ns, _ in entries(database)) == 50


def test_what_a_wrong_clock_counted_is_forgotten_once_it_is_right(database: Database, told: Told, clock: Clock) -> None:
    clock.advance(50 * 86400)
    told.tell(told.reading(10, hour=10))
    told.tell(told.reading(1, hour=NOON + 50 * 24))
    database.run(books.forget_counts)
    hours = database.run(lambda session: session.scalars(select(ledger.MeterCount.hour)).all())
    assert hours == [NOON + 50 * 24]


def test_what_is_told_too_late_to_be_booked_is_put_aside(
    world: World, database: Database, told: Told, clock: Clock
) -> None:
    told.tell(told.reading(100))
    clock.advance(100 * 86400)
    world.run(books.forget_before, 62, actor=local_operator("system:usage"))
    assert told.tell(told.reading(107), told.reading(5, hour=NOON + 9)).revision == told.newest

    def aside() -> list[tuple[int, str]]:
        return database.run(
            lambda session: [
                (each.run_ns, each.reason) for each in session.scalars(select(ledger.Unbooked).order_by("hour"))
            ]
        )

    assert aside() == [(107, "implausible"), (5, "implausible")]
    database.run(books.forget_rows)
    assert aside() == []
    told.tell(told.reading(107))
    assert (aside(), entries(database)) == ([], [])


@pytest.mark.parametrize(("days", "whole"), [(10, True), (40, False)])
def test_what_was_counted_is_known_while_a_host_may_tell_of_it_again(
    database: Database, told: Told, clock: Clock, days: int, whole: bool
) -> None:
    """The API keeps counts for ten days after a complete report, and longer until there is one."""
    told.tell(told.reading(100))
    clock.advance(days * 86400)
    told.tell(told.reading(1, hour=NOON + 24 * days), newest=told.newest + (0 if whole else 1))
    database.run(books.forget_counts)
    told.tell(told.reading(107))
    assert sum(run_ns for hour, _, _, run_ns, _ in entries(database) if hour == 0) == 107


def test_a_host_that_was_made_anew_counts_on(world: World, database: Database, told: Told) -> None:
    assert told.tell() == Metered(revision=0)
    world.run(hosts.create_host, HostCreate(name="three"))
    assert told.tell(told.reading(9)).revision == 1
    assert entries(database) == [(0, 0, "acme", 9, 9)]


@pytest.mark.usefixtures("database_url")  # new pages, because the test counts pages
def test_booking_looks_at_the_first_claim_of_each_tenant_and_at_no_other(agent: Agent) -> None:
    """A host accumulates old claims, and each message read all of them."""
    if agent.database.is_sqlite:  # uses the same index
        return
    told, claims = Told(agent), 30_000

    def crowd(session: Session) -> None:
        for host, later in (("one", 0), ("other", claims)):
            session.execute(
                text(
                    "INSERT INTO grants SELECT gen_random_uuid(), gen_random_uuid(), account_id, account, tenant_id,"
                    " tenant, :host, gpu, share_permille, mem_bytes, started_at + n * interval '1 s',"
                    " started_at + (:later + n) * interval '2 s', started_at + (:later + n) * interval '2 s'"
                    " FROM grants, generate_series(1, :claims) n WHERE ended_at IS NULL"
                ),
                {"host": host, "later": later, "claims": claims},
            )

    agent.database.run(crowd)
    explained: list[int] = []

    def explain(connection: Any, _cursor: Any, statement: str, asked: Any, *_: Any) -> None:
        if not statement.startswith("WITH RECURSIVE"):
            return
        with connection.connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", asked)
            ((plan,),) = cursor.fetchall()
        explained.append(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])

    with agent.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE grants"))
    with hearing(agent.database.engine, "before_cursor_execute", explain):
        told.tell(told.reading(5))
    assert len(explained) == 1
    assert explained[0] < 40, "pages"
    assert entries(agent.database) == [(0, 0, "acme", 5, 5)]
