# SPDX-License-Identifier: Apache-2.0
"""A request that is sent twice is carried out once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import cast
from uuid import uuid4

import pytest
from sqlalchemy import text
from vgpumgr_api.actors import Actor
from vgpumgr_api.claims import claims
from vgpumgr_api.resources import idempotency
from vgpumgr_api.resources.idempotency import Once, once

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import World
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Slice, SliceCreate


def claim(world: World, key: str, profile: str, *, actor: Actor | None = None, told: str = "") -> Slice:
    who = actor or world.operator
    request = SliceCreate(tenant="acme", profile=profile)
    return world.database.run(
        lambda session: once(
            session, who, key, told or profile, partial(claims.create_slice, session, who, request), Slice
        )
    )


def test_the_same_key_gets_the_same_answer(world: World) -> None:
    world.host()
    world.tenant("acme")
    profile = world.profile(share=100).name
    first = claim(world, "a", profile)
    world.delete(first.id)
    assert claim(world, "a", profile) == first
    assert world.quota("acme").used_slices == 1
    assert claim(world, "b", profile).id != first.id


def test_a_claim_keeps_its_answer_by_itself(world: World) -> None:
    world.host()
    world.tenant("acme")
    request = SliceCreate(tenant="acme", profile=world.profile(share=100).name)

    def claimed(key: str, told: str) -> Slice:
        return cast("Slice", world.run(claims.create_slice, request, once=Once(key, told)))

    first = claimed("a", "this")
    assert claimed("a", "this") == first == world.slice(first.id)
    assert claimed("b", "this") != first
    with refused(Code.IDEMPOTENCY_MISMATCH):
        claimed("a", "that")
    assert world.quota("acme").used_slices == 2


def test_a_key_for_another_request_is_refused(world: World) -> None:
    world.host()
    world.tenant("acme")
    claim(world, "a", world.profile(share=100).name)
    with refused(Code.IDEMPOTENCY_MISMATCH):
        claim(world, "a", world.profile(share=200).name)
    assert world.quota("acme").used_slices == 1


def test_the_next_token_of_a_tenant_gets_the_answer_and_nobody_else_does(world: World) -> None:
    world.host()
    world.tenant("acme")
    world.tenant("other")
    profile = world.profile(share=100).name
    first, second, other = (world.tenant_actor(name) for name in ("acme", "acme", "other"))
    claimed = claim(world, "a", profile, actor=first)
    assert claim(world, "a", profile, actor=second) == claimed
    assert claim(world, "a", profile).id != claimed.id
    with refused(Code.OBJECT_UNKNOWN):
        claim(world, "a", profile, actor=other)
    assert world.quota("acme").used_slices == 2


def test_a_refusal_is_not_kept(world: World) -> None:
    world.host()
    world.tenant("acme", slices=0)
    profile = world.profile(share=100).name
    with refused(Code.QUOTA_EXCEEDED):
        claim(world, "a", profile)
    world.quota("acme", slices=1)
    claim(world, "a", profile)


def test_keys_are_kept_for_a_day(world: World, clock: Clock) -> None:
    agent = world.host()
    world.tenant("acme")
    profile = world.profile(share=100).name
    first = claim(world, "a", profile)
    clock.advance(24 * 3600)
    assert claim(world, "a", profile) == first
    clock.advance(1)
    agent.report()
    assert claim(world, "a", profile).id != first.id


def test_keys_that_are_too_old_are_swept_now_and_then(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = world.host()
    world.tenant("acme")
    profile = world.profile(share=100).name
    kept = text("SELECT key FROM idempotency_keys ORDER BY key")
    for every, key, left in ((1 << 62, "a", ["a"]), (1 << 62, "b", ["a", "b"]), (1, "c", ["c"])):
        monkeypatch.setattr(idempotency, "SWEPT_EVERY", every)
        agent.report()
        claim(world, key, profile)
        assert world.database.run(lambda session: list(session.scalars(kept))) == left
        clock.advance(25 * 3600)


def test_the_same_key_at_the_same_time_claims_once(world: World) -> None:
    world.host()
    world.tenant("acme")
    profile = world.profile(share=10).name
    together = threading.Barrier(8)

    def send(key: str) -> Slice:
        together.wait()
        return claim(world, key, profile)

    for _ in range(3):
        key = str(uuid4())
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(send, [key] * 8))
        assert len({answer.id for answer in answers}) == 1
    assert world.quota("acme").used_slices == 3
    assert world.gpus()[0].used_share_permille == 30
