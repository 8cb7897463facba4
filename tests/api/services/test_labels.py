# SPDX-License-Identifier: Apache-2.0
"""Labels of hosts and GPUs, and claims that select by them."""

import pytest
from vgpumgr_api.claims import explain
from vgpumgr_api.fleet import gpus, hosts

from tests.api.services.refusals import refused
from tests.api.world import World, gpu
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import GpuPatch, HostPatch, SliceCreate

A, B = "0000:00:10.0", "0000:00:11.0"


def test_a_claim_goes_only_where_all_labels_are(world: World) -> None:
    world.host("one", inventory=[gpu(A), gpu(B)])
    world.host("two")
    world.tenant("acme")
    profile = world.profile(share=10)
    world.set_host("one", labels={"zone": "a", "model": "x1"})
    world.set_host("two", labels={"zone": "b"})
    own = {each.address: each.id for each in world.gpus() if each.host == "one"}
    assert world.set_gpu(own[B], labels={"model": "x2"}).labels == {"model": "x2"}

    assert world.claim("acme", profile, selector={"zone": "b"}).host == "two"
    for _ in range(2):
        assert world.claim("acme", profile, selector={"zone": "a", "model": "x2"}).gpu == B
        assert world.claim("acme", profile, selector={"model": "x1"}).gpu == A  # the GPU's own label takes precedence
    for selector in ({"zone": "c"}, {"rack": "1"}, {"zone": "b", "model": "x1"}):
        with refused(Code.CAPACITY_NONE) as caught:
            world.claim("acme", profile, selector=selector)
        assert caught.reasons == {"labels.other": 3}
        assert caught.refusal is not None
        assert caught.refusal.detail == (
            "no GPU fits, mostly because: they or their host lack a label that is selected"
        )


def test_labels_are_merged_and_taken_away_and_need_the_last_generation(world: World) -> None:
    world.host("one")
    [only] = world.gpus()
    assert only.generation == 1
    changed = world.set_gpu(only.id, labels={"zone": "a", "rack": "7"}, fair_ratio_permille=1500)
    assert (changed.generation, changed.labels, changed.fair_ratio_permille) == (2, {"rack": "7", "zone": "a"}, 1500)
    again = world.set_gpu(only.id, labels={"rack": None, "model": "x1", "none": None})
    assert (again.generation, again.labels) == (3, {"model": "x1", "zone": "a"})
    assert world.set_gpu(only.id, labels={"zone": "a"}).generation == 3
    with refused(Code.GENERATION_STALE):
        world.run(gpus.patch_gpu, only.id, GpuPatch(labels={"zone": "b"}), if_match=2)
    with refused(Code.GENERATION_REQUIRED):
        world.run(gpus.patch_gpu, only.id, GpuPatch(labels={"zone": "b"}), if_match=None)
    with refused(Code.FIELD_INVALID):
        world.set_gpu(only.id, labels=None)
    with refused(Code.FIELD_INVALID) as caught:
        world.set_gpu(only.id, labels={f"key-{number}": "x" for number in range(63)})
    assert caught.refusal is not None
    assert caught.refusal.reasons[0].field == "$.labels"
    assert world.gpus()[0].labels == again.labels

    host = world.set_host("one", labels={"zone": "a"})
    assert (host.labels, world.run(hosts.get_host, "one").labels) == ({"zone": "a"}, {"zone": "a"})
    assert world.set_host("one", labels={"zone": None}).labels == {}


@pytest.mark.parametrize("wrong", [{"Zone": "a"}, {"zone": ""}, {"zone": "a b"}, {"-": "a"}, {"zone": "a" * 64}])
def test_a_label_that_is_none_is_refused(wrong: dict[str, str]) -> None:
    for kind in (HostPatch, GpuPatch):
        with pytest.raises(ValueError, match="labels"):
            kind(labels=wrong)
    with pytest.raises(ValueError, match="selector"):
        SliceCreate(tenant="acme", profile="p", selector=wrong)


def test_a_claim_is_explained_also_one_that_would_succeed(world: World) -> None:
    world.host("one", inventory=[gpu(A), gpu(B)])
    world.host("two")
    world.set_host("two", state="cordoned")
    world.tenant("acme", slices=1)
    profile = world.profile(share=600)
    want = SliceCreate(tenant="acme", profile=profile.name)
    said = world.run(explain.explain, want)
    assert (said.fits, said.gpus, said.fitting, said.host) == (True, 3, 2, "one")
    assert {reason.code: reason.count for reason in said.reasons} == {"host.cordoned": 1}
    claimed = world.claim("acme", profile)
    assert claimed.gpu == said.gpu
    said = world.run(explain.explain, want)
    assert (said.fits, said.fitting, said.host, said.gpu) == (False, 1, None, None)
    assert {reason.code: reason.count for reason in said.reasons} == {
        "quota.slices": None,
        "host.cordoned": 1,
        "share.full": 1,
    }
    assert world.quota("acme").used_slices == 1
