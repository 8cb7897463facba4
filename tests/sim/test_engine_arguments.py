# SPDX-License-Identifier: Apache-2.0
"""Bad arguments raise a ValueError that says what was expected, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.engines import MS, US, WHOLE, params, tenant
from vgpumgr.sim.engine import Backlog, EngineModel, GroupParams, Program, Simulation, SliceParams, schedulers

PROGRAMS: list[tuple[dict[str, Any], str]] = [
    ({"work_ns": []}, "work_ns: a program needs at least one kernel"),
    ({"work_ns": [0]}, "work_ns: every value must lie in 1"),
    ({"work_ns": [-1]}, "work_ns: every value"),
    ({"work_ns": [1.5]}, "work_ns: give whole nanoseconds, not float64"),
    ({"work_ns": [[1, 2]]}, "work_ns: give one number or 2"),
    ({"work_ns": [2**61]}, "work_ns: every value"),
    ({"work_ns": [1, 2], "launch_ns": [1]}, "launch_ns: give one number or 2"),
    ({"work_ns": [1], "sync": [2]}, "sync: every value must lie in 0..1"),
    ({"work_ns": [1], "claims": [4]}, "claims: every value must lie in 0..3"),
    ({"work_ns": [1], "claims": [1, 1]}, "claims: give one per kernel"),
    ({"work_ns": [1], "kernel_id": [2**32]}, "kernel_id: every value"),
    ({"work_ns": [1], "requests": [1]}, "requests: give the index of each request's first kernel"),
    ({"work_ns": [1, 1], "requests": [0, 2]}, "requests: the indices must ascend and stay below 2"),
    ({"work_ns": [1, 1], "requests": [0, 0]}, "requests: the indices must ascend"),
    ({"work_ns": [1], "arrivals_ns": [2, 1]}, "arrivals_ns: the times must ascend"),
    ({"work_ns": [1], "arrivals_ns": [1], "count": 3}, "count: an open loop has as many"),
    ({"work_ns": [1], "count": -1}, "count: -1 is not in 0"),
    ({"work_ns": [1], "think_ns": [1, 2]}, "think_ns: give one number or 1"),
    ({"work_ns": [1], "queue_depth": 0}, "queue_depth: 0 is not in 1"),
    ({"work_ns": [1], "work_jitter_permille": 251}, "work_jitter_permille: 251 is not in 0..250"),
    ({"work_ns": [1], "start_ns": -5}, "start_ns: -5 is not in 0"),
    ({"work_ns": [100 * MS + 1]}, "work_ns: a non-preemptible engine takes no kernel longer"),
]


@pytest.mark.parametrize(("arguments", "reason"), PROGRAMS)
def test_a_bad_program_is_refused(arguments: dict[str, Any], reason: str) -> None:
    sim = Simulation(WHOLE, "fifo")
    group = sim.add_group("a", params())
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        sim.add_slice(group, Program(**arguments))
    assert sim.slices_of(group) == []
    assert sim.add_slice(group, Backlog(work_ns=1)).index == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"kind": "elastic"}, "kind: 'elastic' is not one of non_preemptible, splittable, preemptible"),
        ({"max_chunk_ns": 999}, "max_chunk_ns: 999 is not in 1000"),
        ({"min_chunk_ns": 0}, "min_chunk_ns: 0 is not in 1"),
        ({"max_chunk_ns": MS, "min_chunk_ns": 2 * MS}, "min_chunk_ns"),
        ({"switch_cost_ns": -1}, "switch_cost_ns: -1"),
        ({"split_cost_ns": 1}, "split_cost_ns: a non_preemptible engine does not split"),
        ({"kind": "splittable", "preempt_latency_ns": 1}, "preempt_latency_ns: a splittable engine does not"),
    ],
)
def test_a_bad_engine_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Simulation(EngineModel(**arguments))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"scheduler": "magic"}, "scheduler: 'magic' is not one of vgpumgr, vgpumgr_lease, exclusive"),
        ({"scheduler": "fifo", "parameters": {"x": 1}}, "parameters: fifo has no 'x'; it takes none"),
        ({"scheduler": "timeslice", "parameters": {"timeslice_ns": 1}}, "timeslice_ns: 1 is not in 10000"),
        ({"scheduler": "fifo", "seed": -1}, "seed: -1 is not in 0"),
    ],
)
def test_a_bad_scheduler_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Simulation(WHOLE, **arguments)


@pytest.mark.parametrize("scheduler", schedulers())
@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"weight": 0, "timeslice_ns": MS}, "weight"),
        ({"weight": -1, "timeslice_ns": MS}, "weight"),
        ({"weight": 1, "timeslice_ns": 0}, "timeslice"),
        ({"weight": 1, "timeslice_ns": MS, "cap_ns": 2, "cap_period_ns": 1}, "cap"),
    ],
)
def test_every_scheduler_refuses_what_the_core_refuses(scheduler: str, bad: dict[str, int], field: str) -> None:
    sim = Simulation(WHOLE, scheduler)
    with pytest.raises(ValueError, match=field):
        sim.add_group("a", GroupParams(**bad))
    group = sim.add_group("a", params())
    with pytest.raises(ValueError, match=field):
        sim.update_group(group, GroupParams(**bad))
    with pytest.raises(ValueError, match="weight"):
        sim.add_slice(group, Backlog(work_ns=1), params=SliceParams(weight=0))
    with pytest.raises(ValueError, match="priority"):
        sim.add_group("b", params(), priority=-1)
    assert sim.groups == [group]


def test_what_is_gone_or_elsewhere_is_refused() -> None:
    sim, other = Simulation(WHOLE, "fifo"), Simulation(WHOLE, "fifo")
    device = tenant(sim, Backlog(work_ns=US))
    stranger = tenant(other, Backlog(work_ns=US))
    sim.run_until(MS)
    for call in (sim.slice_counters, sim.requests, sim.remove_slice, sim.park_slice):
        with pytest.raises(ValueError, match="is not of this simulation, or was removed"):
            call(stranger)
    sim.remove_group(device.group)
    with pytest.raises(ValueError, match="group: 't0' is not of this simulation, or was removed"):
        sim.update_group(device.group, params())
    with pytest.raises(ValueError, match=r"slice: 't0\.0' is not of this simulation, or was removed"):
        sim.remove_slice(device)
    assert sim.slice_counters(device).run_ns == MS, "results stay readable"


def test_time_does_not_go_back() -> None:
    sim = Simulation(WHOLE, "fifo")
    sim.run_until(MS)
    with pytest.raises(ValueError, match=r"t_ns: 999999 is not in 1000000 \(now\)"):
        sim.run_until(MS - 1)
    assert sim.now_ns == MS


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"work_ns": []}, "work_ns: a backlog needs"),
        ({"work_ns": 1, "depth": 0}, "queue_depth: 0"),
        ({"work_ns": 1, "nap_ns": 5}, "nap_ns: say with nap_every how often"),
        ({"work_ns": 1, "nap_every": -1}, "nap_every: -1"),
    ],
)
def test_a_bad_backlog_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Backlog(**arguments).compile()
