# SPDX-License-Identifier: Apache-2.0
"""Permissions that the services themselves check."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import update
from vgpumgr_api.actors import Actor, authenticate, require_credential
from vgpumgr_api.auth import tokens
from vgpumgr_api.claims import claims, profiles
from vgpumgr_api.db import records
from vgpumgr_api.events import events
from vgpumgr_api.fleet import agents, gpus, hosts
from vgpumgr_api.installation import installation
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.tenancy import quotas, tenants
from vgpumgr_api.usage import usage

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.services.test_reports import group
from tests.api.world import World
from vgpumgr.wire.fleet import Bind, Report
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import (
    HostCreate,
    HostPatch,
    ProfileCreate,
    QuotaPatch,
    SliceCreate,
    TenantCreate,
    TenantPatch,
    TokenCreate,
    TokenRole,
)

PAGE = PageRequest()
REPORT = Report(
    boot_id=uuid4(),
    agent_epoch=9,
    seq=9,
    agent_version="",
    desired_epoch=None,
    desired_generation=0,
    gpus=[],
    groups=[],
    slices=[],
    refusals=[],
)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

OPERATORS_ONLY: list[Call] = [
    (tenants.create_tenant, (TenantCreate(name="new"),), {}),
    (tenants.patch_tenant, ("acme", TenantPatch(external_id="x")), {"if_match": 1}),
    (tenants.delete_tenant, ("acme",), {"if_match": None}),
    (quotas.patch_quota, ("acme", QuotaPatch(slices=1)), {"if_match": 1}),
    (profiles.create_profile, (ProfileCreate(name="new", share_permille=1, mem_bytes=1),), {}),
    (profiles.delete_profile, ("small",), {"if_match": 1}),
    (hosts.list_hosts, (PAGE,), {}),
    (hosts.create_host, (HostCreate(name="new"),), {}),
    (hosts.get_host, ("one",), {}),
    (hosts.patch_host, ("one", HostPatch()), {"if_match": 1}),
    (hosts.delete_host, ("one",), {"if_match": 1}),
    (hosts.confirm_epoch, ("one",), {}),
    (hosts.reenroll, ("one",), {}),
    (gpus.list_gpus, (PAGE,), {}),
    (tokens.list_tokens, (PAGE,), {}),
    (tokens.create_token, (TokenCreate(role=TokenRole.OPERATOR),), {}),
    (tokens.delete_token, (uuid4(),), {}),
    (installation.new_epoch, (), {}),
]
PEOPLE_ONLY: list[Call] = [
    (tenants.list_tenants, (PAGE,), {}),
    (tenants.get_tenant, ("acme",), {}),
    (quotas.list_quotas, (PAGE,), {}),
    (quotas.get_quota, ("acme",), {}),
    (profiles.list_profiles, (PAGE,), {}),
    (profiles.get_profile, ("small",), {}),
    (claims.create_slice, (SliceCreate(tenant="acme", profile="small"),), {}),
    (claims.list_slices, (PAGE,), {}),
    (claims.get_slice, (uuid4(),), {}),
    (claims.delete_slice, (uuid4(),), {"if_match": None}),
    (events.list_events, (), {}),
    (usage.list_usage, (PAGE,), {}),
]
HOSTS_ONLY: list[Call] = [
    (agents.desired, ("one",), {}),
    (agents.desired_generation, ("one",), {}),
    (agents.report, ("one", REPORT), {}),
    (agents.bind, ("one", uuid4(), Bind(vm_uuid=uuid4())), {}),
]


def name_of(call: Call) -> str:
    return call[0].__name__


@pytest.fixture
def fleet_of_two(world: World) -> World:
    world.host("one")
    world.host("two")
    world.tenant("acme")
    world.tenant("lab", account="acme")
    world.tenant("rival")
    world.tenant("rivals-lab", account="rival")
    world.profile(share=100, name="small")
    return world


@pytest.mark.parametrize("call", OPERATORS_ONLY, ids=name_of)
def test_only_operators_manage_the_fleet(fleet_of_two: World, call: Call) -> None:
    service, arguments, options = call
    agent = fleet_of_two.enrolled("one", fleet_of_two.run(hosts.reenroll, "one").enroll_token)
    for actor in (fleet_of_two.tenant_actor("acme"), agent.actor):
        with refused(Code.PERMISSION_DENIED):
            fleet_of_two.run(service, *arguments, actor=actor, **options)


@pytest.mark.parametrize("call", PEOPLE_ONLY, ids=name_of)
def test_hosts_do_nothing_of_peoples(fleet_of_two: World, call: Call) -> None:
    service, arguments, options = call
    agent = fleet_of_two.enrolled("one", fleet_of_two.run(hosts.reenroll, "one").enroll_token)
    with refused(Code.PERMISSION_DENIED):
        fleet_of_two.run(service, *arguments, actor=agent.actor, **options)


@pytest.mark.parametrize("call", HOSTS_ONLY, ids=name_of)
def test_only_a_hosts_own_token_speaks_for_it(fleet_of_two: World, call: Call) -> None:
    service, arguments, options = call
    for actor in (fleet_of_two.operator, fleet_of_two.tenant_actor("acme")):
        with refused(Code.PERMISSION_DENIED):
            fleet_of_two.run(service, *arguments, actor=actor, **options)
    other = fleet_of_two.enrolled("two", fleet_of_two.run(hosts.reenroll, "two").enroll_token)
    one = str(fleet_of_two.run(hosts.get_host, "one").id)
    for asked in ("one", one, str(uuid4()), "no-such"):
        with refused(Code.OBJECT_UNKNOWN) as caught:
            fleet_of_two.run(service, asked, *arguments[1:], actor=other.actor, **options)
        assert caught.refusal is not None
        assert caught.refusal.detail == f"no host {asked!r}; list them to see which there are"


def test_what_belongs_to_others_looks_like_what_does_not_exist(fleet_of_two: World) -> None:
    world = fleet_of_two
    theirs = world.run(claims.create_slice, SliceCreate(tenant="rival", profile="small")).id
    acme, lab = world.tenant_actor("acme"), world.tenant_actor("lab")
    calls: list[Call] = [
        (tenants.get_tenant, ("rival",), {}),
        (quotas.get_quota, ("rivals-lab",), {}),
        (claims.create_slice, (SliceCreate(tenant="rival", profile="small"),), {}),
        (claims.list_slices, (PAGE,), {"tenant": "rival"}),
        (usage.list_usage, (PAGE,), {"tenant": "rival"}),
    ]
    for service, arguments, options in calls:
        with refused(Code.OBJECT_UNKNOWN) as caught:
            world.run(service, *arguments, actor=acme, **options)
        assert caught.refusal is not None
        told = caught.refusal.detail
        missing = tuple(one.replace("rival", "ghost") if isinstance(one, str) else one for one in arguments)
        missing = tuple(
            one.model_copy(update={"tenant": "ghost"}) if isinstance(one, SliceCreate) else one for one in missing
        )
        options = {key: value.replace("rival", "ghost") for key, value in options.items()}
        with refused(Code.OBJECT_UNKNOWN) as caught:
            world.run(service, *missing, actor=acme, **options)
        assert caught.refusal is not None
        assert told.replace("rival", "ghost") == caught.refusal.detail
    for service in (claims.get_slice, claims.delete_slice):
        options = {"if_match": None} if service is claims.delete_slice else {}
        for slice_id in (theirs, uuid4()):
            with refused(Code.OBJECT_UNKNOWN):
                world.run(service, slice_id, actor=acme, **options)
    with refused(Code.OBJECT_UNKNOWN):
        world.run(tenants.get_tenant, "acme", actor=lab)


@pytest.mark.parametrize("service", [claims.list_slices, usage.list_usage])
def test_to_a_tenant_hosts_without_anything_of_it_look_like_none(
    fleet_of_two: World, service: Callable[..., Any]
) -> None:
    world = fleet_of_two
    theirs = world.run(claims.create_slice, SliceCreate(tenant="rival", profile="small")).host
    acme = world.tenant_actor("acme")
    for host in (theirs, str(world.run(hosts.get_host, theirs).id), "no-such", str(uuid4())):
        assert world.run(service, PAGE, host=host, actor=acme).items == []
    with refused(Code.OBJECT_UNKNOWN):
        world.run(service, PAGE, host="no-such")


def test_an_account_reaches_its_projects_and_a_project_itself(fleet_of_two: World) -> None:
    world = fleet_of_two
    agent = world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token)
    agent.report(desired=agent.desired())
    made: dict[str, UUID] = {
        name: world.run(claims.create_slice, SliceCreate(tenant=name, profile="small", host="one")).id
        for name in ("acme", "lab", "rival", "rivals-lab")
    }
    agent.report(groups=[group(name) for name in made])
    for tenant, reach in (("acme", {"acme", "lab"}), ("lab", {"lab"})):
        actor = world.tenant_actor(tenant)
        assert {one.name for one in world.run(tenants.list_tenants, PAGE, actor=actor).items} == reach
        assert {one.tenant for one in world.run(quotas.list_quotas, PAGE, actor=actor).items} == reach
        assert {one.tenant for one in world.run(claims.list_slices, PAGE, actor=actor).items} == reach
        assert {one.tenant for one in world.run(usage.list_usage, PAGE, actor=actor).items} == reach
        assert {one.tenant for one in world.events(actor=actor).items} == reach
        for name in reach:
            assert world.run(claims.get_slice, made[name], actor=actor).tenant == name
            world.run(claims.create_slice, SliceCreate(tenant=name, profile="small"), actor=actor)
    assert len({one.tenant for one in world.run(claims.list_slices, PAGE).items}) == 4


def test_a_tenants_token_lives_no_longer_than_told_nor_than_the_tenant(world: World, clock: Clock) -> None:
    world.tenant("acme")

    def issue(**members: Any) -> str:
        secret: str = world.run(
            tokens.create_token, TokenCreate(role=TokenRole.TENANT, subject="acme", **members)
        ).secret
        return secret

    def works(secret: str) -> bool:
        try:
            return world.database.run(lambda session: authenticate(session, secret)).name == "tenant:acme"
        except Exception:
            return False

    short, long, revoked = issue(expires_in_s=60), issue(), issue()
    assert works(short)
    clock.advance(60)
    assert not works(short)
    listed = world.run(tokens.list_tokens, PAGE).items
    assert len(listed) == 3
    assert {one.subject for one in listed} == {"acme"}
    assert [len(world.run(tokens.list_tokens, PAGE, expired=over).items) for over in (True, False)] == [1, 2]
    actor = world.database.run(lambda session: authenticate(session, revoked))
    world.run(tokens.delete_token, actor.token_id)
    assert not works(revoked)
    assert works(long)
    world.run(tenants.delete_tenant, "acme", if_match=None)
    assert not works(long)


def test_a_secret_that_was_replaced_does_not_count_though_its_credential_is_there(world: World) -> None:
    shown = world.host("one").actor

    def confirm(actor: Actor) -> None:
        world.database.run(lambda session: require_credential(session, actor))

    confirm(shown)
    confirm(replace(shown, secret_hash=""))  # the caller showed a certificate
    for other in (replace(shown, secret_hash="0" * 64), replace(shown, token_id=uuid4(), secret_hash="")):
        with refused(Code.AUTH_INVALID):
            confirm(other)


@pytest.mark.parametrize(
    "secret", ["", "vgpu_", "x" * 48, "vgpu_" + "a" * 43, "vgpu_" + "a" * 43 + "\n", "\0", "ü" * 48]
)
def test_other_words_are_no_token(world: World, secret: str) -> None:
    with refused(Code.AUTH_INVALID):
        world.database.run(lambda session: authenticate(session, secret))


def test_a_token_request_must_make_sense(world: World) -> None:
    for request in (
        TokenCreate(role=TokenRole.HOST, subject="one"),
        TokenCreate(role=TokenRole.OPERATOR, subject="acme"),
        TokenCreate(role=TokenRole.TENANT),
    ):
        with refused(Code.FIELD_INVALID):
            world.run(tokens.create_token, request)
    with refused(Code.OBJECT_UNKNOWN):
        world.run(tokens.create_token, TokenCreate(role=TokenRole.TENANT, subject="nobody"))


def test_no_secret_is_stored(world: World) -> None:
    from sqlalchemy import text

    world.tenant("acme")
    secrets = [
        world.run(tokens.create_token, TokenCreate(role=TokenRole.OPERATOR)).secret,
        world.run(hosts.create_host, HostCreate(name="one")).enroll_token,
    ]
    stored = world.database.run(
        lambda session: [
            str(row)
            for table in ("tokens", "hosts", "events", "idempotency_keys")
            for row in session.execute(text(f"SELECT * FROM {table}"))
        ]
    )
    assert stored
    assert not any(secret in row or secret[5:] in row for secret in secrets for row in stored)


def test_a_name_is_taken_once_and_a_project_has_no_projects(world: World) -> None:
    world.tenant("acme")
    world.tenant("lab", account="acme")
    with refused(Code.OBJECT_EXISTS) as caught:
        world.tenant("acme")
    assert caught.refusal is not None
    assert [reason.field for reason in caught.refusal.reasons] == ["$.name"]
    with refused(Code.OBJECT_UNKNOWN):
        world.tenant("x", account="nobody")
    with refused(Code.FIELD_INVALID):
        world.tenant("x", account="lab")
    world.profile(name="small")
    with refused(Code.OBJECT_EXISTS):
        world.profile(name="small")
    world.host("one")
    with refused(Code.OBJECT_EXISTS):
        world.host("one")
    for name in ("", "a\0", "A", "x" * 64, "%", "ü"):
        with refused(Code.OBJECT_UNKNOWN):
            world.run(tenants.get_tenant, name)
        with refused(Code.OBJECT_UNKNOWN):
            world.run(profiles.get_profile, name)
        with refused(Code.OBJECT_UNKNOWN):
            world.run(hosts.get_host, name)


def test_a_hosts_token_that_was_replaced_since_it_was_looked_up_does_nothing(world: World) -> None:
    """The first certificate for a token replaces the token's secret under the same id."""
    agent = world.host("one")
    known = world.database.run(lambda session: authenticate(session, agent.secret))
    assert world.run(agents.desired_generation, "one", actor=known)
    with world.database.engine.begin() as connection:
        connection.execute(update(records.Token).where(records.Token.id == known.token_id).values(secret_hash="0" * 64))
    with refused(Code.AUTH_INVALID):
        world.run(agents.desired_generation, "one", actor=known)
