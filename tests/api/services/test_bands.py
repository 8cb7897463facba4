# SPDX-License-Identifier: Apache-2.0
"""Bands and policies: who may claim them, on which GPUs, what hosts are told, and that everything is released."""

from typing import Any

import pytest
from vgpumgr_api.claims import explain, profiles, reservations
from vgpumgr_api.tenancy import quotas
from vgpumgr_api.tenancy.enforcement import reserved_permille

from tests.api.services.refusals import refused
from tests.api.world import ADDRESS, GIB, Agent, World, gpu
from vgpumgr.wire.common import Band, Mode, Policy
from vgpumgr.wire.fleet import ReportedGpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Profile, ProfileCreate, QuotaPatch, SliceCreate

PERIOD_US = 20_000
CHUNK_US = 500


def shared(address: str = ADDRESS, **members: Any) -> ReportedGpu:
    said = {"reserve_limit_permille": 750, **members}
    return gpu(address).model_copy(update=said)


@pytest.fixture
def agent(world: World) -> Agent:
    world.tenant("acme")
    return world.host("one", inventory=[shared()])


def profile(world: World, share: int = 250, name: str = "", **members: Any) -> Profile:
    wanted = ProfileCreate(name=name or f"p{share}", share_permille=share, mem_bytes=GIB, **members)
    made: Profile = world.run(profiles.create_profile, wanted)
    return made


def latency(world: World, share: int = 250, **members: Any) -> Profile:
    return profile(world, share, f"l{share}", band=Band.LATENCY, **members)


def counted(share: int) -> int:
    return reserved_permille(share, CHUNK_US, PERIOD_US)


def test_a_latency_slice_has_its_share_reserved_on_its_host(world: World, agent: Agent) -> None:
    world.claim("acme", profile(world, 100))
    claimed = world.claim("acme", latency(world, 250))
    assert (claimed.band, claimed.reserve_period_us) == (Band.LATENCY, PERIOD_US)
    [group] = agent.desired().groups
    assert (group.band, group.reserve_us, group.reserve_period_us) == (Band.LATENCY, 5000, PERIOD_US)
    assert (group.weight, group.mode, group.cap_us) == (350, Mode.FAIR, 0)
    [seen] = world.gpus()
    assert (seen.used_reserve_permille, seen.reserve_limit_permille) == (counted(250), 750)


def test_a_strict_latency_slice_is_reserved_no_more_than_its_cap(world: World, agent: Agent) -> None:
    world.claim("acme", latency(world, 333, mode=Mode.STRICT))
    [group] = agent.desired().groups
    assert (group.mode, group.band) == (Mode.STRICT, Band.LATENCY)
    assert group.reserve_us * group.cap_period_us <= group.cap_us * group.reserve_period_us


def test_what_is_reserved_is_given_back(world: World, agent: Agent) -> None:
    one, fair = world.claim("acme", latency(world, 250)), world.claim("acme", profile(world, 100))
    world.delete(one.id)
    assert world.gpus()[0].used_reserve_permille == counted(250)
    agent.confirm_gone(one.id)
    assert world.gpus()[0].used_reserve_permille == 0
    [group] = agent.desired().groups
    assert (group.band, group.reserve_us) == (Band.FAIR, 0)
    world.delete(fair.id)


def test_no_more_is_reserved_than_the_host_can_keep(world: World, agent: Agent) -> None:
    kind = latency(world, 300)
    for _ in range(2):
        world.claim("acme", kind)
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", kind)
    assert caught.reasons == {"reserve.full": 1}
    seen = world.run(explain.explain, SliceCreate(tenant="acme", profile=kind.name))
    assert [(reason.code, reason.count) for reason in seen.reasons] == [("reserve.full", 1)]
    world.claim("acme", profile(world, 300))  # other claims still find share


def test_a_host_that_reserves_nothing_takes_no_latency_slices(world: World, agent: Agent) -> None:
    agent.inventory = [shared(reserve_limit_permille=0)]
    agent.report()
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", latency(world, 1))
    assert caught.reasons == {"reserve.full": 1}


def test_a_limit_that_shrinks_takes_nothing_from_those_who_have_it(world: World, agent: Agent) -> None:
    one = world.claim("acme", latency(world, 400))
    agent.inventory = [shared(reserve_limit_permille=100)]
    assert agent.report()
    assert world.gpus()[0].reserve_limit_permille == counted(400)
    world.delete(one.id)
    agent.confirm_gone(one.id)
    agent.report()
    assert world.gpus()[0].reserve_limit_permille == 100


def test_what_is_held_under_a_limit_that_shrinks_is_free_for_nobody(world: World, agent: Agent) -> None:
    held = world.reserve("acme", latency(world, 400))
    agent.inventory = [shared(reserve_limit_permille=100)]
    assert agent.report()
    assert world.gpus()[0].reserve_limit_permille == counted(400)
    world.run(reservations.delete_reservation, held.id, if_match=None)
    assert world.gpus()[0].reserve_limit_permille == 100
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", latency(world, 300))
    assert caught.reasons == {"reserve.full": 1}


def test_a_period_has_room_for_four_pieces_of_work(world: World, agent: Agent) -> None:
    agent.inventory = [shared(max_chunk_us=PERIOD_US // 4 + 1)]
    agent.report()
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", latency(world, 1))
    assert caught.reasons == {"reserve.full": 1}


def test_a_quota_says_which_band_may_be_claimed(world: World, agent: Agent) -> None:
    quick, slow = latency(world), profile(world)
    world.tenant("web", account="acme")
    for owner in ("acme", "web"):
        world.quota(owner, band="fair")
        with refused(Code.QUOTA_FORBIDDEN) as caught:
            world.claim("web", quick)
        assert caught.refusal is not None
        [reason] = caught.refusal.reasons
        assert (reason.code, reason.field) == ("quota.band", "$.profile")
        world.claim("web", slow)
        with refused(Code.QUOTA_FORBIDDEN):
            world.reserve("web", quick)
        seen = world.run(explain.explain, SliceCreate(tenant="web", profile=quick.name))
        assert ("quota.band", False) in [(one.code, seen.fits) for one in seen.reasons]
        generation = world.run(quotas.get_quota, owner).generation
        world.run(quotas.patch_quota, owner, QuotaPatch(band=None), if_match=generation)
    assert world.claim("web", quick).band is Band.LATENCY


def test_a_place_that_is_held_for_a_latency_slice_is_reserved(world: World, agent: Agent) -> None:
    kind = latency(world, 300)
    held = world.reserve("acme", kind, places=2)
    assert world.gpus()[0].used_reserve_permille == 2 * counted(300)
    one = world.claim("acme", kind, reservation=held.id)
    world.run(reservations.delete_reservation, held.id, if_match=None)
    assert world.gpus()[0].used_reserve_permille == counted(300)
    world.delete(one.id)
    agent.confirm_gone(one.id)
    assert world.gpus()[0].used_reserve_permille == 0


# ---- policies


def test_a_profile_goes_only_on_gpus_of_its_policy(world: World, agent: Agent) -> None:
    kinds = {
        Policy.EQUAL_SHARE: profile(world, 250, "equal", policy=Policy.EQUAL_SHARE),
        Policy.FIXED_SHARE: profile(world, 250, "fixed", policy=Policy.FIXED_SHARE, mode=Mode.STRICT),
        Policy.BEST_EFFORT: profile(world, 250, "any"),
    }
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", kinds[Policy.EQUAL_SHARE])
    assert caught.reasons == {"policy.other": 1}
    for number, policy in enumerate((Policy.EQUAL_SHARE, Policy.FIXED_SHARE), 1):
        address = f"0000:0{number}:00.0"
        agent.inventory.append(shared(address, policy=policy, places=4 if policy is Policy.FIXED_SHARE else 0))
    agent.report()
    for policy, kind in kinds.items():
        claimed = world.claim("acme", kind)
        assert claimed.enforcement.policy is policy
    assert {group.mode for group in agent.desired().groups if group.gpu == "0000:02:00.0"} == {Mode.STRICT}
    assert not any(group.cap_us or group.reserve_us for group in agent.desired().groups)


def test_under_equal_share_all_slices_of_a_gpu_are_sold_the_same(world: World, agent: Agent) -> None:
    agent.inventory = [shared(policy=Policy.EQUAL_SHARE)]
    agent.report()
    half, third = (profile(world, share, f"e{share}", policy=Policy.EQUAL_SHARE) for share in (500, 333))
    world.claim("acme", half)
    with refused(Code.CAPACITY_NONE) as caught:  # with a third slice, the first would get only a third
        world.claim("acme", third)
    assert caught.reasons == {"policy.unequal": 1}
    held = world.reserve("acme", half)
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", half)
    assert caught.reasons == {"share.full": 1}
    assert world.claim("acme", half, reservation=held.id).enforcement.requested_permille == 500


def test_under_fixed_share_there_are_as_many_slices_as_places(world: World, agent: Agent) -> None:
    agent.inventory = [shared(policy=Policy.FIXED_SHARE, places=3)]
    agent.report()
    small, large = (
        profile(world, share, f"f{share}", policy=Policy.FIXED_SHARE, mode=Mode.STRICT) for share in (100, 334)
    )
    with refused(Code.CAPACITY_NONE) as caught:  # a place is a third of the GPU
        world.claim("acme", large)
    assert caught.reasons == {"policy.places": 1}
    world.claim("acme", small)
    with refused(Code.CAPACITY_NONE):
        world.reserve("acme", small, places=3)
    world.reserve("acme", small, places=2)
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", small)
    assert caught.reasons == {"policy.places": 1}


def test_a_host_is_told_anew_when_its_gpu_is_shared_otherwise(world: World, agent: Agent) -> None:
    world.claim("acme", profile(world, 250, mode=Mode.STRICT))
    before = agent.desired()
    assert before.groups[0].cap_us
    agent.inventory = [shared(policy=Policy.FIXED_SHARE, places=4)]
    agent.report()
    after = agent.desired()
    assert after.generation > before.generation
    assert not after.groups[0].cap_us


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"policy": Policy.EQUAL_SHARE, "mode": Mode.STRICT}, "$.mode"),
        ({"policy": Policy.FIXED_SHARE, "mode": Mode.FAIR}, "$.mode"),
        ({"policy": Policy.EQUAL_SHARE, "band": Band.LATENCY}, "$.band"),
        ({"policy": Policy.FIXED_SHARE, "mode": Mode.STRICT, "band": Band.LATENCY}, "$.band"),
        ({"reserve_period_us": 5000}, "$.reserve_period_us"),
    ],
)
def test_a_profile_that_no_kernel_takes_is_refused(world: World, members: dict[str, Any], field: str) -> None:
    with refused(Code.FIELD_INVALID) as caught:
        profile(world, **members)
    assert caught.refusal is not None
    assert [reason.field for reason in caught.refusal.reasons] == [field]
