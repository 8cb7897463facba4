# SPDX-License-Identifier: Apache-2.0
"""The simulator's core is the core of the module: it runs a story exactly like tests/sched/host.py."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings

from tests.sched.host import Host, group_params, slice_params
from tests.sched.story import (
    Arrive,
    ChangeSlice,
    CloseSlice,
    Depart,
    Event,
    NewCap,
    NewTimeslice,
    OpenSlice,
    Reweight,
    SliceOf,
    Story,
    Tenant,
    stories,
)
from vgpumgr.sim.engine import Backlog, EngineModel, Reason, SimGroup, Simulation

if TYPE_CHECKING:
    from vgpumgr.sched.core import GroupParams


class Replay:
    """A story, translated for the simulator."""

    def __init__(self, story: Story) -> None:
        engine = story.engine
        self.sim = Simulation(
            EngineModel(
                kind="splittable" if engine.splits else "non_preemptible",
                max_chunk_ns=engine.max_chunk_ns,
                min_chunk_ns=engine.min_chunk_ns,
            )
        )
        self.tenants: list[tuple[SimGroup, GroupParams]] = []
        for tenant in story.tenants:
            self.arrive(tenant)
        for event in story.sorted_events():
            self.sim.run_until(event.at_ns)
            self.happen(event)

    def arrive(self, tenant: Tenant) -> None:
        params = group_params(tenant)
        group = self.sim.add_group(f"t{len(self.tenants)}", params)
        self.tenants.append((group, params))
        for one in tenant.slices:
            self.open(group, one)

    def open(self, group: SimGroup, one: SliceOf) -> None:
        work = one.work
        self.sim.add_slice(
            group,
            Backlog(
                work_ns=work.items,
                start_ns=self.sim.now_ns + work.starts_ns,
                nap_every=work.nap_every,
                nap_ns=work.nap_ns,
            ),
            params=slice_params(one.weight, one.cap),
        )

    def update(self, index: int, **changes: Any) -> None:
        group, params = self.tenants[index]
        params = replace(params, **changes)
        self.sim.update_group(group, params)
        self.tenants[index] = (group, params)

    def happen(self, event: Event) -> None:
        if isinstance(event, Arrive):
            self.arrive(event.tenant)
            return
        if not self.tenants:
            return
        index = event.who % len(self.tenants)
        group = self.tenants[index][0]
        slices = self.sim.slices_of(group)
        if isinstance(event, Reweight):
            self.update(index, weight=event.weight)
        elif isinstance(event, NewTimeslice):
            self.update(index, timeslice_ns=event.timeslice_ns)
        elif isinstance(event, NewCap):
            self.update(index, **vars(event.cap))
        elif isinstance(event, OpenSlice):
            self.open(group, event.slice)
        elif isinstance(event, Depart):
            self.sim.remove_group(group)
            del self.tenants[index]
        elif isinstance(event, CloseSlice) and slices:
            self.sim.remove_slice(slices[event.which % len(slices)])
        elif isinstance(event, ChangeSlice) and slices:
            self.sim.update_slice(slices[event.which % len(slices)], slice_params(event.weight, event.cap))

    def runs_of_groups(self) -> list[tuple[int, int, int]]:
        """(start, length, reason) of every ended run; consecutive stays of slices are joined."""
        found: list[tuple[int, int, int]] = []
        goes_on = False
        for run in self.sim.runs():
            start, length, reason = int(run["start_ns"]), int(run["length_ns"]), int(run["reason"])
            if goes_on:
                start, before, _ = found.pop()
                length += before
            goes_on = reason == Reason.SLICE
            found.append((start, length, reason))
        # The core drops the run of a group that is removed before the next pick.
        return [run for run in found if run[2] not in (Reason.STILL_RUNNING, Reason.SLICE, Reason.REMOVED)]


def with_slices_as_the_engine(tenant: Tenant, splits: bool) -> Tenant:
    return replace(tenant, slices=tuple(replace(s, work=replace(s.work, splittable=splits)) for s in tenant.slices))


def normal(story: Story) -> Story:
    """The simulator's engines split either all items or none. No two events happen at the same moment."""
    splits = story.engine.splits
    events: list[Event] = []
    for i, event in enumerate(story.sorted_events()):
        event = replace(event, at_ns=event.at_ns // 1000 * 1000 + 501 + i)
        if isinstance(event, Arrive):
            event = replace(event, tenant=with_slices_as_the_engine(event.tenant, splits))
        elif isinstance(event, OpenSlice):
            event = replace(event, slice=replace(event.slice, work=replace(event.slice.work, splittable=splits)))
        events.append(event)
    tenants = tuple(with_slices_as_the_engine(tenant, splits) for tenant in story.tenants)
    return replace(story, tenants=tenants, events=tuple(events), duration_ns=story.duration_ns + 10_000)


@settings(max_examples=40)
@given(stories())
def test_every_run_is_that_of_the_core(story: Story) -> None:
    story = normal(story)
    host = Host(story, with_model=False).run()
    replay = Replay(story)
    replay.sim.run_until(host.now)
    assert replay.sim.counters().idle_ns == host.core.stats.idle_ns
    replay.sim.run_until(host.now + 1)
    runs = [(run.start_ns, run.length_ns, int(run.reason)) for _, run in host.runs]
    assert replay.runs_of_groups() == [run for run in runs if run[2] != Reason.REMOVED]
