# SPDX-License-Identifier: Apache-2.0
"""Slices of one tenant that must be together, or must not be."""

from typing import Any

from tests.api.services.refusals import refused
from tests.api.world import World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Level, SliceCreate, Tie

A, B = "0000:00:10.0", "0000:00:11.0"
ON_HOST, ON_GPU = Tie(key="db"), Tie(key="db", level=Level.GPU)


def fleet(world: World) -> Any:
    for name in ("one", "two"):
        world.host(name, inventory=[gpu(A), gpu(B)])
    world.tenant("acme")
    return world.profile(share=100)


def test_anti_affinity_keeps_slices_on_different_hosts_or_gpus(world: World) -> None:
    profile = fleet(world)
    claims = [world.claim("acme", profile, anti_affinity=ON_HOST) for _ in range(2)]
    assert {claim.host for claim in claims} == {"one", "two"}
    assert claims[0].anti_affinity is not None
    assert (claims[0].anti_affinity.key, claims[0].anti_affinity.level) == ("db", Level.HOST)
    for tie in (ON_HOST, ON_GPU):  # the levels of existing slices count too
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile, anti_affinity=tie)
        assert caught.reasons == {"anti_affinity.taken": 4}
    assert len({world.claim("acme", profile, anti_affinity=Tie(key="x", level="gpu")).gpu_id for _ in range(4)}) == 4
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile, anti_affinity=Tie(key="x", level="gpu"))

    world.tenant("blue")
    world.claim("blue", profile, anti_affinity=ON_HOST)  # slices of other tenants do not count


def test_a_slice_keeps_others_away_until_its_host_has_confirmed_that_it_is_gone(world: World) -> None:
    agent = world.host("one")
    world.tenant("acme")
    profile = world.profile(share=100)
    first = world.claim("acme", profile, anti_affinity=ON_HOST)
    world.delete(first.id)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile, anti_affinity=ON_HOST)
    agent.confirm_gone(first.id)
    world.claim("acme", profile, anti_affinity=ON_HOST)


def test_affinity_keeps_slices_together_while_there_are_any(world: World) -> None:
    profile = fleet(world)
    large = world.profile(share=900)
    first = world.claim("acme", profile, affinity=ON_HOST, host="two")
    world.claim("acme", large, host="two", affinity=ON_HOST)
    other = world.claim("acme", profile, affinity=ON_HOST)
    assert other.host == first.host == "two"
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile, affinity=ON_HOST, host="one")
    assert caught.reasons == {"host.other": 2, "affinity.apart": 2}
    tight = Tie(key="tight", level=Level.GPU)
    pair = world.claim_all([SliceCreate(tenant="acme", profile=profile.name, affinity=tight) for _ in range(2)])
    assert pair[0].gpu_id == pair[1].gpu_id
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", large, affinity=Tie(key="tight"))  # the existing slices have the stricter level
    assert caught.reasons["affinity.apart"] == 3
    for claim in pair:
        world.delete(claim.id)
    world.claim("acme", large, affinity=tight)


def test_a_batch_that_cannot_keep_apart_claims_nothing(world: World) -> None:
    profile = fleet(world)
    want = SliceCreate(tenant="acme", profile=profile.name, anti_affinity=ON_HOST)
    with refused(Code.CAPACITY_NONE):
        world.claim_all([want, want, want])
    assert world.quota("acme").used_slices == 0
    assert {claim.host for claim in world.claim_all([want, want])} == {"one", "two"}
