# SPDX-License-Identifier: Apache-2.0
"""What the quotas of account and project permit to be claimed, and which timeslices may be set."""

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from vgpumgr_api.actors import Actor, authenticate
from vgpumgr_api.auth import tokens
from vgpumgr_api.claims import explain, profiles
from vgpumgr_api.db.database import Database
from vgpumgr_api.tenancy import quotas, tenants
from vgpumgr_api.tenancy.enforcement import TIMESLICE_US_DEFAULT

from tests.api.concurrency.uncommitted import behind
from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.common import Mode
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import QuotaPatch, SliceCreate, TenantCreate, TokenCreate, TokenRole


def allow(world: World, tenant: str, *, actor: Actor | None = None, **members: Any) -> Any:
    generation = world.quota(tenant).generation
    return world.run(quotas.patch_quota, tenant, QuotaPatch(**members), if_match=generation, actor=actor)


@pytest.mark.parametrize("owner", ["acme", "web"])
def test_a_claim_of_what_the_quota_does_not_name_is_refused(world: World, owner: str) -> None:
    world.host()
    world.tenant("acme")
    world.tenant("web", account="acme")
    fair, strict = world.profile(share=100, name="fair"), world.profile(share=100, mode=Mode.STRICT, name="strict")
    for members, reason in (({"mode": Mode.FAIR}, "quota.mode"), ({"profiles": ["fair"]}, "quota.profiles")):
        allow(world, owner, **members)
        world.claim("web", fair)
        used = world.quota("acme").used_slices
        with refused(Code.QUOTA_FORBIDDEN) as caught:
            world.claim("web", strict)
        assert caught.refusal is not None
        assert [(each.code, each.field) for each in caught.refusal.reasons] == [(reason, "$.profile")]
        want = [SliceCreate(tenant="web", profile=name) for name in ("fair", "strict")]
        with refused(Code.QUOTA_FORBIDDEN) as caught:
            world.claim_all(want)
        assert caught.refusal is not None
        assert [each.field for each in caught.refusal.reasons] == ["$.slices[1].profile"]
        with refused(Code.QUOTA_FORBIDDEN):
            world.reserve("web", strict)
        said = world.run(explain.explain, want[1])
        assert (said.fits, [each.code for each in said.reasons]) == (False, [reason])
        assert said.detail == said.reasons[0].detail
        assert world.quota("acme").used_slices == used
        allow(world, owner, **dict.fromkeys(members))
        world.claim("web", strict)


def test_what_a_quota_names_is_told_and_goes_with_the_profile_and_no_further(world: World) -> None:
    world.host()
    world.tenant("acme")
    profile = world.profile(share=100, name="only")
    kept = world.claim("acme", profile)
    told = allow(world, "acme", profiles=["only", "only"], mode="fair")
    assert (told.profiles, told.mode, told.generation) == (["only"], Mode.FAIR, 3)
    assert allow(world, "acme", profiles=["only"]).generation == 3
    with refused(Code.FIELD_INVALID) as caught:
        allow(world, "acme", profiles=["only", "none"])
    assert caught.refusal is not None
    assert caught.refusal.reasons[0].field == "$.profiles[1]"
    world.profile(name="other")
    allow(world, "acme", profiles=["other"])
    assert world.slice(kept.id).share_permille == 100  # existing slices stay
    world.run(profiles.delete_profile, "other", if_match=1)
    assert world.quota("acme").profiles == []
    with refused(Code.QUOTA_FORBIDDEN):
        world.claim("acme", profile)
    assert allow(world, "acme", profiles=None, mode=None).profiles is None
    world.claim("acme", profile)


def test_a_quota_is_changed_by_the_end_of_a_profile_that_it_names(world: World) -> None:
    for tenant, account in (("acme", None), ("web", "acme"), ("blue", None)):
        world.tenant(tenant, account=account)
    for name in ("one", "two"):
        world.profile(name=name)
    seen = {tenant: allow(world, tenant, profiles=["one", "two"]).generation for tenant in ("acme", "web")}
    untouched = world.quota("blue")
    world.run(profiles.delete_profile, "one", if_match=1)
    for tenant, generation in seen.items():
        with refused(Code.GENERATION_STALE):
            world.run(quotas.patch_quota, tenant, QuotaPatch(slices=1), if_match=generation)
        now = world.quota(tenant)
        assert (now.profiles, now.generation) == (["two"], generation + 1)
    assert world.quota("blue") == untouched
    told = world.events(about=frozenset({"quota"})).items[-2:]
    assert {each.object for each in told} == {"acme", "web"}
    assert [each.detail for each in told] == [{"profiles": {"from": ["one", "two"], "to": ["two"]}}] * 2


def test_a_quota_that_comes_to_name_a_profile_as_that_goes_is_changed_too(
    world: World, database: Database, url: str
) -> None:
    if database.is_sqlite:  # has one writer at a time
        return
    world.tenant("acme")
    world.profile(name="one")
    generation = world.quota("acme").generation
    patch = QuotaPatch(profiles=["one"])
    named, _, waited = behind(
        database,
        url,
        lambda session: quotas.patch_quota(session, world.operator, "acme", patch, if_match=generation),
        lambda: world.run(profiles.delete_profile, "one", if_match=1),
    )
    assert waited
    now = world.quota("acme")
    assert (named.profiles, now.profiles, now.generation) == (["one"], [], named.generation + 1)


def test_a_quota_that_comes_to_name_a_profile_in_the_place_of_another_is_changed_too(
    world: World, database: Database, url: str
) -> None:
    """The number of quotas that name the profile is the same as at the start of its deletion, but not the quotas."""
    if database.is_sqlite:  # has one writer at a time
        return
    world.tenant("acme")
    world.tenant("web")
    world.profile(name="one")
    acme = allow(world, "acme", profiles=["one"])
    untouched = world.quota("web").generation
    none = QuotaPatch(profiles=[])
    cleared, _, waited = behind(
        database,
        url,
        lambda session: quotas.patch_quota(session, world.operator, "acme", none, if_match=acme.generation),
        lambda: world.run(profiles.delete_profile, "one", if_match=1),
        then=lambda _: allow(world, "web", profiles=["one"]),
    )
    assert waited
    assert world.quota("acme") == cleared
    now = world.quota("web")
    assert (now.profiles, now.generation) == ([], untouched + 2)
    last = world.events(about=frozenset({"quota"})).items[-1]
    assert (last.object, last.detail) == ("web", {"profiles": {"from": ["one"], "to": []}})


def test_a_timeslice_stays_within_its_range_and_its_accounts(world: World) -> None:
    world.tenant("acme")
    world.tenant("web", account="acme")
    allow(world, "acme", timeslice_min_us=1000, timeslice_max_us=5000)
    for tenant, members, field in (
        ("acme", {"timeslice_us": 5001}, "$.timeslice_us"),
        ("acme", {"timeslice_us": 999}, "$.timeslice_us"),
        ("acme", {"timeslice_min_us": 2001}, "$.timeslice_min_us"),
        ("acme", {"timeslice_max_us": 999}, "$.timeslice_max_us"),
        ("web", {"timeslice_us": 5001}, "$.timeslice_us"),
    ):
        with refused(Code.FIELD_INVALID) as caught:
            allow(world, tenant, **members)
        assert caught.refusal is not None
        assert [each.field for each in caught.refusal.reasons] == [field]
    allow(world, "web", timeslice_us=4000)
    with refused(Code.FIELD_INVALID) as caught:
        allow(world, "acme", timeslice_max_us=3000)
    assert caught.refusal is not None
    assert "project web" in caught.refusal.detail
    assert world.quota("acme").timeslice_max_us == 5000


def test_a_range_that_is_upside_down_is_told_as_that(world: World) -> None:
    world.tenant("acme")
    with refused(Code.FIELD_INVALID) as caught:
        allow(world, "acme", timeslice_min_us=5000, timeslice_max_us=1000)
    assert caught.refusal is not None
    assert caught.refusal.detail == "$.timeslice_max_us: timeslice_min_us 5000 is above timeslice_max_us 1000"


@pytest.mark.parametrize(
    ("low", "high", "given"), [(100, 1000, 1000), (5000, 9000, 5000), (1000, 5000, TIMESLICE_US_DEFAULT)]
)
def test_a_new_project_begins_with_a_timeslice_of_its_accounts_range(
    world: World, low: int, high: int, given: int
) -> None:
    world.tenant("acme")
    allow(world, "acme", timeslice_min_us=low, timeslice_max_us=high, timeslice_us=low)
    world.tenant("web", account="acme")
    assert world.quota("web").timeslice_us == given
    allow(world, "acme", timeslice_us=high)


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_a_range_that_changes_while_a_project_is_made_holds_for_it(world: World, database: Database, url: str) -> None:
    world.tenant("acme")
    generation = world.quota("acme").generation
    patch = QuotaPatch(timeslice_max_us=1000, timeslice_us=1000)
    changed, made, waited = behind(
        database,
        url,
        lambda session: quotas.patch_quota(session, world.operator, "acme", patch, if_match=generation),
        lambda: world.run(tenants.create_tenant, TenantCreate(name="web", account="acme")),
    )
    assert waited
    assert (changed.timeslice_max_us, made.name) == (1000, "web")
    assert world.quota("web").timeslice_us == 1000


def test_a_tenants_admin_sets_the_timeslice_and_nothing_else(world: World) -> None:
    world.tenant("acme")
    world.tenant("web", account="acme")
    world.tenant("blue")
    allow(world, "acme", timeslice_max_us=5000)
    request = TokenCreate(role=TokenRole.TENANT_ADMIN, subject="acme")
    secret = world.run(tokens.create_token, request).secret
    admin = world.database.run(lambda session: authenticate(session, secret))
    assert allow(world, "web", timeslice_us=3000, actor=admin).timeslice_us == 3000
    with refused(Code.FIELD_INVALID):
        allow(world, "web", timeslice_us=6000, actor=admin)
    with refused(Code.OBJECT_UNKNOWN):
        allow(world, "blue", timeslice_us=3000, actor=admin)
    for members in ({"timeslice_us": 3000, "slices": 5}, {"timeslice_max_us": 9000}, {"profiles": None}):
        with refused(Code.PERMISSION_DENIED):
            allow(world, "web", actor=admin, **members)
    with refused(Code.PERMISSION_DENIED):
        allow(world, "web", timeslice_us=3000, actor=world.tenant_actor("web"))


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE quotas SET timeslice_us = 6000",
        "UPDATE quotas SET timeslice_min_us = 3000",
        "UPDATE quotas SET timeslice_max_us = 1000",
        "UPDATE quotas SET mode = 'latency'",
        "INSERT INTO quota_profiles SELECT tenant_id, tenant_id FROM quotas",
    ],
)
def test_the_database_itself_refuses_what_no_quota_can_say(world: World, wrong: str) -> None:
    world.tenant("acme")
    allow(world, "acme", timeslice_max_us=5000)
    with pytest.raises(IntegrityError), world.database.engine.begin() as connection:
        connection.execute(text(wrong))
