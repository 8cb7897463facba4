# SPDX-License-Identifier: Apache-2.0
"""Events have an order that never changes, and readers miss none of them."""

import ast
import json
import re
import threading
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import func, select, update
from vgpumgr_api.actors import Actor, local_operator
from vgpumgr_api.auth import tokens
from vgpumgr_api.db import records
from vgpumgr_api.events import events, outbox
from vgpumgr_api.installation import installation
from vgpumgr_api.tenancy import tenants

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.events import ABOUT
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Event, TenantCreate, TokenRole


def listed(world: World, **options: int) -> list[Event]:
    items: list[Event] = world.events(**options).items
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
    page = world.events(after=2, size=3)
    assert page.items == everything[2:5]
    assert page.next_page_token == "5"
    assert world.events(after=len(everything)).items == []
    assert world.events(after=len(everything)).next_page_token == ""
    world.tenant("more")
    assert [event.seq for event in listed(world, after=len(everything))] == [11, 12]
    assert listed(world)[: len(everything)] == everything


def test_an_event_committed_late_comes_later_and_is_not_missed(world: World, engine_name: str) -> None:
    """On PostgreSQL, the transaction that began first may commit last."""
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
    from vgpumgr_api.tenancy import tenants

    world.tenant("acme")
    world.run(tenants.delete_tenant, "acme", if_match=None)
    assert [event.kind for event in listed(world) if event.tenant == "acme"][-1] == "tenant.deleted"


def test_senseless_positions_are_refused(world: World) -> None:
    for after in (-1, 1 << 63):
        with refused(Code.FIELD_INVALID):
            listed(world, after=after)
    with refused(Code.FIELD_INVALID):
        listed(world, size=0)


def trimmed(world: World, *, kept_s: int = 3600, kept: int = 1_000_000) -> bool:
    more: bool = world.database.run(lambda session: outbox.trim(session, kept_s=kept_s, kept=kept))
    return more


def test_what_is_too_old_goes_and_the_newest_stays(world: World, clock: Clock) -> None:
    for number in range(3):
        world.tenant(f"tenant-{number}")
        clock.advance(1800)
    assert not trimmed(world)
    assert [event.seq for event in listed(world)] == [3, 4, 5, 6]
    clock.advance(7200)
    assert not trimmed(world)
    assert [event.seq for event in listed(world)] == [6]
    world.tenant("more")
    assert [event.seq for event in listed(world)] == [6, 7, 8]


def test_no_more_are_kept_than_wanted_also_when_nobody_reads(world: World) -> None:
    for number in range(10):
        world.tenant(f"tenant-{number}")
    assert not trimmed(world, kept=3)
    assert [event.seq for event in listed(world)] == [18, 19, 20]


def test_a_long_log_is_cut_in_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "TRIMMED_AT_ONCE", 4)
    for number in range(5):
        world.tenant(f"tenant-{number}")
    assert [trimmed(world, kept=3) for _ in range(3)] == [True, False, False]
    assert [event.seq for event in listed(world)] == [8, 9, 10]


def test_one_committed_late_with_an_old_date_is_not_cut_before_what_came_earlier(world: World, clock: Clock) -> None:
    world.tenant("first")
    clock.advance(-7200)
    world.tenant("late")
    clock.advance(7200)
    assert not trimmed(world)
    assert [event.seq for event in listed(world)] == [1, 2, 3, 4]


def test_whoever_missed_something_is_told_so(world: World) -> None:
    for number in range(5):
        world.tenant(f"tenant-{number}")
    assert not trimmed(world, kept=4)
    with refused(Code.WATCH_EXPIRED):
        listed(world, after=5)
    assert [event.seq for event in listed(world, after=6)] == [7, 8, 9, 10]
    assert [event.seq for event in listed(world, after=0)] == [7, 8, 9, 10]
    with refused(Code.WATCH_EXPIRED):
        begun(world, after=5)
    with refused(Code.WATCH_EXPIRED):
        begun(world, after=11)
    assert begun(world, after=0) == 6
    assert begun(world, after=6) == 6
    assert begun(world, after=None) == 10


def test_a_list_goes_on_only_in_the_log_that_it_began_in(world: World) -> None:
    world.tenant("a")
    page = world.events()
    last = page.items[-1].seq
    assert world.events(after=last, epoch=page.epoch).items == []
    with refused(Code.WATCH_EXPIRED):
        world.events(after=last + 1)
    world.run(installation.new_epoch)
    again = world.events(after=last)
    assert again.epoch != page.epoch
    with refused(Code.WATCH_EXPIRED):
        world.events(after=last, epoch=page.epoch)
    with refused(Code.WATCH_EXPIRED):
        begun(world, after=last, epoch=page.epoch)


def begun(world: World, *, after: int | None, epoch: str = "") -> int:
    return world.begin_watch(after=after, epoch=epoch).position


def test_a_position_from_before_a_restore_is_refused(world: World) -> None:
    world.tenant("acme")
    epoch = events.epoch_name(world.begin_watch().epoch)
    assert begun(world, after=1, epoch=epoch) == 1
    world.run(installation.new_epoch)
    with refused(Code.WATCH_EXPIRED):
        begun(world, after=1, epoch=epoch)


def test_who_began_before_a_restore_reads_nothing_of_after_it(world: World) -> None:
    world.tenant("acme")
    before = world.begin_watch()
    assert world.run(events.catch_up, before, 0, 9)[0]
    world.run(installation.new_epoch)
    with refused(Code.WATCH_EXPIRED):
        world.run(events.catch_up, before, 0, 9)


def told(
    world: World, actor: Actor, *, about: frozenset[str] = frozenset(), tenant: str | None = None
) -> list[tuple[str, str | None]]:
    """Returns what the list and the watch show, which must be equal."""
    by_list = world.events(actor=actor, about=about, tenant=tenant).items
    wanted = world.begin_watch(actor=actor, about=about, tenant=tenant).wanted
    read = world.database.run(lambda session: outbox.read(session, actor, wanted, 0, 1000), read_only=True)[0]
    everything = world.database.run(
        lambda session: outbox.read(session, actor, outbox.Wanted(owner=None), 0, 1000), read_only=True
    )[0]
    filtered = [each for each in everything if wanted.matches(each)]
    assert read == filtered
    assert [each.seq for each in read] == [event.seq for event in by_list]
    return [(event.kind, event.tenant) for event in by_list]


def test_a_watcher_is_told_what_is_its_own_and_what_it_asked_for(world: World) -> None:
    world.tenant("acme")
    world.tenant("web", account="acme")
    world.tenant("blue")
    account, project, other = (world.tenant_actor(name) for name in ("acme", "web", "blue"))
    made = "tenant.created"
    assert {tenant for _, tenant in told(world, account)} == {"acme", "web"}
    assert {tenant for _, tenant in told(world, project)} == {"web"}
    assert told(world, other, about=frozenset({"tenant"})) == [(made, "blue")]
    assert told(world, account, tenant="web", about=frozenset({"tenant", "slice"})) == [(made, "web")]
    assert [kind for kind, _ in told(world, world.operator, about=frozenset({"token"}))] == ["token.created"] * 3
    for name in ("blue", "nobody"):
        with refused(Code.OBJECT_UNKNOWN):
            told(world, account, tenant=name)


def test_tenants_learn_not_which_operator_it_was(world: World) -> None:
    """This holds for the list, the feed and the catch-up; a tenant's own events have its users' names."""
    world.tenant("acme")
    blue, viewer = world.tenant_actor("acme"), local_operator("viewer:all", TokenRole.VIEWER)
    admin = local_operator("admin:someone", TokenRole.ADMIN)
    world.host()
    profile = world.profile(name="small")
    world.quota("acme", slices=3)
    world.run(tenants.create_tenant, TenantCreate(name="web", account="acme"), actor=admin)
    world.claim("acme", profile, actor=blue)

    def actors(actor: Actor) -> list[list[str]]:
        wanted = world.begin_watch(actor=actor).wanted
        read = world.database.run(lambda session: outbox.read(session, actor, wanted, 0, 1000), read_only=True)[0]
        fed = [each for each in outbox.look(world.database, 0, 1000, ()).events if wanted.matches(each)]
        streams = [[str(json.loads(wanted.data_of(each))["actor"]) for each in some] for some in (read, fed)]
        return [[event.actor for event in world.events(actor=actor).items], *streams]

    by_list, *streams = actors(blue)
    assert set(by_list) == {"operator", blue.name}
    assert streams == [by_list, by_list]
    for everything in (world.operator, viewer):
        by_list, *streams = actors(everything)
        assert {world.operator.name, admin.name, blue.name} <= set(by_list)
        assert streams == [by_list, by_list]


def test_who_lost_its_token_is_told_no_more(world: World) -> None:
    world.tenant("acme")
    actor = world.tenant_actor("acme")
    assert actor.token_id
    world.run(tokens.delete_token, actor.token_id)
    with refused(Code.AUTH_INVALID):
        world.database.run(lambda session: outbox.read(session, actor, outbox.Wanted(owner=None), 0, 9), read_only=True)


def test_pages_of_a_watcher_far_behind_fit_together(world: World) -> None:
    """The same holds if most events are not for this watcher."""
    world.tenant("acme")
    actor = world.tenant_actor("acme")
    for number in range(6):
        world.tenant(f"other-{number}")
        world.quota("acme", slices=number)
    wanted = outbox.Wanted(owner=actor.tenant_id)
    whole = [event.seq for event in listed(world) if event.tenant == "acme"]
    last = listed(world)[-1].seq
    position, seen = 0, []
    while position < last:
        found, position = world.database.run(
            lambda session, after=position: outbox.read(session, actor, wanted, after, 3), read_only=True
        )
        seen += [each.seq for each in found]
    assert seen == whole


def test_every_kind_that_is_recorded_is_about_something_to_ask_for() -> None:
    """The kinds are read from the API's source: `events.record(session, actor, "slice.claimed", ...)`."""
    kinds = {
        argument.value
        for path in Path(outbox.__file__).parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("events.record", "record")
        for argument in ast.walk(node)
        if isinstance(argument, ast.Constant) and re.fullmatch(r"[a-z]+\.[a-z_]+", str(argument.value))
    }
    assert len(kinds) > 10
    assert {kind.partition(".")[0] for kind in kinds} == set(ABOUT)


def test_one_look_numbers_what_is_new_and_says_whose_credentials_are_there(world: World) -> None:
    world.tenant("acme")
    actor = world.tenant_actor("acme")
    assert actor.token_id
    gone = UUID(int=7)
    first = outbox.look(world.database, None, 2, {actor.token_id, gone})
    assert [each.seq for each in first.events] == [2, 3]
    assert (first.last, first.alive) == (3, {actor.token_id})
    assert [each.about for each in first.events] == ["quota", "token"]
    world.run(tokens.delete_token, actor.token_id)
    world.tenant("blue")
    second = outbox.look(world.database, 3, 2, {actor.token_id})
    assert [each.seq for each in second.events] == [4, 5]
    assert (second.last, second.alive) == (6, frozenset())
    assert Event.model_validate_json(second.events[1].data).object == "blue"


def test_a_log_that_nobody_reads_is_numbered_to_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds however fast the log grows between two turns of the job."""
    monkeypatch.setattr(outbox, "NUMBERED_AT_ONCE", 2)
    for _ in range(3):
        world.tenant()
    assert [trimmed(world) for _ in range(4)] == [True, True, True, False]
    assert unnumbered(world) == 0


def test_a_page_keeps_nobody_from_numbering(world: World) -> None:
    """A long search for rare events changes nothing, and lists events that were numbered before."""
    world.tenant()
    seen = listed(world)[-1].seq
    world.tenant()
    page = world.database.run(lambda session: events.list_events(session, world.operator), read_only=True)
    assert (page.items[-1].seq, page.next_page_token) == (seen, "")
    assert unnumbered(world) > 0
    assert listed(world)[-1].seq > seen


def test_a_page_that_is_short_of_what_nobody_has_read_says_that_there_is_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "NUMBERED_AT_ONCE", 2)
    for _ in range(3):
        world.tenant()
    seen, after, pages = [], 0, 0
    while True:
        page = world.events(after=after, size=100)
        seen += [event.seq for event in page.items]
        pages += 1
        if not page.next_page_token:
            break
        after = int(page.next_page_token)
    assert seen == [1, 2, 3, 4, 5, 6]
    assert pages > 1
    assert unnumbered(world) == 0


def test_a_page_of_what_somebody_is_not_told_says_that_there_is_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page itself is empty."""
    actor = world.tenant_actor(world.tenant().name)
    seen = listed(world)[-1].seq
    monkeypatch.setattr(outbox, "NUMBERED_AT_ONCE", 2)
    for _ in range(2):
        world.tenant()
    page = world.events(after=seen, actor=actor)
    assert (page.items, page.next_page_token) == ([], str(seen + 2))


def test_a_watch_from_now_on_begins_behind_all_that_nobody_has_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "NUMBERED_AT_ONCE", 2)
    for _ in range(3):
        world.tenant()
    assert world.begin_watch(after=None).position == 6


def unnumbered(world: World) -> int:
    statement = select(func.count()).select_from(records.Event).where(records.Event.seq.is_(None))
    return world.database.run(lambda session: session.scalars(statement).one())
