# SPDX-License-Identifier: Apache-2.0
"""A claim takes quota of account and project and room on a GPU: all of them or none."""

from uuid import uuid4

import pytest
from vgpumgr_api.claims import claims, profiles, reservations
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.tenancy import tenants

from tests.api.services.refusals import refused
from tests.api.world import GIB, World, gpu
from vgpumgr.wire.common import Mode
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Level, ReservationCreate, SliceCreate, SliceState, Tie


def used(world: World, tenant: str) -> tuple[int, int, int]:
    quota = world.quota(tenant)
    return quota.used_share_permille, quota.used_mem_bytes, quota.used_slices


@pytest.mark.parametrize(
    ("backend", "engine", "pci_ids", "means"),
    [
        ("kmod", "soft", "10de:2330", ("tenant", "kernel", "kernel")),
        ("kmod", "lease", "1234:11e8", ("tenant", "kernel+gate", "executor")),
        ("kmod", "lease", "10de:2330", ("tenant", "executor", "executor")),
        ("kmod", "lease", "", ("tenant", "executor", "executor")),
        ("xe-sriov", "lease", "8086:56c0", ("", "", "")),
        ("", "soft", "", ("", "", "")),
    ],
)
def test_what_enforces_a_slice_comes_of_what_serves_its_gpu(
    world: World, backend: str, engine: str, pci_ids: str, means: tuple[str, str, str]
) -> None:
    """All views of the slice show what its host reported."""
    said_of_gpu = {"backend": backend, "engine": engine, "pci_ids": pci_ids}
    agent = world.host(inventory=[gpu().model_copy(update=said_of_gpu)])
    world.tenant("acme")
    profile = world.profile(share=100)
    wanted = ReservationCreate(tenant="acme", profile=profile.name, places=1, expires_in_s=600)
    held = world.run(reservations.create_reservation, wanted)
    claimed = world.claim("acme", profile)
    placed = world.claim("acme", profile, reservation=held.id)
    [listed, _] = world.run(claims.list_slices, PageRequest()).items
    for each in (claimed, placed, world.slice(claimed.id), listed):
        said = each.enforcement
        assert (said.scope, said.enforced_by, said.mem_enforced_by) == means
    agent.inventory = [gpu().model_copy(update={"backend": "other"})]
    assert agent.report()
    assert world.slice(claimed.id).enforcement.enforced_by == ""


def test_claim_counts_in_project_account_and_gpu(world: World) -> None:
    world.host()
    world.tenant("acme")
    world.tenant("lab", account="acme")
    profile = world.profile(share=300, gib=3)
    vm = uuid4()

    claimed = world.claim("lab", profile, vm_uuid=vm)

    assert (claimed.tenant, claimed.vm_uuid, claimed.state) == ("lab", vm, SliceState.CLAIMED)
    assert (claimed.share_permille, claimed.mem_bytes, claimed.mode) == (300, 3 * GIB, Mode.FAIR)
    assert claimed.mdev_type == "vgpumgr-4g"
    assert claimed.enforcement.requested_permille == 300
    assert claimed.enforcement.applied_permille is None
    assert claimed.observed is None
    assert used(world, "lab") == used(world, "acme") == (300, 3 * GIB, 1)
    [only] = world.gpus()
    assert (only.used_share_permille, only.used_mem_bytes) == (300, 4 * GIB)


def test_an_account_claims_for_itself(world: World) -> None:
    world.host()
    world.tenant("acme")
    world.tenant("lab", account="acme")
    world.claim("acme", world.profile(share=100))
    assert used(world, "acme") == (100, GIB, 1)
    assert used(world, "lab") == (0, 0, 0)


def test_each_limit_holds_and_a_refused_claim_leaves_nothing(world: World) -> None:
    world.host()
    world.tenant("acme")
    world.tenant("lab", account="acme")
    profile = world.profile(share=300, gib=3)
    for limits, reason in (
        ({"share_permille": 299}, "quota.share_permille"),
        ({"mem_bytes": 3 * GIB - 1}, "quota.mem_bytes"),
        ({"slices": 0}, "quota.slices"),
    ):
        for owner in ("acme", "lab"):
            before = world.quota(owner)
            world.quota(owner, **limits)
            with refused(Code.QUOTA_EXCEEDED) as caught:
                world.claim("lab", profile)
            assert set(caught.reasons) == {reason}
            assert caught.refusal is not None
            assert caught.refusal.limits["tenant"] == owner
            world.quota(owner, share_permille=before.share_permille, mem_bytes=before.mem_bytes, slices=before.slices)
    assert used(world, "lab") == used(world, "acme") == (0, 0, 0)
    assert world.run(claims.list_slices, PageRequest()).items == []
    assert "slice.claimed" not in {event.kind for event in world.events().items}


def test_a_claim_of_exactly_what_is_left_passes_and_the_next_does_not(world: World) -> None:
    world.host()
    world.tenant("acme", share_permille=500, mem_bytes=2 * GIB, slices=2)
    profile = world.profile(share=250, gib=1)
    world.claim("acme", profile)
    world.claim("acme", profile)
    with refused(Code.QUOTA_EXCEEDED) as caught:
        world.claim("acme", profile)
    assert set(caught.reasons) == {"quota.share_permille", "quota.mem_bytes", "quota.slices"}


def test_no_capacity_gives_quota_back(world: World) -> None:
    world.host()
    world.tenant("acme")
    profile = world.profile(share=600)
    world.claim("acme", profile)
    with refused(Code.CAPACITY_NONE):
        world.claim("acme", profile)
    assert used(world, "acme") == (600, GIB, 1)


def test_validate_only_answers_alike_and_keeps_nothing(world: World) -> None:
    agent = world.host()
    world.tenant("acme", share_permille=300)
    profile = world.profile(share=300)
    before = agent.desired()
    request = SliceCreate(tenant="acme", profile=profile.name)

    tried = world.run(claims.create_slice, request, validate_only=True)

    assert tried.gpu_id == world.gpus()[0].id
    assert used(world, "acme") == (0, 0, 0)
    assert world.gpus()[0].used_share_permille == 0
    assert agent.desired() == before
    with refused(Code.OBJECT_UNKNOWN):
        world.slice(tried.id)
    world.claim("acme", profile)
    with refused(Code.QUOTA_EXCEEDED):
        world.run(claims.create_slice, request, validate_only=True)


def test_claim_names_what_it_does_not_find(world: World) -> None:
    world.host()
    world.tenant("acme")
    profile = world.profile()
    for members in ({"tenant": "nobody"}, {"profile": "nothing"}, {"host": "nowhere"}):
        with refused(Code.OBJECT_UNKNOWN):
            world.run(
                claims.create_slice,
                SliceCreate(**({"tenant": "acme", "profile": profile.name} | members)),
            )


def test_the_slices_of_a_vm_are_on_one_host_unless_told_otherwise(world: World) -> None:
    one, two = world.host("one"), world.host("two")
    world.tenant("acme")
    vm = uuid4()
    profile = world.profile(share=400)
    first = world.claim("acme", profile, vm_uuid=vm, host="two")
    world.claim("acme", world.profile(share=500), host="one")  # now host one is the fuller one
    assert world.claim("acme", profile, vm_uuid=vm).host == first.host == two.name
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", profile, vm_uuid=vm)
    assert caught.reasons == {"host.other": 1, "share.full": 1}
    assert world.claim("acme", profile, vm_uuid=vm, host="one").host == one.name


def test_what_claims_refer_to_cannot_be_deleted(world: World) -> None:
    agent = world.host()
    world.tenant("acme")
    world.tenant("lab", account="acme")
    profile = world.profile()
    claimed = world.claim("lab", profile)
    for name in ("acme", "lab"):
        with refused(Code.OBJECT_IN_USE):
            world.run(tenants.delete_tenant, name, if_match=None)
    with refused(Code.OBJECT_IN_USE):
        world.run(profiles.delete_profile, profile.name, if_match=1)
    world.delete(claimed.id)
    with refused(Code.OBJECT_IN_USE):
        world.run(tenants.delete_tenant, "lab", if_match=None)
    agent.confirm_gone(claimed.id)
    world.run(tenants.delete_tenant, "lab", if_match=None)
    world.run(tenants.delete_tenant, "acme", if_match=None)
    world.run(profiles.delete_profile, profile.name, if_match=1)


def test_slices_are_found_by_tenant_host_vm_and_state(world: World) -> None:
    world.host("one")
    world.host("two")
    world.tenant("acme")
    world.tenant("lab", account="acme")
    profile, vm = world.profile(share=100), uuid4()
    a = world.claim("acme", profile, host="one", vm_uuid=vm)
    b = world.claim("lab", profile, host="two")
    world.delete(b.id)

    def found(**filters: object) -> set[object]:
        return {one.id for one in world.run(claims.list_slices, PageRequest(), **filters).items}

    assert found() == {a.id, b.id}
    assert found(tenant="acme") == {a.id}
    assert found(tenant="lab") == {b.id}
    assert found(host="one") == {a.id}
    assert found(vm_uuid=vm) == {a.id}
    assert found(vm_uuid=uuid4()) == set()
    assert found(state=SliceState.RELEASING) == {b.id}
    assert found(state=SliceState.CLAIMED, host="two") == set()


def test_what_is_wrong_with_one_claim_of_a_batch_is_said_of_that_one(world: World) -> None:
    world.host()
    world.tenant("acme")
    half, other = world.profile(share=500), world.profile(share=10)
    held = world.reserve("acme", other, places=1, anti_affinity=Tie(key="db"))
    want = SliceCreate(tenant="acme", profile=half.name)
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim_all([want, want])
    assert caught.refusal is not None
    assert caught.refusal.detail.startswith("slices[1] of 2: no GPU has 500 permille")
    assert [(reason.code, reason.field) for reason in caught.refusal.reasons] == [("share.full", "")]
    wrong = (
        (want.model_copy(update={"reservation": held.id}), "reservation"),
        (
            SliceCreate(
                tenant="acme", profile=other.name, reservation=held.id, anti_affinity=Tie(key="web", level=Level.GPU)
            ),
            "anti_affinity",
        ),
    )
    for each, field in wrong:
        for batch in ([each], [SliceCreate(tenant="acme", profile=other.name), each]):
            with refused(Code.FIELD_INVALID) as caught:
                world.claim_all(batch)
            assert caught.refusal is not None
            assert [reason.field for reason in caught.refusal.reasons] == [f"$.slices[{len(batch) - 1}].{field}"]
    assert world.gpus()[0].used_share_permille == 10


def test_a_gpu_full_of_slices_holds_exactly_a_thousand(world: World) -> None:
    world.host(inventory=[gpu(mem_bytes=64 * GIB)])
    world.tenant("acme")
    profile = world.profile(share=125)
    for _ in range(8):
        world.claim("acme", profile)
    assert world.gpus()[0].used_share_permille == 1000
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(share=1))
    assert caught.reasons == {"share.full": 1}
