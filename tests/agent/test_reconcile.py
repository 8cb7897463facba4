# SPDX-License-Identifier: Apache-2.0
"""plan(): which action each difference causes, and which actions never occur."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vgpumgr_agent.backends import Observed, ObservedGpu, ObservedGroup, ObservedSlice
from vgpumgr_agent.reconcile import (
    Action,
    ApplySlice,
    ConfigureGroup,
    ForgetGroup,
    Orphans,
    RemoveSlice,
    RenewPermit,
    Wanted,
    Why,
    orphans,
    plan,
)

from tests.agent.fakeapi import GPU, claim, group

A, B, C = (UUID(int=number) for number in (1, 2, 3))
VM = UUID(int=100)
KEY = (GPU, "blue")


def gpu(**changes: Any) -> ObservedGpu:
    values: dict[str, Any] = {
        "address": GPU, "engine": "soft", "backend": "kmod", "attach": "permit", "mem_bytes": 1 << 30,
        "timeslice_min_us": 100, "max_chunk_us": 1000, "wall_ns": 0, "idle_ns": 0, "types": {"vgpumgr-mem16m": 1 << 24},
    }  # fmt: skip
    return ObservedGpu(**{**values, **changes})


def seen_group(tenant: str = "blue", **changes: Any) -> ObservedGroup:
    values: dict[str, Any] = {
        "gpu": GPU, "tenant": tenant, "configured": True, "slices": 0, "weight": 300, "timeslice_us": 1000,
        "cap_us": 0, "cap_period_us": 0,
    }  # fmt: skip
    return ObservedGroup(**{**values, **changes})


def seen(uuid: UUID, **changes: Any) -> ObservedSlice:
    values: dict[str, Any] = {
        "gpu": GPU, "tenant": "blue", "mdev_type": "vgpumgr-mem16m", "weight": 300, "cap_us": 0, "cap_period_us": 0,
        "open": False, "permit_s": 0, "recorded": True, "vm_uuid": VM,
    }  # fmt: skip
    return ObservedSlice(uuid=uuid, **{**values, **changes})


def observed(*slices: ObservedSlice, groups: tuple[ObservedGroup, ...] = (), **changes: Any) -> Observed:
    return Observed(
        **{
            "boot_id": UUID(int=7),
            "gpus": {GPU: gpu(), OTHER: gpu(address=OTHER)},
            "groups": {(each.gpu, each.tenant): each for each in groups},
            "slices": {each.uuid: each for each in slices},
            **changes,
        }
    )


CLAIM = claim(A, vm=VM)
CAPPED = claim(A, vm=VM, cap_us=3000, cap_period_us=10_000)
GROUP = group()
WANTED = Wanted(groups=(GROUP,), slices=(CLAIM,))
OTHER = "0000:00:11.0"
MOVED_GROUP = group(gpu=OTHER)
ELSEWHERE = Wanted(groups=(MOVED_GROUP,), slices=(claim(A, vm=VM, gpu=OTHER),))
ALL = Orphans(slices=frozenset({A, B, C}), groups=frozenset({KEY, (GPU, "green")}))
DEAD = Wanted(tombstones=frozenset({A}), doomed=frozenset({KEY}))

TABLE: dict[str, tuple[Wanted, Observed, list[Action]]] = {
    "nothing for nothing": (Wanted(), observed(), []),
    "a claim makes its group and no device": (WANTED, observed(), [ConfigureGroup(GROUP)]),
    "a group that is right is left": (WANTED, observed(groups=(seen_group(),)), []),
    "a weight is corrected": (WANTED, observed(groups=(seen_group(weight=1),)), [ConfigureGroup(GROUP)]),
    "a timeslice is corrected": (WANTED, observed(groups=(seen_group(timeslice_us=2),)), [ConfigureGroup(GROUP)]),
    "a cap that should not be": (
        WANTED, observed(groups=(seen_group(cap_us=5, cap_period_us=9),)), [ConfigureGroup(GROUP)]
    ),
    "a period without a cap means nothing": (WANTED, observed(groups=(seen_group(cap_period_us=9),)), []),
    "a group that is only named": (WANTED, observed(groups=(seen_group(configured=False),)), [ConfigureGroup(GROUP)]),
    "a GPU that is open to all": (
        WANTED, observed(groups=(seen_group(),), gpus={GPU: gpu(attach="any")}), [ConfigureGroup(GROUP)]
    ),
    "a GPU that is not there": (WANTED, observed(gpus={}), []),
    "a GPU that cannot be shared": (WANTED, observed(gpus={GPU: gpu(types={})}), []),
    "a device that a VM has": (WANTED, observed(seen(A, open=True), groups=(seen_group(),)), []),
    "a device that is about to be opened": (WANTED, observed(seen(A, permit_s=75), groups=(seen_group(),)), []),
    "a device that is not opened for long": (
        WANTED, observed(seen(A, permit_s=74), groups=(seen_group(),)), [RenewPermit(A)]
    ),
    "a device that was permitted to another VM": (
        WANTED, observed(seen(A, permit_s=9, vm_uuid=UUID(int=9)), groups=(seen_group(),)), []
    ),
    "a device that nobody uses": (WANTED, observed(seen(A), groups=(seen_group(),)), [RemoveSlice(A, Why.IDLE)]),
    "a device where its claim was": (
        ELSEWHERE, observed(seen(A, permit_s=9), groups=(seen_group(),)),
        [ConfigureGroup(MOVED_GROUP), RemoveSlice(A, Why.MOVED)],
    ),
    "a device in use where its claim was": (
        ELSEWHERE, observed(seen(A, open=True), groups=(seen_group(),)), [ConfigureGroup(MOVED_GROUP)]
    ),
    "a device in use with another weight": (
        WANTED, observed(seen(A, open=True, weight=1), groups=(seen_group(),)), [ApplySlice(CLAIM)]
    ),
    "a device in use without its cap": (
        Wanted(groups=(GROUP,), slices=(CAPPED,)),
        observed(seen(A, open=True), groups=(seen_group(),)), [ApplySlice(CAPPED)],
    ),
    "a device without a claim or a tombstone": (Wanted(), observed(seen(A)), []),
    "an empty answer": (Wanted(), observed(seen(A, open=True), seen(B), groups=(seen_group(slices=2),)), []),
    "a tombstone": (DEAD, observed(seen(A, permit_s=9)), [RemoveSlice(A, Why.TOMBSTONE)]),
    "a tombstone of a device in use": (DEAD, observed(seen(A, open=True)), []),
    "a tombstone of somebody else's device": (DEAD, observed(seen(A, recorded=False)), []),
    "a tombstone of what is going": (DEAD, observed(seen(A), removing=frozenset({A})), []),
    "a tombstone that a claim contradicts": (
        replace(WANTED, tombstones=frozenset({A})), observed(seen(A, permit_s=90), groups=(seen_group(),)), []
    ),
    "a doomed group that is empty": (DEAD, observed(groups=(seen_group(),)), [ForgetGroup(KEY)]),
    "a doomed group with a device": (DEAD, observed(seen(B, open=True), groups=(seen_group(slices=1),)), []),
    "a doomed group that is wanted again": (
        replace(WANTED, doomed=frozenset({KEY})), observed(groups=(seen_group(),)), []
    ),
    "a group that nobody named": (Wanted(), observed(groups=(seen_group(),)), []),
    "a record without a device": (Wanted(), observed(stale_records=frozenset({A})), [RemoveSlice(A, Why.STALE_RECORD)]),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_plan(case: str) -> None:
    wanted, found, actions = TABLE[case]
    assert plan(wanted, found) == actions


def test_a_released_device_goes_at_once_even_if_the_kernel_still_calls_it_open() -> None:
    found = observed(seen(A, open=True, permit_s=9), groups=(seen_group(),))
    assert plan(WANTED, found, released=frozenset({A})) == [RemoveSlice(A, Why.RELEASED)]


def test_a_release_of_something_that_is_not_claimed_removes_nothing() -> None:
    found = observed(seen(B, open=True), seen(C), groups=(seen_group(),))
    assert plan(WANTED, found, released=frozenset({B, C})) == []


ALONE: dict[str, tuple[Wanted, Observed, Orphans]] = {
    "a device and a group": (
        Wanted(), observed(seen(A), groups=(seen_group("green"),)),
        Orphans(slices=frozenset({A}), groups=frozenset({(GPU, "green")})),
    ),
    "a claim and its group": (WANTED, observed(seen(A), groups=(seen_group(),)), Orphans()),
    "a claim whose group is not named yet": (Wanted(slices=(CLAIM,)), observed(groups=(seen_group(),)), Orphans()),
    "a tombstone and its group": (DEAD, observed(seen(A), groups=(seen_group(),)), Orphans()),
    "a device in use and its group": (Wanted(), observed(seen(A, open=True), groups=(seen_group(),)), Orphans()),
    "a device about to be opened": (Wanted(), observed(seen(A, permit_s=1)), Orphans()),
    "a device that is going": (Wanted(), observed(seen(A), removing=frozenset({A})), Orphans()),
    "somebody else's device": (Wanted(), observed(seen(A, recorded=False)), Orphans()),
    "a group that a slice names": (Wanted(), observed(groups=(seen_group(slices=1),)), Orphans()),
    "a group that is only named": (Wanted(), observed(groups=(seen_group(configured=False),)), Orphans()),
    "a group on a GPU that is open to all": (
        Wanted(), observed(groups=(seen_group(),), gpus={GPU: gpu(attach="any")}), Orphans()
    ),
    "a group on a GPU that is not there": (Wanted(), observed(groups=(seen_group(),), gpus={}), Orphans()),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONE)
def test_orphans(case: str) -> None:
    wanted, found, expected = ALONE[case]
    assert orphans(wanted, found) == expected
    going = {action.why for action in plan(wanted, found, overdue=ALL) if isinstance(action, RemoveSlice)}
    assert (Why.ORPHAN in going) == bool(expected.slices)


def test_overdue_orphans_go_devices_first() -> None:
    found = observed(seen(A), seen(B), groups=(seen_group("green"), seen_group("red")))
    overdue = Orphans(slices=frozenset({B}), groups=frozenset({(GPU, "red")}))
    assert plan(Wanted(), found, overdue=overdue) == [RemoveSlice(B, Why.ORPHAN), ForgetGroup((GPU, "red"))]


# ---- properties

SHARE = ("tenant", "weight", "cap_us", "cap_period_us")
UUIDS = st.sampled_from([A, B, C])
TENANTS = st.sampled_from(["blue", "green"])
ORPHANS = st.builds(Orphans, slices=st.frozensets(UUIDS), groups=st.frozensets(st.tuples(st.just(GPU), TENANTS)))
CAPS = st.sampled_from([(0, 0), (1000, 10_000), (5000, 10_000)])
WEIGHTS = st.integers(1, 3)


@st.composite
def wanteds(draw: Any) -> Wanted:
    slices = []
    for uuid in draw(st.sets(UUIDS)):
        cap_us, period_us = draw(CAPS)
        slices.append(
            claim(uuid, vm=VM, tenant=draw(TENANTS), share=draw(WEIGHTS), cap_us=cap_us, cap_period_us=period_us)
        )
    groups = []
    for tenant in draw(st.sets(TENANTS)):
        cap_us, period_us = draw(CAPS)
        groups.append(group(tenant, draw(WEIGHTS), cap_us=cap_us, cap_period_us=period_us))
    doomed = frozenset((GPU, tenant) for tenant in draw(st.sets(TENANTS)))
    return Wanted(groups=tuple(groups), slices=tuple(slices), tombstones=frozenset(draw(st.sets(UUIDS))), doomed=doomed)


@st.composite
def observations(draw: Any) -> Observed:
    slices = []
    for uuid in draw(st.sets(UUIDS)):
        cap_us, period_us = draw(CAPS)
        slices.append(
            seen(
                uuid,
                tenant=draw(TENANTS),
                weight=draw(WEIGHTS),
                cap_us=cap_us,
                cap_period_us=period_us,
                open=draw(st.booleans()),
                permit_s=draw(st.sampled_from([0, 60])),
                recorded=draw(st.booleans()),
            )
        )
    groups = []
    for tenant in draw(st.sets(TENANTS)):
        count = sum(each.tenant == tenant for each in slices)
        groups.append(seen_group(tenant, weight=draw(WEIGHTS), slices=count, configured=draw(st.booleans())))
    gone = draw(st.sets(UUIDS)) - {each.uuid for each in slices}
    return observed(*slices, groups=tuple(groups), stale_records=frozenset(gone))


def carried_out(found: Observed, actions: list[Action]) -> Observed:
    """Return the state that a kernel without errors reaches by this plan."""
    groups, slices, stale = dict(found.groups), dict(found.slices), set(found.stale_records)
    gpus = dict(found.gpus)
    for action in actions:
        match action:
            case ConfigureGroup(wanted):
                key = (wanted.gpu, wanted.tenant)
                groups[key] = seen_group(
                    wanted.tenant, weight=wanted.weight, cap_us=wanted.cap_us, cap_period_us=wanted.cap_period_us
                )
                gpus[GPU] = gpu()
            case ForgetGroup(key):
                del groups[key]
            case ApplySlice(wanted_slice):
                changes = {
                    name: getattr(wanted_slice, name) for name in ("tenant", "weight", "cap_us", "cap_period_us")
                }
                slices[wanted_slice.id] = replace(slices[wanted_slice.id], **changes)
            case RenewPermit(uuid):
                slices[uuid] = replace(slices[uuid], permit_s=120)
            case RemoveSlice(uuid, _):
                slices.pop(uuid, None)
                stale.discard(uuid)
    counted = {
        key: replace(each, slices=sum((one.gpu, one.tenant) == key for one in slices.values()))
        for key, each in groups.items()
    }
    return replace(found, groups=counted, slices=slices, stale_records=frozenset(stale), gpus=gpus)


@given(wanteds(), observations(), ORPHANS)
def test_carrying_plans_out_ends(wanted: Wanted, found: Observed, overdue: Orphans) -> None:
    for _ in range(3):
        actions = plan(wanted, found, overdue=overdue)
        if not actions:
            return
        found = carried_out(found, actions)
    assert plan(wanted, found, overdue=overdue) == []


@given(wanteds(), observations(), st.frozensets(UUIDS), ORPHANS)
def test_no_plan_touches_what_is_not_ours_or_in_use(
    wanted: Wanted, found: Observed, released: frozenset[UUID], overdue: Orphans
) -> None:
    claimed = {each.id for each in wanted.slices}
    named = {(each.gpu, each.tenant) for each in (*wanted.slices, *wanted.groups)}
    for action in plan(wanted, found, released=released, overdue=overdue):
        match action:
            case RemoveSlice(uuid, why) if uuid in found.slices:
                device = found.slices[uuid]
                assert device.recorded
                assert not device.open or (why is Why.RELEASED and uuid in released & claimed)
                assert uuid in (overdue.slices - claimed if why is Why.ORPHAN else claimed | wanted.tombstones)
            case ApplySlice(each):
                assert found.slices[each.id].recorded
            case ForgetGroup(key):
                assert key in (wanted.doomed | overdue.groups) - named
                assert not found.groups[key].slices


@given(observations())
def test_without_desired_state_nothing_but_stale_records_goes(found: Observed) -> None:
    assert all(isinstance(each, RemoveSlice) and each.why is Why.STALE_RECORD for each in plan(Wanted(), found))
