# SPDX-License-Identifier: Apache-2.0
"""The host capacity that slices with executors need: their windows, and the limits of executors from their profile."""

import pytest
from vgpumgr_api.claims import profiles

from tests.api.services.refusals import refused
from tests.api.world import World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import ProfileCreate

MIB = 1 << 20


def test_a_profile_says_how_large_a_window_is(world: World) -> None:
    assert world.profile().window_bytes == 64 * MIB
    wanted = ProfileCreate(name="p", share_permille=1, mem_bytes=1, window_bytes=64 * MIB)
    assert world.run(profiles.create_profile, wanted).window_bytes == 64 * MIB


@pytest.mark.parametrize("window_bytes", [1, 64 * MIB - 1, 128 * MIB])
def test_a_size_that_the_module_does_not_have_is_refused(world: World, window_bytes: int) -> None:
    wanted = ProfileCreate(name="p", share_permille=1, mem_bytes=1, window_bytes=window_bytes)
    with refused(Code.FIELD_INVALID) as caught:
        world.run(profiles.create_profile, wanted)
    assert caught.refusal is not None
    assert [reason.field for reason in caught.refusal.reasons] == ["$.window_bytes"]


def test_a_gpu_whose_engine_lends_counts_the_windows_of_its_slices(world: World) -> None:
    lending = world.host("one", inventory=[gpu().model_copy(update={"engine": "lease"})])
    world.host("two")
    world.tenant("acme")
    profile = world.profile(share=10)
    first, *_ = (world.claim("acme", profile, host=name) for name in ("one", "one", "two"))

    def used() -> dict[str, int]:
        return {one.host: one.used_window_bytes // MIB for one in world.gpus()}

    assert used() == {"one": 2 * 64, "two": 0}
    world.delete(first.id)
    assert used()["one"] == 2 * 64
    assert lending.confirm_gone(first.id)
    assert used()["one"] == 64


def test_limits_of_executors_go_from_the_profile_to_the_host(world: World) -> None:
    limits = {"executor_memory_max_bytes": 1 << 30, "executor_tasks_max": 64, "executor_cpu_max_permille": 1500}
    wanted = ProfileCreate(name="bounded", share_permille=10, mem_bytes=1, **limits)
    made = world.run(profiles.create_profile, wanted)
    assert {name: getattr(made, name) for name in limits} == limits
    agent = world.host("one")
    world.tenant("acme")
    bounded, free = world.claim("acme", made), world.claim("acme", world.profile(share=10))
    desired = {each.id: each for each in agent.desired().slices}
    assert {name: getattr(desired[bounded.id], name) for name in limits} == limits
    assert {name: getattr(desired[free.id], name) for name in limits} == dict.fromkeys(limits, 0)
