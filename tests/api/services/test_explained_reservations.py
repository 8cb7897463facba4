# SPDX-License-Identifier: Apache-2.0
"""The explanation of a claim on a reservation agrees with the result of the claim."""

from typing import Any
from uuid import uuid4

import pytest
from vgpumgr_api.claims import claims, explain
from vgpumgr_api.errors import Refusal
from vgpumgr_api.tenancy import quotas

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import World, gpu
from vgpumgr.wire.common import Mode
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Explanation, HostState, Level, Profile, QuotaPatch, SliceCreate, Tie

A, B = "0000:00:10.0", "0000:00:11.0"


@pytest.fixture
def profile(world: World) -> Profile:
    """Two hosts with two GPUs each, a tenant, and slices that fill a GPU."""
    for name in ("one", "two"):
        world.host(name, inventory=[gpu(A), gpu(B)])
    world.tenant("acme")
    return world.profile(share=1000)


def explained(world: World, profile: Profile, **members: Any) -> Explanation:
    """Explains a claim in a read-only transaction, then makes the claim, which must have the same result."""
    wanted = SliceCreate(tenant="acme", profile=profile.name, **members)
    actor = world.tenant_actor("acme")
    said: Explanation = world.database.run(
        lambda session: explain.explain(session, actor, wanted), read_only=True, snapshot=True
    )
    assert said.gpus == said.fitting + sum(each.count or 0 for each in said.reasons)
    try:
        made = world.claim("acme", profile, actor=actor, **members)
    except Refusal:
        assert (said.fits, said.host, said.gpu) == (False, None, None)
    else:
        assert (said.fits, said.host, said.gpu) == (True, made.host, made.gpu)
        assert said.fitting
    return said


def test_places_fit_though_nothing_else_is_free(world: World, profile: Profile) -> None:
    held = world.reserve("acme", profile, places=3)
    world.quota("acme", slices=3, share_permille=3000)  # the reservation holds the whole quota
    for left in (3, 2, 1):
        assert explained(world, profile, reservation=held.id).fitting >= left
    said = explained(world, profile, reservation=held.id)
    assert [each.code for each in said.reasons if each.count is None] == ["reservation.used"]


def test_a_place_on_a_host_that_takes_no_claims_is_exchanged(world: World, profile: Profile) -> None:
    held = world.reserve("acme", profile, places=2, host="one")
    world.set_host("one", state=HostState.CORDONED)
    assert explained(world, profile, reservation=held.id).host == "two"
    world.set_host("two", state=HostState.CORDONED)
    said = explained(world, profile, reservation=held.id)
    assert {each.code: each.count for each in said.reasons} == {"host.cordoned": 4}


@pytest.mark.parametrize("tie", ["affinity", "anti_affinity"])
@pytest.mark.parametrize("level", list(Level))
def test_its_own_ties_do_not_stand_in_the_way(world: World, tie: str, level: Level) -> None:
    for name in ("one", "two"):
        world.host(name, inventory=[gpu(A), gpu(B)])
    world.tenant("acme")
    small = world.profile(share=100)
    ties = {tie: Tie(key="db", level=level)}
    held = world.reserve("acme", small, places=2, **ties)
    assert explained(world, small, reservation=held.id).fits
    last = explained(world, small, reservation=held.id)
    assert last.fits
    moved = world.reserve("acme", small, places=1, host="one", **{tie: Tie(key="web", level=level)})
    world.set_host("one", state=HostState.CORDONED)
    assert explained(world, small, reservation=moved.id).host == "two"


@pytest.mark.parametrize("level", list(Level))
def test_a_place_that_would_be_given_up_keeps_nothing_away(world: World, level: Level) -> None:
    world.host(inventory=[gpu(A), gpu(B)])
    world.tenant("acme")
    small = world.profile(share=100)
    for each in world.gpus():
        world.set_gpu(each.id, labels={"z": "x" if each.address == A else "y"})
    held = world.reserve("acme", small, places=1, selector={"z": "x"}, anti_affinity=Tie(key="db", level=level))
    said = explained(world, small, reservation=held.id, selector={"z": "y"})
    assert (said.gpu, {each.code: each.count for each in said.reasons}) == (B, {"labels.other": 1})


def test_a_place_that_is_kept_keeps_away_from_its_host(world: World) -> None:
    """The first place is released, on whichever host it is, and the other place stays."""
    for name in ("one", "two"):
        world.host(name, inventory=[gpu(A), gpu(B)])
        for each in world.gpus():
            if each.host == name:
                world.set_gpu(each.id, labels={"z": "x" if each.address == A else "y"})
    world.tenant("acme")
    small = world.profile(share=100)
    held = world.reserve("acme", small, places=2, selector={"z": "x"}, anti_affinity=Tie(key="db", level=Level.HOST))
    said = explained(world, small, reservation=held.id, selector={"z": "y"})
    assert {each.code: each.count for each in said.reasons} == {"labels.other": 1, "anti_affinity.taken": 2}


def test_what_the_quota_does_not_allow_any_more_is_said(world: World, profile: Profile) -> None:
    held = world.reserve("acme", profile, places=1)
    generation = world.quota("acme").generation
    world.run(quotas.patch_quota, "acme", QuotaPatch(mode=Mode.STRICT), if_match=generation)
    said = explained(world, profile, reservation=held.id)
    assert [each.code for each in said.reasons if each.count is None] == ["quota.mode"]


def test_a_reservation_that_is_none_is_refused_as_the_claim_is(world: World, profile: Profile, clock: Clock) -> None:
    held = world.reserve("acme", profile, places=1, anti_affinity=Tie(key="db"), expires_in_s=60)

    def ask(code: Code, **members: Any) -> None:
        for service in (explain.explain, claims.create_slice):
            with refused(code):
                world.run(service, SliceCreate(tenant="acme", **members))

    ask(Code.OBJECT_UNKNOWN, profile=profile.name, reservation=uuid4())
    ask(Code.FIELD_INVALID, profile=world.profile(share=10).name, reservation=held.id)
    ask(Code.FIELD_INVALID, profile=profile.name, reservation=held.id, anti_affinity=Tie(key="other"))
    clock.advance(60)
    ask(Code.OBJECT_UNKNOWN, profile=profile.name, reservation=held.id)
