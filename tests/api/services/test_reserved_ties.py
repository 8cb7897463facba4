# SPDX-License-Identifier: Apache-2.0
"""Reserved places with affinity or anti-affinity: among each other, with slices, and for the slices that take them."""

from typing import Any

import pytest
from vgpumgr_api.claims import reservations

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import HostState, Level, Profile, Tie

A, B = "0000:00:10.0", "0000:00:11.0"
ON_HOST, ON_GPU = Tie(key="db"), Tie(key="db", level=Level.GPU)


@pytest.fixture
def profile(world: World) -> Profile:
    """Two hosts with two GPUs each, and a tenant."""
    for name in ("one", "two"):
        world.host(name, inventory=[gpu(A), gpu(B)])
    world.tenant("acme")
    return world.profile(share=100)


def test_places_are_held_apart_and_so_are_the_slices_that_take_them(world: World, profile: Profile) -> None:
    held = world.reserve("acme", profile, places=2, anti_affinity=ON_HOST)
    assert held.affinity is None
    assert held.anti_affinity is not None
    assert (held.anti_affinity.key, held.anti_affinity.level) == ("db", Level.HOST)
    for tie in (ON_HOST, ON_GPU):  # a place keeps others away like a slice does
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile, anti_affinity=tie)
        assert caught.reasons == {"anti_affinity.taken": 4}
        with refused(Code.CAPACITY_NONE):
            world.reserve("acme", profile, places=1, anti_affinity=tie)
    taken = [world.claim("acme", profile, reservation=held.id) for _ in range(2)]
    assert {each.host for each in taken} == {"one", "two"}
    assert all(each.anti_affinity == held.anti_affinity for each in taken)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile, anti_affinity=ON_HOST)


def test_more_places_apart_than_there_can_be_hold_nothing(world: World, profile: Profile) -> None:
    with refused(Code.CAPACITY_NONE):
        world.reserve("acme", profile, places=3, anti_affinity=ON_HOST)
    with refused(Code.CAPACITY_NONE):
        world.reserve("acme", profile, places=5, anti_affinity=ON_GPU)
    assert world.quota("acme").used_slices == 0
    assert len({each.gpu_id for each in four(world, profile)}) == 4


def four(world: World, profile: Profile) -> list[Any]:
    held = world.reserve("acme", profile, places=4, anti_affinity=ON_GPU)
    return [world.claim("acme", profile, reservation=held.id) for _ in range(4)]


def test_places_are_held_together_with_slices_and_draw_slices_to_them(world: World, profile: Profile) -> None:
    large = world.profile(share=900)
    first = world.claim("acme", profile, affinity=ON_HOST, host="two")
    held = world.reserve("acme", large, places=1, affinity=ON_GPU)
    assert world.claim("acme", large, reservation=held.id).gpu_id == first.gpu_id
    other = world.reserve("acme", profile, places=2, affinity=Tie(key="web", level=Level.GPU), host="one")
    drawn = world.claim("acme", profile, affinity=Tie(key="web"))
    taken = [world.claim("acme", profile, reservation=other.id) for _ in range(2)]
    assert {each.gpu_id for each in taken} == {drawn.gpu_id}
    assert drawn.host == "one"


def test_a_claim_may_name_the_ties_of_its_reservation_and_no_others(world: World, profile: Profile) -> None:
    held = world.reserve("acme", profile, places=2, anti_affinity=ON_HOST)
    for tie in (ON_GPU, Tie(key="other")):
        with refused(Code.FIELD_INVALID) as caught:
            world.claim("acme", profile, reservation=held.id, anti_affinity=tie)
        assert caught.refusal is not None
        assert caught.refusal.reasons[0].field == "$.anti_affinity"
    first = world.claim("acme", profile, reservation=held.id, anti_affinity=ON_HOST)
    assert first.anti_affinity is not None
    # The claim may have an affinity that the reservation does not state; it is applied to the reserved places.
    world.claim("acme", profile, affinity=Tie(key="near"), host=first.host)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile, reservation=held.id, affinity=Tie(key="near"))
    other = {"one": "two", "two": "one"}[first.host]
    world.claim("acme", profile, affinity=Tie(key="there"), host=other)
    assert world.claim("acme", profile, reservation=held.id, affinity=Tie(key="there")).host == other


def test_a_place_that_moves_keeps_its_ties(world: World, profile: Profile) -> None:
    """The place's host is closed to claims, so another place is taken instead; it, too, is apart from the rest."""
    world.host("three", inventory=[gpu(A)])
    held = world.reserve("acme", profile, places=2, anti_affinity=ON_HOST)
    first = world.claim("acme", profile, reservation=held.id)
    for name in {"one", "two", "three"} - {first.host}:
        world.set_host(name, state=HostState.CORDONED)
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile, reservation=held.id)
    assert "anti_affinity.taken" in caught.reasons
    assert world.run(reservations.get_reservation, held.id).places_left == 1
    free = next(name for name in ("one", "two", "three") if name != first.host)
    world.set_host(free, state=HostState.READY)
    assert world.claim("acme", profile, reservation=held.id).host == free


def test_the_last_place_of_an_affinity_moves_freely(world: World, profile: Profile) -> None:
    held = world.reserve("acme", profile, places=1, affinity=ON_HOST, host="one")
    world.set_host("one", state=HostState.CORDONED)
    assert world.claim("acme", profile, reservation=held.id).host == "two"


def test_what_has_expired_or_is_anothers_ties_nobody(world: World, profile: Profile, clock: Clock) -> None:
    world.tenant("blue")
    world.reserve("acme", profile, places=1, affinity=ON_HOST, host="two", expires_in_s=60)
    world.reserve("acme", profile, places=2, anti_affinity=ON_HOST, expires_in_s=60)
    world.claim("blue", profile, affinity=ON_HOST, host="one")
    world.claim("blue", profile, anti_affinity=ON_HOST)
    assert world.claim("acme", profile, affinity=ON_HOST).host == "two"


def test_after_its_end_a_reservation_keeps_nobody_away(world: World, profile: Profile, clock: Clock) -> None:
    world.reserve("acme", profile, places=2, anti_affinity=ON_HOST, expires_in_s=60)
    world.reserve("acme", profile, places=1, affinity=ON_HOST, host="two", expires_in_s=60)
    clock.advance(60)
    assert world.claim("acme", profile, affinity=ON_HOST, host="one").id  # no slice or place with that affinity is left
    while world.database.run(reservations.expire):
        pass
    world.claim("acme", profile, anti_affinity=ON_HOST)
