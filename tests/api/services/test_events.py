# SPDX-License-Identifier: Apache-2.0
"""Events have an order that never changes and in which nothing is missed."""

import threading

import pytest
from sqlalchemy import update
from vgpumgr_api.db import records
from vgpumgr_api.services import events

from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Event


def listed(world: World, **options: int) -> list[Event]:
    items: list[Event] = world.run(events.list_events, **options).items
    return items


def test_what_happened_is_told_in_order_without_gaps(world: World) -> None:
    world.host("one")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile(name="small"))
    world.delete(claimed.id)
    told = listed(world)
    assert [event.seq for event in told] == list(range(1, len(told) + 1))
    assert [event.kind for event in told] == [
        "host.created",
        "host.enrolled",
        "gpu.found",
        "tenant.created",
        "quota.changed",
        "profile.created",
        "slice.claimed",
        "slice.releasing",
    ]
    assert {event.object for event in told if event.kind.startswith("slice.")} == {str(claimed.id)}
    assert told[1].actor == "host:one"
    assert told[-1].actor == "operator:test"
    assert told[-1].tenant == "acme"
    assert told[4].detail["slices"] == {"from": 0, "to": 10_000}


def test_a_watcher_goes_on_after_what_it_has_seen(world: World) -> None:
    for number in range(5):
        world.tenant(f"tenant-{number}")
    everything = listed(world)
    page = world.run(events.list_events, after=2, size=3)
    assert page.items == everything[2:5]
    assert page.next_page_token == "5"
    assert world.run(events.list_events, after=len(everything)).items == []
    assert world.run(events.list_events, after=len(everything)).next_page_token == ""
    world.tenant("more")
    assert [event.seq for event in listed(world, after=len(everything))] == [11, 12]
    assert listed(world)[: len(everything)] == everything


def test_an_event_committed_late_comes_later_and_is_not_missed(world: World, engine_name: str) -> None:
    """On PostgreSQL a transaction that began first may be committed last."""
    if engine_name == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        def late(session: object) -> None:
            events.record(session, world.operator, "test.late", "x")  # type: ignore[arg-type]
            session.flush()  # type: ignore[attr-defined]
            begun.set()
            assert go_on.wait(20)

        world.database.run(late)

    writer = threading.Thread(target=slow)
    writer.start()
    assert begun.wait(20)
    world.database.run(lambda session: events.record(session, world.operator, "test.early", "x"))
    first = listed(world)
    go_on.set()
    writer.join(20)
    second = listed(world, after=first[-1].seq)
    assert [event.kind for event in first] == ["test.early"]
    assert [event.kind for event in second] == ["test.late"]
    assert listed(world) == first + second


def test_readers_at_the_same_time_number_alike(world: World) -> None:
    for number in range(10):
        world.tenant(f"tenant-{number}")
    together = threading.Barrier(6)
    seen: list[list[Event]] = []

    def read() -> None:
        together.wait()
        seen.append(listed(world))

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
    assert len(seen) == 6
    assert all(one == seen[0] for one in seen)
    assert [event.seq for event in seen[0]] == list(range(1, 21))


def test_a_number_is_given_once(world: World) -> None:
    from sqlalchemy.exc import IntegrityError

    world.tenant("acme")
    listed(world)
    with pytest.raises(IntegrityError):
        world.database.run(lambda session: session.execute(update(records.Event).values(seq=1)))


def test_a_deleted_tenants_story_remains(world: World) -> None:
    from vgpumgr_api.services import tenants

    world.tenant("acme")
    world.run(tenants.delete_tenant, "acme", if_match=None)
    assert [event.kind for event in listed(world) if event.tenant == "acme"][-1] == "tenant.deleted"


def test_senseless_positions_are_refused(world: World) -> None:
    for after in (-1, 1 << 63):
        with refused(Code.FIELD_INVALID):
            listed(world, after=after)
    with refused(Code.FIELD_INVALID):
        listed(world, size=0)
