# SPDX-License-Identifier: Apache-2.0
"""A GPU whose time is promised to fair slices more than once, by a published ratio; strict slices are never
over-committed.
"""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tests.api.services.refusals import refused
from tests.api.world import World, gpu
from vgpumgr.wire.common import Mode
from vgpumgr.wire.problem import Code

A, B = "0000:00:10.0", "0000:00:11.0"


def test_fair_slices_share_what_the_ratio_says_and_strict_ones_are_sure_of_theirs(world: World) -> None:
    agent = world.host("one")
    world.tenant("acme")
    world.tenant("blue")
    [only] = world.gpus()
    fair, strict = world.profile(share=500), world.profile(share=250, mode=Mode.STRICT)
    world.set_gpu(only.id, fair_ratio_permille=2000)
    sure = world.claim("blue", strict)
    claims = [world.claim("acme", fair) for _ in range(3)]
    assert world.gpus()[0].used_share_permille == 250 + 3 * 250
    for profile in (fair, strict):
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile)
        assert caught.reasons == {"share.full": 1}
    assert (world.slice(sure.id).share_permille, world.slice(sure.id).enforcement.requested_permille) == (250, 250)
    assert (claims[0].share_permille, claims[0].enforcement.requested_permille) == (500, 250)
    assert world.quota("acme").used_share_permille == 1500
    # The weights on the host add up to the GPU, so no slice is scaled because of another tenant's.
    weights = {group.tenant: group.weight for group in agent.desired().groups}
    assert weights == {"acme": 750, "blue": 250}

    world.set_gpu(only.id, fair_ratio_permille=1000)
    assert world.slice(claims[0].id).enforcement.requested_permille == 250
    for claim in [sure, *claims]:
        world.delete(claim.id)
        agent.confirm_gone(claim.id)
    assert world.gpus()[0].used_share_permille == 0
    world.claim("acme", fair)
    assert world.gpus()[0].used_share_permille == 500


def test_a_share_that_the_ratio_does_not_divide_counts_rounded_up(world: World) -> None:
    agent = world.host("one")
    world.tenant("acme")
    world.set_gpu(world.gpus()[0].id, fair_ratio_permille=3000)
    tiny, odd = world.profile(share=1), world.profile(share=500)
    ids = [world.claim("acme", tiny).id, world.claim("acme", odd).id]
    assert world.gpus()[0].used_share_permille == 1 + 167
    for slice_id in ids:
        world.delete(slice_id)
    agent.confirm_gone(*ids)
    assert world.gpus()[0].used_share_permille == 0


def test_an_over_committed_gpu_that_is_nearly_full_is_found_among_others(world: World) -> None:
    """The walk starts at the most used share that could still fit; one GPU's ratio decides this for all."""
    world.host("one", inventory=[gpu(A), gpu(B)])
    world.tenant("acme")
    over = next(each.id for each in world.gpus() if each.address == A)
    world.set_gpu(over, fair_ratio_permille=10_000)
    world.claim("acme", world.profile(share=950, mode=Mode.STRICT), selector={})
    world.claim("acme", world.profile(share=950, mode=Mode.STRICT))
    claim = world.claim("acme", world.profile(share=500))
    assert (claim.gpu_id, claim.enforcement.requested_permille) == (over, 50)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", world.profile(share=51, mode=Mode.STRICT))


@pytest.mark.parametrize(
    "wrong",
    [
        "UPDATE slices SET fair_ratio_permille = 2000 WHERE mode = 'strict'",
        "UPDATE slices SET fair_ratio_permille = 999",
        "UPDATE slices SET mode = 'strict' WHERE fair_ratio_permille > 1000",
        "UPDATE gpus SET fair_ratio_permille = 999",
        "UPDATE gpus SET fair_ratio_permille = 10001",
        "UPDATE slices SET affinity = 'x'",
        "UPDATE slices SET anti_affinity = 'x', anti_affinity_level = 'rack'",
    ],
)
def test_the_database_itself_refuses_to_over_commit_strict_slices(world: World, wrong: str) -> None:
    world.host()
    world.tenant("acme")
    world.set_gpu(world.gpus()[0].id, fair_ratio_permille=2000)
    world.claim("acme", world.profile(share=100, mode=Mode.STRICT))
    world.claim("acme", world.profile(share=100))
    with pytest.raises(IntegrityError), world.database.engine.begin() as connection:
        connection.execute(text(wrong))
