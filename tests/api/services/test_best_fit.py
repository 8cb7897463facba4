# SPDX-License-Identifier: Apache-2.0
"""The choice between several GPUs that fit: the remainder stays useful, or the slices are spread."""

import random
from fractions import Fraction

from vgpumgr_api.placement.candidates import LOOKED_AT

from tests.api.services.refusals import refused
from tests.api.world import World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Placement, SliceCreate

ADDRESSES = tuple(f"0000:00:1{number}.0" for number in range(8))
CLASSES = (1, 2, 4, 8)


def fleet(world: World, size: int) -> None:
    world.host("one", inventory=[gpu(address, types=CLASSES) for address in ADDRESSES[:size]])
    world.tenant("acme")


def test_what_is_left_of_one_resource_is_not_stranded_without_the_other(world: World) -> None:
    fleet(world, 2)
    much_share = world.claim("acme", world.profile(share=850, gib=1))
    balanced = world.claim("acme", world.profile(share=700, gib=8))
    assert balanced.gpu_id != much_share.gpu_id
    # The first GPU has less free share, but 13 of its 16 GiB would be left beside 5 % of share. A claim can use that
    # now.
    assert world.claim("acme", world.profile(share=100, gib=4)).gpu_id == balanced.gpu_id
    assert world.claim("acme", world.profile(share=150, gib=8)).gpu_id == much_share.gpu_id


def test_the_larger_remainder_is_the_smallest_that_there_is(world: World) -> None:
    """Compared with a search of all GPUs, while claims come and go."""
    fleet(world, 8)
    profiles = [world.profile(share, gib) for share, gib in ((400, 1), (100, 4), (250, 2), (50, 8))]
    rng = random.Random(7)
    for _ in range(30):
        profile = rng.choice(profiles)
        remainders = {
            each.id: max(
                Fraction(1000 - each.used_share_permille - profile.share_permille, 1000),
                Fraction(each.mem_bytes - each.used_mem_bytes - profile.mem_bytes, each.mem_bytes),
            )
            for each in world.gpus()
            if each.used_share_permille + profile.share_permille <= 1000
            and each.used_mem_bytes + profile.mem_bytes <= each.mem_bytes
        }
        if not remainders:
            continue
        assert remainders[world.claim("acme", profile).gpu_id] == min(remainders.values())


def test_gpus_that_are_full_of_share_alike_hide_none_that_fits_better(world: World) -> None:
    alike = LOOKED_AT + 1
    addresses = [f"0000:{number:02x}:00.0" for number in range(alike + 2)]
    agent = world.host("one", inventory=[gpu(address, types=(1, 4, 8, 12)) for address in addresses])
    world.tenant("acme")
    spread = {"host": agent.name, "placement": Placement.SPREAD}
    emptier = world.claim("acme", world.profile(share=300, gib=12), **spread)
    emptiest = world.claim("acme", world.profile(share=200, gib=8), **spread)
    full = [world.claim("acme", world.profile(share=400, gib=1), **spread).gpu_id for _ in range(alike)]
    assert len({*full, emptier.gpu_id, emptiest.gpu_id}) == len(addresses)

    assert world.claim("acme", world.profile(share=300, gib=4)).gpu_id == emptier.gpu_id
    assert world.claim("acme", world.profile(share=500, gib=8)).gpu_id == emptiest.gpu_id


def test_spread_takes_the_emptiest(world: World) -> None:
    fleet(world, 3)
    profile = world.profile(share=100)
    used = [world.claim("acme", profile, placement=Placement.SPREAD).gpu_id for _ in range(6)]
    assert len(set(used[:3])) == 3
    assert set(used[3:]) == set(used[:3])
    batch = [SliceCreate(tenant="acme", profile=profile.name, placement=Placement.SPREAD) for _ in range(3)]
    assert len({claim.gpu_id for claim in world.claim_all(batch)}) == 3


def test_a_batch_is_all_or_nothing(world: World) -> None:
    fleet(world, 2)
    profile, large = world.profile(share=400), world.profile(share=700)
    want = SliceCreate(tenant="acme", profile=profile.name)
    claimed = world.claim_all([want, want, want])
    assert [claim.generation for claim in claimed] == [1, 1, 1]
    assert len({claim.id for claim in claimed}) == 3
    before = [(each.used_share_permille, each.used_mem_bytes) for each in world.gpus()]
    quota = world.quota("acme")

    with refused(Code.CAPACITY_NONE) as caught:
        world.claim_all([want, SliceCreate(tenant="acme", profile=large.name)])
    assert caught.reasons == {"share.full": 2}
    world.quota("acme", slices=4)
    with refused(Code.QUOTA_EXCEEDED) as caught:
        world.claim_all([want, want])
    assert caught.reasons == {"quota.slices": None}
    assert world.claim_all([want], validate_only=True)[0].share_permille == 400

    assert [(each.used_share_permille, each.used_mem_bytes) for each in world.gpus()] == before
    assert world.quota("acme").used_slices == quota.used_slices == 3
    world.tenant("blue")
    with refused(Code.FIELD_INVALID) as caught:
        world.claim_all([want, SliceCreate(tenant="blue", profile=profile.name)])
    assert caught.refusal is not None
    assert [reason.field for reason in caught.refusal.reasons] == ["$.slices[1].tenant"]
