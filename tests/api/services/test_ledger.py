# SPDX-License-Identifier: Apache-2.0
"""What may be read of the ledger: grants and counts, by time and party, each by its owner."""

import random
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy
from sqlalchemy.orm import ORMExecuteState, Session
from vgpumgr_api.actors import Actor, local_operator
from vgpumgr_api.db import ledger
from vgpumgr_api.fleet import fencing, hosts
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.usage import books, grants, ledger_list
from vgpumgr_api.usage.ledger_scope import LedgerFilter

from tests.api.conftest import Clock
from tests.api.services.hearing import hearing
from tests.api.services.refusals import refused
from tests.api.services.test_metering import NOON, Told
from tests.api.world import ADDRESS, GIB, World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostFence
from vgpumgr.wire.usage import By, Grant, Granularity, LedgerRow

H = timedelta(hours=1)
S = 1_000_000
OTHER = "0000:00:20.0"


class Reader:
    """Reads the 48 hours from noon unless the call gives others."""

    def __init__(self, world: World, clock: Clock) -> None:
        self.world = world
        self.noon = clock.now

    def wanted(self, since: datetime | None = None, hours: int = 48, **members: Any) -> LedgerFilter:
        start = since or self.noon
        return LedgerFilter(since=start, until=start + hours * H, **members)

    def rows(self, *, actor: Actor | None = None, size: int = 1000, **members: Any) -> list[LedgerRow]:
        found: list[LedgerRow] = []
        token = ""
        while True:
            page = self.world.run(
                ledger_list.list_ledger, PageRequest(size=size, token=token), self.wanted(**members), actor=actor
            )
            assert len(page.items) <= size
            found += page.items
            token = page.next_page_token
            if not token:
                return found
            assert page.items

    def grants(self, *, actor: Actor | None = None, **members: Any) -> list[Grant]:
        items: list[Grant] = self.world.run(
            grants.list_grants, PageRequest(), self.wanted(**members), actor=actor
        ).items
        return items


@pytest.fixture
def reader(world: World, clock: Clock) -> Reader:
    return Reader(world, clock)


def test_granted_time_is_the_life_of_claims_in_whole_numbers(world: World, clock: Clock, reader: Reader) -> None:
    clock.advance(1800.000001)
    agent = world.host("one")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile(share=333, gib=1))
    clock.advance(3600.5)
    world.delete(claimed.id)
    clock.advance(4)
    world.delete(claimed.id)
    clock.advance(6)
    agent.confirm_gone(claimed.id)
    clock.advance(7200)
    lived_us = 3600_500_000
    [row] = reader.rows()
    assert (row.slice_us, row.releasing_us, row.granted_ns) == (lived_us, 10 * S, lived_us * 333)
    assert (row.mem_byte_us, row.tenant, row.account) == (lived_us * GIB, "acme", "acme")
    hours = reader.rows(granularity=Granularity.HOUR)
    assert [each.slice_us for each in hours] == [1799_999_999, lived_us - 1799_999_999]
    assert [each.releasing_us for each in hours] == [0, 10 * S]
    assert [each.granted_ns for each in hours] == [each.slice_us * 333 for each in hours]
    assert [each.mem_byte_us for each in hours] == [each.slice_us * GIB for each in hours]
    assert [(each.since, each.until) for each in hours] == [
        (reader.noon + number * H, reader.noon + (number + 1) * H) for number in range(2)
    ]
    [life] = reader.grants()
    assert (life.slice_id, life.share_permille, life.mem_bytes) == (claimed.id, 333, GIB)
    assert life.ended_at is not None
    assert life.deleted_at is not None
    assert (life.deleted_at - life.started_at, life.ended_at - life.deleted_at) == (
        timedelta(microseconds=lived_us),
        timedelta(seconds=10),
    )


def test_a_life_that_a_clock_was_put_back_in_has_its_instants_in_order(
    world: World, clock: Clock, reader: Reader
) -> None:
    agent = world.host("one")
    world.tenant("acme")
    clock.advance(60)
    claimed = world.claim("acme", world.profile())
    began = clock.now
    clock.advance(-10)
    world.delete(claimed.id)
    clock.advance(-10)
    agent.confirm_gone(claimed.id)
    [life] = reader.grants()
    assert (life.started_at, life.deleted_at, life.ended_at) == (began, began, began)


def test_no_life_begins_or_ends_in_what_is_closed(world: World, clock: Clock, reader: Reader) -> None:
    agent = world.host("one")
    world.tenant("acme")
    profile = world.profile(share=100)
    first = world.claim("acme", profile)
    clock.advance(3 * 3600)
    world.run(books.forget_before, 90, actor=local_operator("system:usage"))
    closed = world.database.run(books.state).closed_before
    clock.advance(-2 * 3600 - 1800)
    agent.report()
    world.delete(first.id)
    second = world.claim("acme", profile)
    lives = {life.slice_id: life for life in reader.grants()}
    assert closed == reader.noon + 2 * H
    assert (lives[first.id].deleted_at, lives[second.id].started_at) == (closed, closed)


def test_a_lost_slice_is_paid_until_its_host_was_fenced(world: World, clock: Clock, reader: Reader) -> None:
    world.host("one")
    world.tenant("acme")
    world.claim("acme", world.profile())
    clock.advance(600)
    generation = world.run(hosts.get_host, "one").generation
    world.run(fencing.fence_host, "one", HostFence(confirm="one"), if_match=generation)
    clock.advance(600)
    [row] = reader.rows()
    assert (row.slice_us, row.releasing_us) == (600 * S, 0)


def test_what_is_tried_only_is_never_granted(world: World, clock: Clock, reader: Reader) -> None:
    from vgpumgr_api.claims import claims

    from vgpumgr.wire.resources import SliceCreate

    world.host("one")
    world.tenant("acme")
    profile = world.profile()
    world.run(claims.create_slice, SliceCreate(tenant="acme", profile=profile.name), validate_only=True)
    with refused(Code.OBJECT_UNKNOWN):
        world.claim("acme", profile, host="none")
    clock.advance(3600)
    assert reader.grants() == []


def fleet(world: World, clock: Clock) -> None:
    """Two accounts, one with a project, on two hosts; counts of three hours, and a correction of the first hour."""
    profile = world.profile(share=100)
    world.tenant("acme")
    world.tenant("web", account="acme")
    world.tenant("blue")
    told = [Told(world.host(name)) for name in ("one", "two")]
    for tenant in ("acme", "web", "blue"):
        for host in ("one", "two"):
            world.claim(tenant, profile, host=host)
    for hour in range(3):
        clock.advance(3600)
        for number, meter in enumerate(told):
            meter.tell(
                *(
                    meter.reading(1000 * place + 100 * number + hour + 1, tenant=tenant, hour=NOON + hour)
                    for place, tenant in enumerate(("acme", "web", "blue"))
                )
            )
    clock.advance(3600)
    told[0].tell(told[0].reading(2501, tenant="blue", hour=NOON))


def test_rows_are_by_party_and_time_and_add_up(world: World, clock: Clock, reader: Reader) -> None:
    fleet(world, clock)
    total = {(row.tenant, row.correction): row.run_ns for row in reader.rows()}
    assert total == {
        ("acme", False): 2 * 6 + 300,
        ("web", False): 2 * 6 + 300 + 6000,
        ("blue", False): 2 * 6 + 300 + 12000,
        ("blue", True): 500,
    }
    assert [row.account for row in reader.rows(by=By.ACCOUNT)] == ["acme", "blue", "blue"]
    for by in By:
        for granularity in Granularity:
            rows = reader.rows(by=by, granularity=granularity, hours=5)
            assert sum(row.run_ns for row in rows) == sum(total.values())
            assert sum(row.slice_us for row in rows) == 6 * 4 * 3600 * S
            assert sum(row.granted_ns for row in rows) == 6 * 4 * 3600 * S * 100
            assert reader.rows(by=by, granularity=granularity, size=2, hours=5) == rows
    assert {(row.host, row.gpu) for row in reader.rows(by=By.GPU)} == {("one", ADDRESS), ("two", ADDRESS)}


def test_what_gpus_of_a_host_did_is_told_apart(world: World, clock: Clock, reader: Reader) -> None:
    agent = world.host("one", inventory=[gpu(), gpu(OTHER)])
    world.tenant("acme")
    profile = world.profile(share=1000)
    assert {world.claim("acme", profile).gpu for _ in range(2)} == {ADDRESS, OTHER}
    told = Told(agent)
    told.tell(told.reading(5), told.reading(70, gpu=OTHER))
    clock.advance(3600)
    assert {row.gpu: row.run_ns for row in reader.rows(by=By.GPU)} == {ADDRESS: 5, OTHER: 70}


def test_closed_hours_never_change_and_an_old_bill_can_be_made_again(
    world: World, clock: Clock, reader: Reader
) -> None:
    fleet(world, clock)
    before = reader.rows(hours=3, granularity=Granularity.HOUR)
    assert [row.closed for row in before if not row.correction] == [True] * 9
    known = clock.now
    clock.advance(5 * 3600)
    late = Told(world.host("three"))
    world.claim("web", world.profile(share=1), host="three")
    late.tell(late.reading(77, tenant="web", hour=NOON))
    [web] = [each for each in world.gpus() if each.host == "three"]
    assert web.used_share_permille == 1
    after = reader.rows(hours=3, granularity=Granularity.HOUR)
    assert [row for row in after if not row.correction] == [row for row in before if not row.correction]
    assert reader.rows(hours=3, granularity=Granularity.HOUR, as_of=known + H) == before
    early = reader.rows(hours=3, as_of=reader.noon + 3 * H)
    assert not any(row.correction for row in early)


def test_what_became_known_in_the_hour_of_an_old_bill_is_not_in_it(world: World, clock: Clock, reader: Reader) -> None:
    fleet(world, clock)
    rows = reader.rows(hours=3, as_of=reader.noon + H)
    assert sum(row.run_ns for row in rows) == 2 * 3000 + 3 * 100 + 6 * 1  # counts of the first hour
    assert sum(row.slice_us for row in rows) == 6 * 3600 * S


def test_days_begin_at_midnight_of_utc(world: World, clock: Clock, reader: Reader) -> None:
    world.host("one")
    world.tenant("acme")
    world.claim("acme", world.profile())
    clock.advance(60 * 3600)
    rows = reader.rows(granularity=Granularity.DAY)
    midnight = reader.noon + 12 * H
    assert [(row.since, row.until) for row in rows] == [
        (reader.noon, midnight),
        (midnight, midnight + 24 * H),
        (midnight + 24 * H, reader.noon + 48 * H),
    ]
    assert [row.slice_us for row in rows] == [hours * 3600 * S for hours in (12, 24, 12)]


def test_the_present_hour_is_open_and_counts_up_to_now(world: World, clock: Clock, reader: Reader) -> None:
    world.host("one")
    world.tenant("acme")
    world.claim("acme", world.profile())
    clock.advance(90)
    [row] = reader.rows(hours=1)
    assert (row.slice_us, row.closed) == (90 * S, False)
    assert reader.rows(since=reader.noon + 5 * H) == []


def test_a_tenant_reads_its_own_and_an_account_its_projects(world: World, clock: Clock, reader: Reader) -> None:
    fleet(world, clock)

    def seen(name: str, **members: Any) -> set[str]:
        return {row.tenant for row in reader.rows(actor=world.tenant_actor(name), **members)}

    assert (seen("acme"), seen("web"), seen("blue")) == ({"acme", "web"}, {"web"}, {"blue"})
    assert seen("acme", tenant="web") == {"web"}
    assert {row.tenant for row in reader.rows(account="acme")} == {"acme", "web"}
    for actor, filters in (
        (world.tenant_actor("web"), {"tenant": "acme"}),
        (world.tenant_actor("blue"), {"account": "acme"}),
        (None, {"tenant": "nobody"}),
    ):
        with refused(Code.OBJECT_UNKNOWN):
            reader.rows(actor=actor, **filters)
    with refused(Code.PERMISSION_DENIED):
        reader.rows(actor=world.host("four").actor)


def test_a_tenant_reads_the_lives_of_its_own_claims_and_an_account_those_of_its_projects(
    world: World, clock: Clock, reader: Reader
) -> None:
    fleet(world, clock)

    def seen(name: str, **members: Any) -> list[str]:
        return sorted(life.tenant for life in reader.grants(actor=world.tenant_actor(name), **members))

    assert seen("acme") == ["acme", "acme", "web", "web"]
    assert (seen("web"), seen("blue"), seen("acme", tenant="web")) == (["web"] * 2, ["blue"] * 2, ["web"] * 2)
    assert len(reader.grants()) == 6
    for name, filters in (("web", {"tenant": "acme"}), ("blue", {"account": "acme"})):
        with refused(Code.OBJECT_UNKNOWN):
            reader.grants(actor=world.tenant_actor(name), **filters)
    with refused(Code.PERMISSION_DENIED):
        reader.grants(actor=world.host("four").actor)


def test_a_life_falls_into_no_time_that_ends_when_it_begins_or_begins_when_it_ends(
    world: World, clock: Clock, reader: Reader
) -> None:
    agent = world.host("one")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile())
    clock.advance(3600)
    world.delete(claimed.id)
    agent.confirm_gone(claimed.id)
    found = [len(reader.grants(since=reader.noon + hours * H, hours=1)) for hours in (-1, 0, 1)]
    assert found == [0, 1, 0]


@pytest.mark.parametrize("hours", [0, -5])
def test_lives_of_a_time_that_is_empty_are_refused(world: World, reader: Reader, hours: int) -> None:
    world.host("one")
    world.tenant("acme")
    world.claim("acme", world.profile())
    with refused(Code.FIELD_INVALID) as caught:
        reader.grants(since=reader.noon + 9 * H, hours=hours)
    assert caught.refusal is not None
    assert [reason.field for reason in caught.refusal.reasons] == ["query.until"]


def test_times_that_cannot_be_are_refused_by_name(world: World, reader: Reader) -> None:
    half = timedelta(minutes=30)
    for members, field in (
        ({"since": reader.noon + half}, "since"),
        ({"as_of": reader.noon + half}, "as_of"),
        ({"hours": 0}, "until"),
        ({"hours": -5}, "until"),
        ({"hours": 24 * 92 + 1, "granularity": Granularity.HOUR}, "until"),
        ({"hours": 24 * 920 + 1, "granularity": Granularity.DAY}, "until"),
    ):
        with refused(Code.FIELD_INVALID) as caught:
            reader.rows(**members)
        assert caught.refusal is not None
        assert [reason.field for reason in caught.refusal.reasons] == [f"query.{field}"], members
    page = PageRequest(token="x")
    with refused(Code.FIELD_INVALID):
        world.run(ledger_list.list_ledger, page, reader.wanted())


def test_a_token_fits_the_question_it_came_from(world: World, clock: Clock, reader: Reader) -> None:
    fleet(world, clock)
    page = world.run(ledger_list.list_ledger, PageRequest(size=1), reader.wanted())
    for other in ({"by": By.GPU}, {"hours": 47}, {"tenant": "web"}, {"as_of": reader.noon}):
        with refused(Code.FIELD_INVALID):
            world.run(ledger_list.list_ledger, PageRequest(size=1, token=page.next_page_token), reader.wanted(**other))


def test_what_is_not_kept_any_more_is_said(world: World, clock: Clock, reader: Reader) -> None:
    fleet(world, clock)
    clock.advance(40 * 86400)
    world.run(books.forget_before, 30, actor=local_operator("system:usage"))
    with refused(Code.USAGE_EXPIRED):
        reader.rows()
    with refused(Code.USAGE_EXPIRED):
        reader.grants()
    kept = reader.noon.replace(hour=0) + timedelta(days=11)
    assert {row.tenant for row in reader.rows(since=kept)} == {"acme", "web", "blue"}


@pytest.mark.parametrize("claimed", [False, True])
def test_a_page_takes_few_statements_however_many_hours_it_is_about(
    world: World, clock: Clock, reader: Reader, claimed: bool
) -> None:
    if claimed:
        world.host("one")
        world.tenant("acme")
        world.claim("acme", world.profile())
    clock.advance(92 * 24 * 3600)
    asked: list[str] = []

    def count(*event: Any) -> None:
        asked.append(event[2])

    with hearing(world.database.engine, "before_cursor_execute", count):
        rows = reader.rows(hours=92 * 24, granularity=Granularity.HOUR)
        statements = len(asked)
        first = world.run(
            ledger_list.list_ledger,
            PageRequest(size=1),
            reader.wanted(hours=92 * 24, granularity=Granularity.HOUR),
        ).items
    assert len(rows) == (92 * 24 if claimed else 0)
    assert first == rows[:1]
    assert [row.since for row in rows] == [reader.noon + number * H for number in range(len(rows))]
    assert statements < 60


def lives(world: World, clock: Clock, number: int) -> None:
    """Makes this many claims that stay, and half as many that are deleted without their hosts' confirmation."""
    profile = world.profile(share=1)
    claimed = [world.claim("acme", profile) for _ in range(number + number // 2)]
    for each in claimed[number:]:
        world.delete(each.id)


def rows_read(reader: Reader, since: datetime, granularity: Granularity) -> int:
    """Returns how many rows are read from the database for 300 hours."""
    read: list[int] = []

    def count(executed: ORMExecuteState) -> Any:
        frozen = executed.invoke_statement().freeze()
        read.append(len(frozen.data))
        return frozen()

    with hearing(Session, "do_orm_execute", count):
        reader.rows(since=since, hours=300, granularity=granularity)
    return sum(read)


def test_rows_are_read_by_the_hour_and_not_by_claim_and_hour(world: World, clock: Clock, reader: Reader) -> None:
    world.host("one", inventory=[gpu(mem_bytes=32 * GIB), gpu(OTHER, mem_bytes=32 * GIB)])
    world.tenant("acme")
    found = []
    for number in (2, 38):
        lives(world, clock, number)
        clock.now = reader.noon + 301 * H
        found.append([rows_read(reader, reader.noon + H, granularity) for granularity in Granularity])
        clock.now = reader.noon
    assert found[0] == found[1]


def test_nothing_is_read_for_hours_to_come(world: World, clock: Clock, reader: Reader) -> None:
    world.host("one", inventory=[gpu(mem_bytes=32 * GIB), gpu(OTHER, mem_bytes=32 * GIB)])
    world.tenant("acme")
    nobody = rows_read(reader, reader.noon + H, Granularity.HOUR)
    lives(world, clock, 2)
    clock.now = reader.noon + H
    assert rows_read(reader, reader.noon + H, Granularity.HOUR) == nobody


def test_lives_are_added_up_as_if_each_were_alone(world: World, clock: Clock, reader: Reader) -> None:
    tenant, rng = world.tenant("acme"), random.Random(7)
    made = []
    for number in range(150):
        moments = sorted(reader.noon + rng.randrange(-9, 200) * H / 3 for _ in range(3))
        moments[number % 4 :] = [None] * (3 - number % 4)  # type: ignore[list-item]
        started, deleted, ended = moments if moments[0] else (reader.noon, None, None)
        made.append(
            {
                "id": uuid4(), "slice_id": uuid4(), "account_id": tenant.id, "account": "acme", "tenant_id": tenant.id,
                "tenant": "acme", "host": "one", "gpu": (ADDRESS, OTHER)[number % 2],
                "share_permille": 1 + number % 3, "mem_bytes": (1 + number % 2) * GIB,
                "started_at": started, "deleted_at": deleted, "ended_at": ended,
            }
        )  # fmt: skip
    world.database.run(lambda session: session.execute(sqlalchemy.insert(ledger.Grant), made) and None)
    clock.now = reader.noon + 50 * H + timedelta(minutes=7)

    def overlap_us(since: datetime, begun: datetime | None, ended: datetime | None, until: datetime) -> int:
        last = min(ended or until, until, clock.now)
        return 0 if begun is None else max(0, (last - max(begun, since)) // timedelta(microseconds=1))

    wanted: dict[tuple[datetime, str], list[int]] = {}
    for since in (reader.noon + number * H for number in range(60)):
        for life in made:
            lived_us = overlap_us(since, life["started_at"], life["deleted_at"], since + H)
            releasing_us = overlap_us(since, life["deleted_at"], life["ended_at"], since + H)
            sums = wanted.setdefault((since, life["gpu"]), [0] * 4)
            more = (lived_us, releasing_us, lived_us * life["share_permille"], lived_us * life["mem_bytes"])
            sums[:] = [before + each for before, each in zip(sums, more, strict=True)]
    found = reader.rows(hours=60, granularity=Granularity.HOUR, by=By.GPU)
    assert {
        (row.since, row.gpu): [row.slice_us, row.releasing_us, row.granted_ns, row.mem_byte_us] for row in found
    } == {key: sums for key, sums in wanted.items() if any(sums)}


def test_a_page_ends_early_where_it_is_made_of_much(
    world: World, clock: Clock, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet(world, clock)
    asked: dict[str, Any] = {"hours": 5, "granularity": Granularity.HOUR, "by": By.GPU}
    rows = reader.rows(**asked)
    monkeypatch.setattr(ledger_list, "READ_AT_ONCE", 4)
    page = world.run(ledger_list.list_ledger, PageRequest(size=1000), reader.wanted(**asked))
    assert page.items == rows[:2]  # each is made of one grant and one count
    assert reader.rows(**asked) == rows
