# SPDX-License-Identifier: Apache-2.0
"""Concurrent changes of one tenant: exactly one of two succeeds, and no claim waits."""

from typing import Any

import pytest
from sqlalchemy.orm import Session
from vgpumgr_api.db.database import Database
from vgpumgr_api.errors import Refusal
from vgpumgr_api.tenancy import tenants

from tests.api.concurrency.races import Fleet, at_once, outcomes
from tests.api.concurrency.uncommitted import behind
from tests.api.world import World
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TenantCreate, TenantPatch

ROUNDS = 3
WIDE = 8
postgresql = pytest.mark.parametrize("engine_name", ["postgresql"])


def named(world: World, name: str, external_id: str) -> Any:
    """Changes the name that another system uses for a tenant, at generation 1."""

    def change(session: Session) -> Any:
        return tenants.patch_tenant(session, world.operator, name, TenantPatch(external_id=external_id), if_match=1)

    return change


def test_one_external_id_is_given_once(fleet: Fleet) -> None:
    for _ in range(ROUNDS):
        same = fleet.name("same")
        bodies = [{"name": fleet.name("tenant"), "external_id": same} for _ in range(WIDE)]
        replies = at_once([fleet.ask("POST", "/v1/tenants", body) for body in bodies])
        assert outcomes(replies) == {"done": 1, "object.exists": WIDE - 1}


@postgresql
@pytest.mark.parametrize("late", ["made", "changed"])
def test_who_comes_while_an_external_id_is_given_is_told_so(
    world: World, database: Database, url: str, late: str
) -> None:
    for name in ("acme", "blue"):
        world.tenant(name)
    wanted = TenantCreate(name="red", external_id="same")
    _, refusal, waited = behind(
        database,
        url,
        named(world, "acme", "same"),
        lambda: (
            world.run(tenants.create_tenant, wanted) if late == "made" else database.run(named(world, "blue", "same"))
        ),
    )
    assert waited
    assert isinstance(refusal, Refusal)
    assert [(reason.code, reason.field) for reason in refusal.reasons] == [(Code.OBJECT_EXISTS, "$.external_id")]


@postgresql
def test_of_two_who_saw_one_state_the_second_changes_nothing(world: World, database: Database, url: str) -> None:
    world.tenant("acme")
    _, refusal, waited = behind(
        database, url, named(world, "acme", "first"), lambda: database.run(named(world, "acme", "second"))
    )
    assert waited
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.GENERATION_STALE
    assert world.run(tenants.get_tenant, "acme").external_id == "first"


@postgresql
def test_no_tenant_is_deleted_that_was_changed_since_it_was_seen(world: World, database: Database, url: str) -> None:
    world.tenant("acme")
    _, refusal, waited = behind(
        database,
        url,
        named(world, "acme", "acme_prod"),
        lambda: world.run(tenants.delete_tenant, "acme", if_match=1),
    )
    assert waited
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.GENERATION_STALE
    assert world.run(tenants.get_tenant, "acme").generation == 2


@postgresql
def test_a_tenant_that_is_deleted_meanwhile_is_not_changed(world: World, database: Database, url: str) -> None:
    world.tenant("acme")
    _, refusal, waited = behind(
        database,
        url,
        lambda session: tenants.delete_tenant(session, world.operator, "acme", if_match=None),
        lambda: database.run(named(world, "acme", "acme_prod")),
    )
    assert waited
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.OBJECT_UNKNOWN


@postgresql
def test_a_claim_does_not_wait_for_a_change_of_its_tenants_external_id(
    world: World, database: Database, url: str
) -> None:
    host, profile = world.host("one"), world.profile()
    world.tenant("acme")
    changed, claim, waited = behind(
        database, url, named(world, "acme", "acme_prod"), lambda: world.claim("acme", profile)
    )
    assert not waited
    assert (changed.external_id, claim.host) == ("acme_prod", host.name)
