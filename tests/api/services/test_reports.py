# SPDX-License-Identifier: Apache-2.0
"""Hosts' reports are kept in order and decide nothing about claims."""

from uuid import uuid4

import pytest
from vgpumgr_api.fleet import hosts
from vgpumgr_api.resources.paging import PageRequest
from vgpumgr_api.usage import usage

from tests.api.conftest import Clock
from tests.api.services.refusals import refused
from tests.api.world import ADDRESS, GIB, Agent, World, absent, gpu
from vgpumgr.wire.common import ExecutorState
from vgpumgr.wire.fleet import ReportedGroup, ReportedType
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import ObservedExecutor, Usage

B = "0000:00:11.0"


def group(tenant: str, address: str = ADDRESS, run_ns: int = 1) -> ReportedGroup:
    return ReportedGroup(
        gpu=address,
        tenant=tenant,
        weight=250,
        timeslice_us=2000,
        cap_us=0,
        cap_period_us=0,
        run_ns=run_ns,
        runs=2,
        longest_run_ns=3,
        throttled_ns=4,
        switches=5,
        wall_ns=6,
        idle_ns=7,
    )


def claimed_by(world: World, *tenants: str, host: str = "one") -> None:
    """Makes a claim of each tenant on the host."""
    profile = world.profile(share=10)
    for name in tenants:
        world.claim(name, profile, host=host)


def used(world: World) -> list[Usage]:
    items: list[Usage] = world.run(usage.list_usage, PageRequest()).items
    return items


@pytest.fixture
def agent(world: World) -> Agent:
    return world.host("one")


def test_an_older_report_is_dropped_whole(world: World, agent: Agent) -> None:
    for older in ({"seq": agent.seq}, {"seq": 0}, {"agent_epoch": 0, "seq": 99}):
        assert not agent.report(gpus=[], **older)
    assert [one.present for one in world.gpus()] == [True]


def test_a_restarted_agent_counts_from_the_beginning(world: World, agent: Agent) -> None:
    agent.report(seq=50)
    assert agent.report(agent_epoch=2, seq=0)
    assert not agent.report(agent_epoch=1, seq=51)
    assert not agent.report(agent_epoch=2, seq=0)


def test_after_a_reboot_only_a_later_start_of_the_agent_counts(world: World, agent: Agent) -> None:
    before, after = agent.boot_id, uuid4()
    assert not agent.report(boot_id=after)
    assert agent.report(boot_id=after, agent_epoch=2, seq=1)
    assert not agent.report(boot_id=before)
    assert "host.rebooted" in {event.kind for event in world.events().items}


def test_an_enrolment_starts_the_count_anew(world: World, agent: Agent) -> None:
    agent.report(agent_epoch=70, seq=7)
    again = world.enrolled("one", world.run(hosts.reenroll, "one").enroll_token)
    assert again.report()


def test_inventory_follows_reports_and_what_is_used_stays(world: World, agent: Agent) -> None:
    world.tenant("acme")
    claimed = world.claim("acme", world.profile(share=300, gib=4))
    generation = agent.desired().generation
    agent.report()
    assert agent.desired().generation == generation

    agent.inventory = [gpu(mem_bytes=8 * GIB, types=(2, 8)), gpu(B)]
    agent.report()

    first, second = world.gpus()
    assert (first.address, first.mem_bytes, second.address) == (ADDRESS, 8 * GIB, B)
    assert [kind.mem_bytes for kind in first.types] == [2 * GIB, 8 * GIB]
    assert (first.used_share_permille, first.used_mem_bytes) == (300, 4 * GIB)
    assert first.id == claimed.gpu_id
    assert world.slice(claimed.id).mdev_type == "vgpumgr-4g"
    assert agent.desired().generation > generation

    agent.inventory = []
    agent.report()
    assert [one.present for one in world.gpus()] == [False, False]
    assert world.gpus()[0].used_share_permille == 300
    assert world.slice(claimed.id).gpu == ADDRESS
    agent.inventory = [gpu()]
    agent.report()
    assert [one.present for one in world.gpus()] == [True, False]


@pytest.mark.parametrize(
    ("kinds", "driver", "adopted"),
    [
        (["vgpumgr-mem16m", "vgpumgr-mem1g"], "vgpumgr", False),
        (["nvidia-mem16m", "nvidia-mem1g"], "nvidia", True),
        (["pci-stub-mem16m"], "pci-stub", True),
        (["x"], "", False),
        ([], "", False),
    ],
)
def test_a_gpu_says_which_driver_has_it(
    world: World, agent: Agent, kinds: list[str], driver: str, adopted: bool
) -> None:
    """Returns the mdev types by the kernel's ids."""
    types = [ReportedType(id=kind, mem_bytes=GIB << n) for n, kind in enumerate(kinds)]
    agent.inventory = [gpu().model_copy(update={"types": types})]
    assert agent.report()
    (found,) = world.gpus()
    assert (found.driver, found.adopted) == (driver, adopted)


def test_a_gpu_that_shrank_below_its_use_takes_no_more_and_keeps_what_it_has(world: World, agent: Agent) -> None:
    world.tenant("acme")
    claimed = world.claim("acme", world.profile(share=100, gib=4))
    agent.inventory = [gpu(mem_bytes=1 * GIB, types=(1,))]
    assert agent.report()
    assert world.gpus()[0].mem_bytes == 4 * GIB
    with refused(Code.CAPACITY_NONE) as caught:
        world.claim("acme", world.profile(share=1, gib=1))
    assert caught.reasons == {"memory.full": 1}
    generation = agent.desired().generation
    agent.report()
    assert agent.desired().generation == generation
    world.delete(claimed.id)
    agent.confirm_gone(claimed.id)
    agent.report()
    assert world.gpus()[0].mem_bytes == 1 * GIB


def test_what_is_said_of_slices_is_shown_with_them(world: World, agent: Agent, clock: Clock) -> None:
    world.tenant("acme")
    claimed = world.claim("acme", world.profile())
    clock.advance(5)
    there = absent(
        claimed.id, present=True, open=True, applied_permille=249, run_ns=(1 << 63) - 1, items=3, error="a\0b\x1b["
    )
    agent.report(slices=[there, absent(uuid4(), present=True)])
    seen = world.slice(claimed.id)
    assert seen.observed is not None
    assert seen.observed.executor == ObservedExecutor(state=ExecutorState.ABSENT, restarts=0, reason="")
    assert (seen.observed.open, seen.observed.run_ns, seen.observed.items) == (True, (1 << 63) - 1, 3)
    assert seen.observed.reported_at == clock.now
    assert seen.enforcement.applied_permille == 249
    assert seen.generation == claimed.generation


def test_what_is_said_of_an_executor_is_shown_with_its_slice(world: World, agent: Agent) -> None:
    world.tenant("acme")
    claimed = world.claim("acme", world.profile())
    numbers = {"restarts": 7, "pause_s": 4, "memory_used_bytes": 5, "memory_bytes": 6}
    said = {"state": "failed", "reason": "it was killed\x1b by SIGKILL", **numbers}
    agent.report(slices=[absent(claimed.id, present=True, executor=said)])
    seen = world.slice(claimed.id)
    assert seen.observed is not None
    expected = ObservedExecutor(state=ExecutorState.FAILED, reason="it was killed? by SIGKILL", **numbers)
    assert seen.observed.executor == expected


def test_usage_is_what_was_reported_last_of_tenants_with_slices_there(world: World, agent: Agent) -> None:
    world.tenant("acme")
    world.tenant("elsewhere")
    world.host("two")
    claimed_by(world, "acme")
    claimed_by(world, "elsewhere", host="two")
    agent.report(groups=[group("acme"), group("nobody"), group("ev\0il"), group("elsewhere")])
    [only] = used(world)
    assert (only.host, only.gpu, only.tenant, only.run_ns, only.idle_ns) == ("one", ADDRESS, "acme", 1, 7)
    agent.report(groups=[group("acme", run_ns=9), group("acme", address=B)])
    assert [one.run_ns for one in used(world)] == [9]


def test_a_group_is_counted_until_it_is_gone_though_its_last_slice_went_before_it(
    world: World, agent: Agent, clock: Clock
) -> None:
    world.tenant("acme")
    last = world.claim("acme", world.profile())
    agent.report(groups=[group("acme")])
    world.delete(last.id)
    for run_ns in (2, 3):
        agent.report(desired=agent.desired(), slices=[absent(last.id)], groups=[group("acme", run_ns=run_ns)])
        assert [one.run_ns for one in used(world)] == [run_ns]
    clock.advance(1)
    agent.report(groups=[])
    agent.report(groups=[group("acme")])
    assert used(world) == []


def test_groups_that_are_gone_are_forgotten(world: World, agent: Agent, clock: Clock) -> None:
    world.tenant("acme")
    world.tenant("lab")
    claimed_by(world, "acme", "lab")
    agent.report(groups=[group("acme"), group("lab")])
    clock.advance(1)
    agent.report(groups=[group("lab", run_ns=2)])
    assert [(one.tenant, one.run_ns) for one in used(world)] == [("lab", 2)]


def test_usage_is_found_by_tenant_and_host(world: World, agent: Agent) -> None:
    other = world.host("two")
    world.tenant("acme")
    world.tenant("lab")
    claimed_by(world, "acme", "lab")
    claimed_by(world, "acme", host="two")
    agent.report(groups=[group("acme"), group("lab")])
    other.report(groups=[group("acme")])

    def found(**filters: str) -> list[tuple[str, str]]:
        return [(one.host, one.tenant) for one in world.run(usage.list_usage, PageRequest(), **filters).items]

    assert found() == [("one", "acme"), ("one", "lab"), ("two", "acme")]
    assert found(tenant="acme") == [("one", "acme"), ("two", "acme")]
    assert found(host="two") == [("two", "acme")]


def test_a_report_that_says_something_twice_is_refused_whole(world: World, agent: Agent) -> None:
    slice_id = uuid4()
    kind = ReportedType(id="t", mem_bytes=1)
    for twice in (
        {"gpus": [gpu(), gpu(types=())]},
        {"gpus": [gpu().model_copy(update={"types": [kind, kind]})]},
        {"groups": [group("acme"), group("acme", run_ns=2)]},
        {"slices": [absent(slice_id), absent(slice_id, present=True)]},
    ):
        with refused(Code.FIELD_INVALID):
            agent.report(**twice)
    assert agent.report(seq=2)
