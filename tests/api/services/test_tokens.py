# SPDX-License-Identifier: Apache-2.0
"""The limits on tokens: a tenant has a maximum number, and expired tokens are deleted."""

from typing import Any
from uuid import UUID

import pytest
from vgpumgr_api.actors import authenticate
from vgpumgr_api.auth import tokens
from vgpumgr_api.background.jobs import jobs
from vgpumgr_api.config import Config
from vgpumgr_api.errors import Refusal
from vgpumgr_api.resources.paging import PageRequest

from tests.api.concurrency.uncommitted import behind
from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import TokenCreate, TokenCreated, TokenRole

DAY_S = 86400


def issue(world: World, subject: str | None = "acme", **members: Any) -> TokenCreated:
    role = members.pop("role", TokenRole.TENANT if subject else TokenRole.OPERATOR)
    made: TokenCreated = world.run(tokens.create_token, TokenCreate(role=role, subject=subject, **members))
    return made


def kept(world: World) -> set[UUID]:
    return {one.id for one in world.run(tokens.list_tokens, PageRequest(size=1000)).items}


def test_tokens_that_ended_long_ago_go_and_no_others(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.host("one")
    world.tenant("acme")
    monkeypatch.setattr(tokens, "FORGOTTEN_AT_ONCE", 2)
    old = [issue(world, subject, expires_in_s=60) for subject in ("acme", "acme", None)]
    stay = [issue(world), issue(world, None), issue(world, expires_in_s=DAY_S), agent.actor]
    before = kept(world)
    [job] = [job for job in jobs(Config(database="sqlite://")) if job.name == "forget tokens that ended"]
    clock.advance(60 + 30 * DAY_S - 1)
    assert not world.database.run(job.work)
    assert kept(world) == before
    with refused(Code.AUTH_EXPIRED):
        world.database.run(lambda session: authenticate(session, old[0].secret))
    clock.advance(1)
    assert [world.database.run(job.work) for _ in range(2)] == [True, False]
    assert before - kept(world) == {one.id for one in old}
    assert {getattr(one, "id", None) or one.token_id for one in stay} <= kept(world)
    with refused(Code.AUTH_INVALID):
        world.database.run(lambda session: authenticate(session, old[0].secret))


def test_a_tenant_has_so_many_tokens_that_count_and_no_more(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.tenant("acme")
    world.tenant("web", account="acme")
    monkeypatch.setattr(tokens, "TOKENS_MAX", 3)
    manager = issue(world, role=TokenRole.TENANT_ADMIN)
    own = world.database.run(lambda session: authenticate(session, manager.secret))
    wanted = TokenCreate(role=TokenRole.VIEWER, subject="acme", expires_in_s=60)
    world.run(tokens.create_token, wanted, actor=own)
    last = issue(world)
    for actor in (own, None):
        with refused(Code.QUOTA_EXCEEDED) as caught:
            world.run(tokens.create_token, wanted, actor=actor)
        assert caught.reasons == {"quota.tokens": None}
        assert caught.refusal is not None
        assert caught.refusal.limits == {"tenant": "acme", "tokens": {"limit": 3, "used": 3, "requested": 1}}
    world.run(tokens.create_token, wanted.model_copy(update={"subject": "web"}), actor=own)
    issue(world, None)
    clock.advance(60)
    world.run(tokens.create_token, wanted, actor=own)
    with refused(Code.QUOTA_EXCEEDED):
        issue(world)
    world.run(tokens.delete_token, last.id)
    issue(world)


@pytest.mark.parametrize("engine_name", ["postgresql"])
def test_of_two_who_make_the_last_token_one_is_refused(world: World, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world.tenant("acme")
    monkeypatch.setattr(tokens, "TOKENS_MAX", 1)
    wanted = TokenCreate(role=TokenRole.TENANT, subject="acme")
    made, late, _ = behind(
        world.database,
        url,
        lambda session: tokens.create_token(session, world.operator, wanted),
        lambda: issue(world),
    )
    assert isinstance(made, TokenCreated)
    assert isinstance(late, Refusal)
    assert late.code is Code.QUOTA_EXCEEDED
