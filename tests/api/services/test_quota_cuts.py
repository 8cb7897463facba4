# SPDX-License-Identifier: Apache-2.0
"""A quota that is cut below its use refuses new claims and scales existing slices; no slice is removed."""

from vgpumgr_api.tenancy import quotas, scaling

from tests.api.services.refusals import refused
from tests.api.world import GIB, World, absent
from vgpumgr.wire.common import Mode
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import QuotaPatch


def followed(world: World) -> int:
    """Applies the new shares; returns for how many tenants that was necessary."""
    times = 0
    while world.database.run(scaling.follow):
        times += 1
    return times


def test_a_cut_scales_slices_and_group_and_raising_restores_them(world: World) -> None:
    agent = world.host()
    world.tenant("acme")
    a = world.claim("acme", world.profile(share=400))
    b = world.claim("acme", world.profile(share=200))
    before = agent.desired()
    assert [(group.weight, group.cap_us) for group in before.groups] == [(600, 0)]

    world.quota("acme", share_permille=400)

    cut = agent.desired()
    assert cut.generation > before.generation
    assert {one.id: one.weight for one in cut.slices} == {a.id: 266, b.id: 133}
    assert [group.weight for group in cut.groups] == [399]
    assert world.slice(a.id).enforcement.requested_permille == 266
    assert world.slice(a.id).share_permille == 400
    with refused(Code.QUOTA_EXCEEDED):
        world.claim("acme", world.profile(share=1))

    world.quota("acme", share_permille=600)

    restored = agent.desired()
    assert restored.generation > cut.generation
    assert (restored.groups, restored.slices) == (before.groups, before.slices)


def test_of_account_and_project_the_smaller_factor_counts(world: World) -> None:
    agent = world.host()
    world.tenant("acme")
    world.tenant("lab", account="acme")
    world.tenant("shop", account="acme")
    profile = world.profile(share=300)
    for tenant in ("lab", "shop", "acme"):
        world.claim(tenant, profile)

    def weights() -> dict[str, int]:
        return {group.tenant: group.weight for group in agent.desired().groups}

    world.quota("lab", share_permille=100)
    assert weights() == {"lab": 100, "shop": 300, "acme": 300}
    world.quota("acme", share_permille=450)
    assert weights() == {"lab": 100, "shop": 150, "acme": 150}
    world.quota("lab", share_permille=200)
    assert weights() == {"lab": 150, "shop": 150, "acme": 150}
    world.quota("acme", share_permille=0)
    assert weights() == {"lab": 1, "shop": 1, "acme": 1}


def test_a_released_slice_gives_the_others_back_what_the_cut_took(world: World) -> None:
    here, there = world.host("here"), world.host("there")
    world.tenant("acme")
    profile = world.profile(share=400)
    gone = world.claim("acme", profile, host="here")
    world.claim("acme", profile, host="there")
    world.quota("acme", share_permille=400)
    before = there.desired()
    assert [one.weight for one in before.slices] == [200]

    world.delete(gone.id)
    assert [one.weight for one in there.desired().slices] == [200]
    here.confirm_gone(gone.id)
    assert there.desired() == before  # hosts are told periodically; only then the document changes
    assert followed(world) == 1

    after = there.desired()
    assert [one.weight for one in after.slices] == [400]
    assert after.generation > before.generation


def test_whoever_gives_up_much_wakes_its_hosts_now_and_then_and_not_with_each_slice(world: World) -> None:
    agents = [world.host() for _ in range(6)]
    world.tenant("acme")
    world.tenant("lab", account="acme")
    profile = world.profile(share=400)
    claimed = [world.claim("lab", profile, host=agent.name) for agent in agents]
    world.quota("acme", share_permille=400)
    world.quota("lab", share_permille=800)
    for one in claimed[1:]:
        world.delete(one.id)
    before = [agent.desired().generation for agent in agents]
    for agent, one in zip(agents[1:], claimed[1:], strict=True):
        agent.confirm_gone(one.id)
    # Each host's document changed for its own release only.
    assert [agent.desired().generation for agent in agents] == [before[0], *(each + 1 for each in before[1:])]
    assert [one.weight for one in agents[0].desired().slices] == [66]
    assert world.slice(claimed[0].id).enforcement.requested_permille == 66
    assert followed(world) == 2  # for the project and its account
    assert [one.weight for one in agents[0].desired().slices] == [400]
    assert agents[0].desired().generation == before[0] + 2


def test_a_limit_that_is_raised_meanwhile_counts_at_once(world: World) -> None:
    here, there = world.host("here"), world.host("there")
    world.tenant("acme")
    profile = world.profile(share=400)
    gone, _ = (world.claim("acme", profile, host=host) for host in ("here", "there"))
    world.quota("acme", share_permille=400)
    world.delete(gone.id)
    here.confirm_gone(gone.id)
    before = there.desired()
    world.quota("acme", share_permille=500)
    assert [one.weight for one in there.desired().slices] == [400]
    assert there.desired().generation == before.generation + 1
    assert followed(world) == 0


def test_only_a_change_that_hosts_feel_wakes_them(world: World) -> None:
    agent = world.host()
    other = world.host("other")
    world.tenant("acme")
    world.claim("acme", world.profile(), host=agent.name)
    before, others = agent.desired(), other.desired()
    world.quota("acme", slices=5, mem_bytes=20 * GIB, share_permille=2000)
    assert agent.desired() == before
    world.quota("acme", timeslice_us=7000)
    assert agent.desired().generation == before.generation + 1
    assert [group.timeslice_us for group in agent.desired().groups] == [7000]
    assert other.desired() == others


def test_strict_slices_are_capped_at_what_is_enforced(world: World) -> None:
    agent = world.host()
    world.tenant("acme", timeslice_us=2000)
    strict = world.profile(share=400, mode=Mode.STRICT)
    claimed = world.claim("acme", strict)
    assert claimed.enforcement.semantics == "cap"

    def caps() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        desired = agent.desired()
        return (
            [(group.cap_us, group.cap_period_us) for group in desired.groups],
            sorted((one.cap_us, one.cap_period_us) for one in desired.slices),
        )

    assert caps() == ([(8000, 20_000)], [(0, 0)])
    world.quota("acme", share_permille=100)
    assert caps() == ([(2000, 20_000)], [(0, 0)])
    world.quota("acme", share_permille=1000)
    assert world.claim("acme", world.profile(share=200)).enforcement.semantics == "weight"
    assert caps() == ([(0, 0)], [(0, 0), (8000, 20_000)])


def test_a_deleted_slice_counts_in_its_group_until_its_host_confirms(world: World) -> None:
    agent = world.host()
    world.tenant("acme", timeslice_us=1000)
    profile = world.profile(share=250, mode=Mode.STRICT)
    gone, kept = world.claim("acme", profile), world.claim("acme", profile)

    def groups() -> list[tuple[int, int]]:
        return [(group.weight, group.cap_us) for group in agent.desired().groups]

    assert groups() == [(500, 5000)]
    world.delete(gone.id)
    assert groups() == [(500, 5000)]
    assert [(one.id, one.weight) for one in agent.desired().slices] == [(kept.id, 250)]
    assert [one.id for one in agent.desired().tombstones] == [gone.id]
    agent.report(desired=agent.desired(), slices=[absent(gone.id, present=True, open=True)])
    assert groups() == [(500, 5000)]
    agent.confirm_gone(gone.id)
    assert groups() == [(250, 2500)]


def test_a_patch_needs_the_generation_and_changes_what_it_names(world: World) -> None:
    world.tenant("acme", share_permille=10, slices=3)
    quota = world.quota("acme")
    patch = QuotaPatch(slices=4)
    with refused(Code.GENERATION_REQUIRED):
        world.run(quotas.patch_quota, "acme", patch, if_match=None)
    with refused(Code.GENERATION_STALE):
        world.run(quotas.patch_quota, "acme", patch, if_match=quota.generation - 1)
    changed = world.run(quotas.patch_quota, "acme", patch, if_match=quota.generation)
    assert (changed.slices, changed.share_permille) == (4, 10)
    assert changed.generation == quota.generation + 1
    same = world.run(quotas.patch_quota, "acme", patch, if_match=changed.generation)
    assert same.generation == changed.generation
    with refused(Code.FIELD_INVALID):
        world.run(quotas.patch_quota, "acme", QuotaPatch(slices=None), if_match=changed.generation)
