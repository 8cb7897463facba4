# SPDX-License-Identifier: Apache-2.0
"""A tenant's timeslice on a GPU with costly switches: the chosen value, or one that suits the GPU."""

from tests.api.world import Agent, World, gpu

SWITCH_US = 130


def told_us(agent: Agent) -> int:
    """Returns the timeslice of the only group of a host."""
    (group,) = agent.desired().groups
    return group.timeslice_us


def test_a_timeslice_that_nobody_chose_is_the_gpus(world: World) -> None:
    agent = world.host("one", inventory=[gpu().model_copy(update={"switch_cost_us": SWITCH_US})])
    world.tenant("acme")
    claimed = world.claim("acme", world.profile(share=10))
    assert claimed.enforcement.timeslice_us == 6500
    assert told_us(agent) == 6500
    # A new measurement reaches the host with its next document.
    agent.inventory = [gpu().model_copy(update={"switch_cost_us": 100})]
    before = agent.desired().generation
    assert agent.report(desired=agent.desired())
    assert agent.desired().generation > before
    assert told_us(agent) == 5000


def test_a_chosen_timeslice_and_the_most_that_is_allowed_go_before_the_gpus(world: World) -> None:
    agent = world.host("one", inventory=[gpu().model_copy(update={"switch_cost_us": SWITCH_US})])
    world.tenant("acme")
    world.tenant("blue", account="acme")
    world.claim("blue", world.profile(share=10))
    assert told_us(agent) == 6500
    for tenant, changes, told in (
        ("acme", {"timeslice_max_us": 5000}, 5000),
        ("blue", {"timeslice_max_us": 4000}, 4000),
        ("blue", {"timeslice_us": 3000}, 3000),
    ):
        before = agent.desired().generation
        world.quota(tenant, **changes)
        assert agent.desired().generation > before
        assert told_us(agent) == told
