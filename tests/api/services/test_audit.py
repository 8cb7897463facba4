# SPDX-License-Identifier: Apache-2.0
"""Every change leaves an audit entry with its author, in the same transaction, and no entry is ever removed."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError
from vgpumgr_api.actors import local_operator
from vgpumgr_api.claims import profiles
from vgpumgr_api.db import records
from vgpumgr_api.events import audit, events
from vgpumgr_api.events.audit import AuditFilter
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.tenancy import tenants

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.audit import AuditEntry
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenRole

ADMIN = local_operator("admin:test", TokenRole.ADMIN)


def entries(world: World, **wanted: Any) -> list[AuditEntry]:
    found: list[AuditEntry] = world.run(audit.list_audit, PageRequest(), AuditFilter(**wanted), actor=ADMIN).items
    return found


def story(world: World) -> None:
    world.host("one")
    world.tenant("acme")
    claimed = world.claim("acme", world.profile(name="small"), actor=world.tenant_actor("acme"))
    world.delete(claimed.id)


def test_whatever_is_an_event_is_in_the_audit_with_who_did_it(world: World) -> None:
    story(world)
    found = entries(world)
    told = world.events().items
    assert [(each.action, each.actor, each.object, each.tenant, each.detail, each.at) for each in found] == [
        (each.kind, each.actor, each.object, each.tenant, each.detail, each.at) for each in told
    ]
    [claimed] = [each for each in found if each.action == "slice.claimed"]
    assert (claimed.actor, claimed.role, claimed.generation) == ("tenant:acme", "tenant", 1)
    assert claimed.credential is not None
    [releasing] = [each for each in found if each.action == "slice.releasing"]
    assert (releasing.actor, releasing.role, releasing.credential, releasing.generation) == (
        "operator:test",
        "operator",
        None,
        2,
    )


def test_what_was_rolled_back_left_no_entry(world: World) -> None:
    def interrupted(session: Any) -> None:
        events.record(session, world.operator, "test.interrupted", "x")
        session.flush()
        raise KeyError

    with pytest.raises(KeyError):
        world.database.run(interrupted)
    with refused(Code.OBJECT_UNKNOWN):
        world.run(profiles.delete_profile, "nothing", if_match=1)
    assert entries(world) == []


def test_only_admins_read_it(world: World) -> None:
    host = world.host("one")
    world.tenant("acme")
    for actor in (world.operator, world.tenant_actor("acme"), host.actor):
        with refused(Code.PERMISSION_DENIED):
            world.run(audit.list_audit, PageRequest(), AuditFilter(), actor=actor)


def test_entries_are_chosen_by_what_they_say(world: World, clock: Clock) -> None:
    story(world)
    clock.advance(60)
    world.tenant("blue")
    everything = entries(world)
    for name in ("actor", "action", "object", "tenant"):
        for value in {getattr(each, name) for each in everything} - {None}:
            assert entries(world, **{name: value}) == [each for each in everything if getattr(each, name) == value]
    assert entries(world, actor="nobody") == []
    assert entries(world, action="slice.claimed", tenant="blue") == []
    assert {each.tenant for each in entries(world, since=clock.now)} == {"blue"}
    assert "blue" not in {each.tenant for each in entries(world, until=clock.now)}
    assert entries(world, since=clock.now + timedelta(seconds=1)) == []
    assert entries(world, object="half \ud800 and \0 none") == []


def test_pages_show_each_entry_once(world: World) -> None:
    story(world)
    seen, token = [], ""
    while True:
        page = world.run(audit.list_audit, PageRequest(size=3, token=token), AuditFilter(), actor=ADMIN)
        seen += page.items
        token = page.next_page_token
        if not token:
            break
    assert seen == entries(world)
    for senseless in ("x", "WyJhdWRpdCIsICIxZTMiXQ", "WyJhdWRpdCIsICI5OTk5OTk5OTk5OTk5OTk5OTk5Il0"):
        with refused(Code.FIELD_INVALID):
            world.run(audit.list_audit, PageRequest(token=senseless), AuditFilter(), actor=ADMIN)


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE audit SET actor = 'nobody'",
        "UPDATE audit SET id = id + 1000",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE action = 'tenant.created'",
        "TRUNCATE audit",
        "TRUNCATE audit, events CASCADE",
        "REPLACE INTO audit SELECT * FROM audit",
        "INSERT OR REPLACE INTO audit SELECT * FROM audit",
        "INSERT INTO audit SELECT * FROM audit WHERE true ON CONFLICT (id) DO UPDATE SET actor = 'nobody'",
        "WITH gone AS (DELETE FROM audit RETURNING id) SELECT * FROM gone",
    ],
)
def test_the_database_refuses_to_change_or_forget(world: World, engine_name: str, wrong: str) -> None:
    only = {"TRUNCATE": "postgresql", "WITH": "postgresql", "REPLACE": "sqlite", "INSERT OR": "sqlite"}
    if any(wrong.startswith(begin) and engine_name != engine for begin, engine in only.items()):
        pytest.skip("another engine's words")
    world.tenant("acme")
    before = entries(world)
    with pytest.raises(DBAPIError, match="append-only"), world.database.engine.begin() as connection:
        connection.execute(text(wrong))
    assert entries(world) == before != []


def test_an_entry_outlives_what_it_is_about(world: World) -> None:
    world.tenant("acme")
    world.run(tenants.delete_tenant, "acme", if_match=None)
    assert [each.action for each in entries(world, tenant="acme")][-1] == "tenant.deleted"


def test_numbers_are_never_used_again(world: World) -> None:
    world.tenant("acme")
    last = world.database.run(lambda session: session.scalar(select(func.max(records.AuditEntry.id))))
    assert last is not None
    world.tenant("blue")
    assert min(each.id for each in entries(world, tenant="blue")) > last
