# SPDX-License-Identifier: Apache-2.0
"""Host reports that the ledger does not believe, or cannot attribute, leave a trace and no bill."""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import func, select
from vgpumgr_api.claims import claims
from vgpumgr_api.db import ledger
from vgpumgr_api.db.database import Database
from vgpumgr_api.fleet import gpus, hosts
from vgpumgr_api.fleet.inventory import GPUS_MAX
from vgpumgr_api.observe import figures
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.usage import books, metering, unbooked
from vgpumgr_api.usage.unbooked import LIMIT_NS, UnbookedFilter

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.services.test_metering import NOON, Told, entries
from tests.api.world import Agent, World, gpu
from vgpumgr.wire.common import MEM_BYTES_MAX
from vgpumgr.wire.problem import Code
from vgpumgr.wire.usage import Metered, UnbookedReason

HOUR_NS = 3600 * 10**9


@pytest.fixture
def agent(world: World) -> Agent:
    world.tenant("acme")
    world.tenant("blue")
    found = world.host("one")
    for tenant in ("acme", "blue"):
        world.claim(tenant, world.profile(share=100))
    return found


@pytest.fixture
def told(agent: Agent) -> Told:
    return Told(agent)


def kept(database: Database) -> list[tuple[str, str, int]]:
    """Returns reason, tenant and run_ns of what was not booked."""

    def read(session: Any) -> list[tuple[str, str, int]]:
        rows = session.scalars(select(ledger.Unbooked).order_by("hour", "tenant"))
        return [(row.reason, row.tenant, row.run_ns) for row in rows]

    return database.run(read, read_only=True)


def said(world: World) -> list[dict[str, Any]]:
    listed = world.events(size=1000).items
    return [one.detail for one in listed if one.kind == "host.usage_unbooked"]


def test_a_broken_meter_books_no_more_than_two_hours_of_an_hour(database: Database, world: World, told: Told) -> None:
    told.tell(told.reading(HOUR_NS))
    assert told.tell(told.reading(190 * 365 * 24 * HOUR_NS // 10**4)).revision == 2
    assert entries(database) == [(0, 0, "acme", HOUR_NS, HOUR_NS)]
    [(reason, tenant, run_ns)] = kept(database)
    assert (reason, tenant) == ("implausible", "acme")
    assert run_ns > LIMIT_NS


def test_neither_do_many_meters_or_tenants_together(database: Database, agent: Agent) -> None:
    for _ in range(4):
        meter = Told(agent)
        meter.tell(meter.reading(HOUR_NS), meter.reading(HOUR_NS, tenant="blue"))
    assert sum(row[3] for row in entries(database)) == LIMIT_NS
    assert [row[:2] for row in kept(database)] == [("implausible", "acme"), ("implausible", "blue")]


def test_neither_do_the_tenants_of_one_message(database: Database, told: Told) -> None:
    told.tell(told.reading(LIMIT_NS), told.reading(1, tenant="blue"))
    assert entries(database) == [(0, 0, "acme", LIMIT_NS, LIMIT_NS)]
    assert kept(database) == [("implausible", "blue", 1)]


def test_what_was_left_out_is_not_booked_with_what_comes_later(database: Database, told: Told) -> None:
    told.tell(told.reading(3 * HOUR_NS // 2))
    told.tell(told.reading(HOUR_NS, tenant="blue"))
    told.tell(told.reading(HOUR_NS + 600, tenant="blue"))
    assert [row[2:4] for row in entries(database)] == [("acme", 3 * HOUR_NS // 2), ("blue", 600)]
    assert kept(database) == [("implausible", "blue", HOUR_NS)]


def test_what_another_host_did_takes_nothing_from_a_gpu_of_the_same_address(
    database: Database, world: World, told: Told
) -> None:
    told.tell(told.reading(LIMIT_NS))
    other = Told(world.host("two"))
    world.claim("acme", world.profile(share=100), host="two")
    other.tell(other.reading(LIMIT_NS))
    assert sum(row[3] for row in entries(database)) == 2 * LIMIT_NS
    assert kept(database) == []


@pytest.mark.parametrize(
    ("name", "sign"), [("due_ns", 1), ("due_ns", -1), ("assured_ns", 1), ("throttled_ns", 1), ("reserved_ns", 1)]
)
def test_no_count_of_an_hour_is_larger_than_that(database: Database, told: Told, name: str, sign: int) -> None:
    told.tell(told.reading(1, **{name: sign * LIMIT_NS}))
    told.tell(told.reading(1, hour=NOON + 1, **{name: sign * (LIMIT_NS + 1)}))
    assert len(entries(database)) == 1
    assert [row[0] for row in kept(database)] == ["implausible"]


def test_an_hour_that_a_clock_lived_twice_is_booked(database: Database, told: Told) -> None:
    told.tell(told.reading(2 * HOUR_NS))
    assert entries(database) == [(0, 0, "acme", 2 * HOUR_NS, 2 * HOUR_NS)]
    assert kept(database) == []
    told.tell(told.reading(2 * HOUR_NS + 1))
    assert kept(database) == [("implausible", "acme", 2 * HOUR_NS + 1)]


def test_usage_of_a_name_without_a_claim_leaves_a_trace(
    database: Database, world: World, clock: Clock, told: Told
) -> None:
    for run_ns in (5, 7):
        told.tell(told.reading(run_ns, tenant="gone"))
    assert (kept(database), entries(database)) == ([("unattributed", "gone", 7)], [])
    [detail] = said(world)  # logged once, however often it is reported
    assert detail["first"]["tenant"] == "gone"
    shown = database.run(figures.figures, read_only=True).unbooked_s
    assert shown == {"unattributed": pytest.approx(7e-9)}
    clock.advance(10 * 24 * 3600)
    told.tell(told.reading(9, tenant="gone", hour=NOON + 240))
    world.run(books.forget_before, 1)
    assert kept(database) == [("unattributed", "gone", 9)]


def test_what_was_counted_before_the_first_claim_is_not_booked_with_what_comes_after_it(
    database: Database, world: World, told: Told
) -> None:
    world.tenant("green")
    told.tell(told.reading(500, tenant="green"), told.reading(40, tenant="green", hour=NOON - 1))
    told.tell(told.reading(600, tenant="green"))
    world.claim("green", world.profile(share=100))
    told.tell(told.reading(650, tenant="green"), told.reading(40, tenant="green", hour=NOON - 1))
    assert entries(database) == [(0, 0, "green", 50, 50)]
    before = [("unattributed", "green", 40), ("unattributed", "green", 600)]
    assert kept(database) == before
    told.again(told.sent)
    assert (entries(database), kept(database)) == ([(0, 0, "green", 50, 50)], before)


def test_who_has_left_a_gpu_pays_for_nothing_that_its_host_makes_up(
    database: Database, world: World, agent: Agent, told: Told, clock: Clock
) -> None:
    """A host's clock may be ahead of ours, and a message may be late."""
    clock.advance(3600)
    claimed = [one for one in world.run(claims.list_slices, PageRequest()).items if one.tenant == "acme"]
    for one in claimed:
        world.delete(one.id)
        assert agent.confirm_gone(one.id)
    clock.advance(10 * 3600)
    told.tell(*(told.reading(hours, hour=NOON + hours) for hours in range(1, 8)), told.reading(9, tenant="blue"))
    assert {(hour, tenant, run_ns) for hour, _, tenant, run_ns, _ in entries(database)} == {
        *((hours, "acme", hours) for hours in (1, 2, 3)),
        (0, "blue", 9),
    }
    assert kept(database) == [("unattributed", "acme", hours) for hours in (4, 5, 6, 7)]
    agent.report(desired=agent.desired())
    world.claim("acme", world.profile(share=100))
    told.tell(told.reading(50, hour=NOON + 11))
    assert (11, 0, "acme", 50, 50) in entries(database)


def test_a_name_that_cannot_be_stored_breaks_nothing(database: Database, told: Told) -> None:
    told.tell(told.reading(5, tenant="a\0b"), told.reading(6, tenant="a\0b"), told.reading(7))
    assert entries(database) == [(0, 0, "acme", 7, 7)]
    assert kept(database) == [("unattributed", "a?b", 6)]


def test_a_clock_that_is_ahead_leaves_its_trace_in_the_present_hour(world: World, told: Told) -> None:
    told.tell(told.reading(5, tenant="gone", hour=NOON + 9))
    [row] = world.run(unbooked.list_unbooked, PageRequest(), UnbookedFilter()).items
    assert (row.since, row.run_ns) == (books.EPOCH + NOON * books.HOUR, 5)


def test_who_sees_the_cloud_may_read_what_was_left_out(world: World, told: Told) -> None:
    told.tell(told.reading(5, tenant="gone"), told.reading(LIMIT_NS + 1), told.reading(6, tenant="lost", hour=NOON - 1))

    def listed(**wanted: Any) -> list[tuple[str, str, int]]:
        found = world.run(unbooked.list_unbooked, PageRequest(), UnbookedFilter(**wanted)).items
        return [(row.reason, row.tenant, row.run_ns) for row in found]

    noon = books.EPOCH + NOON * books.HOUR
    lost, gone = ("unattributed", "lost", 6), ("unattributed", "gone", 5)
    much = ("implausible", "acme", LIMIT_NS + 1)
    assert listed() == [lost, much, gone]
    assert (listed(since=noon), listed(until=noon)) == ([much, gone], [lost])
    assert listed(reason=UnbookedReason.IMPLAUSIBLE) == listed(tenant="acme") == [much]
    assert (listed(host="one"), listed(host="two")) == ([lost, much, gone], [])
    with refused(Code.PERMISSION_DENIED):
        world.run(unbooked.list_unbooked, PageRequest(), UnbookedFilter(), actor=world.tenant_actor("acme"))


def test_pages_of_what_was_left_out_have_each_row_once_the_earliest_hour_first(world: World, told: Told) -> None:
    told.tell(told.reading(1, tenant="x"))
    world.tenant("x")
    world.claim("x", world.profile(share=100), host="one")
    told.tell(told.reading(LIMIT_NS + 1, tenant="x"))
    others = [(told, 1), (told, 2), (Told(world.host("two")), 1)]
    for meter, hours in others:
        meter.tell(*(meter.reading(1, tenant=name, hour=NOON - hours) for name in ("y", "z")))
    found, token = [], ""
    while True:
        page = world.run(unbooked.list_unbooked, PageRequest(size=1, token=token), UnbookedFilter())
        found += [((row.since - books.EPOCH) // books.HOUR, row.host, row.tenant, row.reason) for row in page.items]
        token = page.next_page_token
        if not token:
            break
    of_nobody = [(NOON - hours, meter.agent.name, name, "unattributed") for meter, hours in others for name in "yz"]
    assert found == sorted([*of_nobody, *((NOON, "one", "x", reason) for reason in ("implausible", "unattributed"))])


def test_a_host_that_names_ever_other_gpus_fills_no_table(world: World, agent: Agent) -> None:
    claimed = {one.id for one in world.gpus()}
    for lot in range(3):
        agent.inventory = [gpu(f"{lot + 1:04x}:{number:02x}:00.0") for number in range(200)]
        assert agent.report()
    found = world.run(gpus.list_gpus, PageRequest(size=1000)).items
    assert len(found) <= GPUS_MAX
    assert claimed <= {one.id for one in found}  # these GPUs have slices
    assert sum(one.present for one in found) == 200
    agent.inventory = [gpu(f"{9:04x}:{number:02x}:00.0") for number in range(GPUS_MAX)]
    with refused(Code.FIELD_INVALID):
        agent.report()


def test_a_host_that_begins_ever_new_meters_fills_no_table(world: World, agent: Agent, clock: Clock) -> None:
    first = Told(agent)
    for meter in (first, *(Told(agent) for _ in range(63))):
        meter.tell(meter.reading(1))
    another = Told(agent)
    with refused(Code.RATE_EXCEEDED):
        another.tell(another.reading(1))
    assert first.tell(first.reading(2)).revision == 2  # existing meters continue
    other = Told(world.host("two"))
    assert other.tell().revision == 0  # other hosts can add meters too
    clock.advance(30 * 86400)
    with refused(Code.RATE_EXCEEDED):
        another.tell(another.reading(1), after=0)
    clock.advance(1)
    assert another.tell(another.reading(1), after=0).revision == another.newest


def test_a_host_that_counts_for_ever_other_names_fills_no_table(
    database: Database, world: World, told: Told, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is logged each hour; existing rows and other hosts continue."""
    monkeypatch.setattr(unbooked, "ROWS_MAX", 5)
    for lot in range(4):
        told.tell(*(told.reading(1, tenant=f"x{lot}{number}") for number in range(3)), told.reading(lot + 1))
        clock.advance(1800)
    assert [(each["rows"], each["full"]) for each in said(world)] == [(3, False), (3, True)]
    assert kept(database) == [("unattributed", name, 1) for name in ("x00", "x01", "x02", "x10", "x11")]
    told.tell(told.reading(2, tenant="x00"), told.reading(2, tenant="x12"))
    assert [run_ns for _, _, run_ns in kept(database)] == [2, 1, 1, 1, 1]
    other = Told(world.host("two"))
    other.tell(other.reading(1, tenant="y"))
    assert len(kept(database)) == 6
    assert [(each["rows"], each["full"]) for each in said(world)][2:] == [(1, True), (1, False)]
    assert sum(row[3] for row in entries(database)) == 4


def test_what_is_left_out_is_kept_for_three_months_at_most(database: Database, told: Told, clock: Clock) -> None:
    told.tell(told.reading(5, tenant="gone"))
    for days, left in ((92, 1), (1, 0)):
        clock.advance(days * 86400)
        database.run(books.forget_rows)
        assert len(kept(database)) == left


@pytest.mark.parametrize(("name", "sign"), [("assured_ns", 1), ("reserved_ns", 1), ("due_ns", -1)])
def test_no_count_of_all_meters_together_is_more_than_two_hours(
    database: Database, agent: Agent, name: str, sign: int
) -> None:
    for number in range(3):
        meter = Told(agent)
        tenant = ("acme", "blue")[number % 2]
        meter.tell(meter.reading(0, tenant=tenant, **{"due_ns": 0, name: sign**number * HOUR_NS}))
    assert [row[:2] for row in kept(database)] == [("implausible", "acme")]


def test_tenants_are_throttled_side_by_side(database: Database, agent: Agent) -> None:
    for number in range(4):
        meter = Told(agent)
        meter.tell(meter.reading(0, tenant=("acme", "blue")[number % 2], throttled_ns=HOUR_NS))
    assert kept(database) == []
    meter.tell(meter.reading(0, tenant="blue", throttled_ns=HOUR_NS + 1))
    assert [row[:2] for row in kept(database)] == [("implausible", "blue")]


def test_an_hour_that_is_told_anew_for_ever_fills_no_ledger(
    database: Database, told: Told, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unbooked, "CORRECTIONS_MAX", 3)
    for due_ns in (2, 1, 2, 1, 1):
        told.tell(told.reading(0, due_ns=due_ns))
        clock.advance(3600)
    assert (len(entries(database)), kept(database)) == (3, [])  # known values may be repeated for ever
    told.tell(told.reading(0, due_ns=2))
    clock.advance(3600)
    assert len(entries(database)) == 3
    assert [row[:2] for row in kept(database)] == [("implausible", "acme")]
    told.tell(told.reading(7, hour=NOON + 6))
    assert entries(database)[-1] == (6, 0, "acme", 7, 7)


def test_a_host_that_counts_in_ever_other_hours_fills_no_table(
    database: Database, agent: Agent, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count that may have been booked already is not booked, whatever its hour. The limit is for all meters of a host
    together.
    """
    monkeypatch.setattr(metering, "COUNTS_MAX", 3)
    told.tell(*(told.reading(1, hour=hour) for hour in (0, NOON + 10**6)))
    another = Told(agent)
    another.tell(*(another.reading(1, tenant="blue", hour=hour) for hour in (5, 6, 7)))
    told.tell(told.reading(4, hour=0), told.reading(9, hour=1))
    assert entries(database) == [(0, 0, "acme", 5, 5), (0, 0, "blue", 1, 1)]
    assert kept(database) == [("implausible", "acme", 9), ("implausible", "blue", 1), ("implausible", "blue", 1)]
    counts = select(func.count()).select_from(ledger.MeterCount)
    assert database.run(lambda session: session.scalar(counts), read_only=True) == 3


def test_what_a_taken_over_host_made_up_is_in_nobodys_way_once_it_is_enrolled_anew(
    world: World, agent: Agent, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metering, "COUNTS_MAX", 100)
    monkeypatch.setattr(metering, "METERS_MAX", 2)
    for _ in range(2):
        liar = Told(agent)
        liar.tell(*(liar.reading(1, tenant=f"x{number}") for number in range(60)))
    clock.advance(1)
    agent = world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token)
    told = Told(agent)
    told.tell(told.reading(5))
    assert entries(world.database) == [(0, 0, "acme", 5, 5)]


def test_counts_of_a_meter_that_was_lost_are_forgotten(
    database: Database, agent: Agent, told: Told, clock: Clock
) -> None:
    """A meter that returns starts again, because its counts may be booked already."""
    told.tell(told.reading(5), told.reading(6, hour=NOON + 10**6))
    clock.advance(86400)
    another = Told(agent)
    another.tell(another.reading(1, hour=NOON + 24))

    def counts() -> set[UUID]:
        while database.run(books.forget_counts):
            pass
        return set(database.run(lambda session: session.scalars(select(ledger.MeterCount.meter_id)).all()))

    clock.advance(29 * 86400)
    assert counts() == {told.meter_id, another.meter_id}
    clock.advance(1)
    assert counts() == {another.meter_id}
    assert told.tell(told.reading(6), after=0) == Metered(revision=0, restart=True)
    assert sum(row[3] for row in entries(database)) == 12


def test_a_silent_meter_stays_where_there_is_no_other(database: Database, told: Told, clock: Clock) -> None:
    told.tell(told.reading(5))
    clock.advance(100 * 86400)
    database.run(books.forget_counts)
    told.tell(told.reading(7))
    assert sum(row[3] for row in entries(database)) == 7


def test_of_an_hour_with_ever_so_many_names_only_those_that_are_told_are_looked_at(
    database: Database, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    told.tell(*(told.reading(1, tenant=f"x{number}") for number in range(50)))
    found: list[int] = []
    looked = metering._counted

    def counted(*asked: Any) -> Any:
        known = looked(*asked)
        found.append(len(known))
        return known

    monkeypatch.setattr(metering, "_counted", counted)
    told.tell(told.reading(2, tenant="x7"), told.reading(1))
    assert found == [1]
    assert [run_ns for _, name, run_ns in kept(database) if name == "x7"] == [2]


def test_memory_that_no_gpu_has_breaks_no_sum(world: World, agent: Agent) -> None:
    agent.inventory = [gpu(f"0000:{number:02x}:00.0", mem_bytes=(1 << 63) - 1) for number in range(3)]
    assert agent.report()
    shown = world.database.run(figures.figures, read_only=True)
    assert shown.capacity["mem_bytes"] == 3 * MEM_BYTES_MAX
