# SPDX-License-Identifier: Apache-2.0
"""Memory lanes: memory never runs out, and no application starves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgpumgr.policy.lanes import Demand, Lanes
from vgpumgr.sim.job_sets import inference_apps

GIB = 1 << 30


def need(persistent: int, ephemeral: int) -> Demand:
    return Demand(persistent_bytes=persistent, ephemeral_bytes=ephemeral)


def of(capacity: int, *, max_lanes: int = 2, patience_ns: int = 10) -> Lanes[str]:
    return Lanes(capacity_bytes=capacity, max_lanes=max_lanes, patience_ns=patience_ns)


def layout(lanes: Lanes[str]) -> list[tuple[set[str], int]]:
    return [(set(lane.members), lane.needs_bytes) for lane in lanes.lanes]


# ---- stories


def test_a_job_has_a_lane_of_its_own_while_there_is_room() -> None:
    lanes = of(100)
    assert lanes.request("a", need(10, 30), 0) == ["a"]
    assert lanes.request("b", need(10, 20), 0) == ["b"]
    assert layout(lanes) == [({"a"}, 40), ({"b"}, 30)]
    assert lanes.free_bytes == 30


def test_the_next_joins_the_lane_that_grows_least_and_wastes_least() -> None:
    lanes = of(100)
    lanes.request("a", need(10, 30), 0)
    lanes.request("b", need(10, 20), 0)
    assert lanes.request("c", need(5, 20), 0) == ["c"]
    assert lanes.request("d", need(5, 25), 0) == ["d"]
    assert layout(lanes) == [({"a", "d"}, 45), ({"b", "c"}, 35)]


def test_lanes_merge_when_nothing_else_fits() -> None:
    lanes = of(100)
    lanes.request("a", need(10, 40), 0)
    lanes.request("b", need(10, 35), 0)
    assert lanes.request("c", need(30, 40), 0) == ["c"]
    assert layout(lanes) == [({"a", "b", "c"}, 90)]


def test_two_lanes_in_an_iteration_do_not_merge_until_one_ends() -> None:
    lanes = of(100)
    lanes.request("a", need(10, 40), 0)
    lanes.request("b", need(10, 35), 0)
    assert lanes.begin_iteration("a")
    assert lanes.begin_iteration("b")
    assert lanes.request("c", need(30, 40), 0) == []
    assert lanes.end_iteration("b", 1) == ["c"]
    assert not lanes.begin_iteration("b"), "a still has the scratch memory that all three share"


def test_jobs_of_one_lane_take_turns() -> None:
    lanes = of(100, max_lanes=1)
    lanes.request("a", need(10, 30), 0)
    lanes.request("b", need(10, 30), 0)
    assert lanes.begin_iteration("a")
    assert not lanes.begin_iteration("b")
    lanes.end_iteration("a", 1)
    assert lanes.begin_iteration("b")


def test_what_leaves_makes_room_and_ends_its_iteration() -> None:
    lanes = of(100, max_lanes=1)
    lanes.request("a", need(60, 30), 0)
    assert lanes.request("b", need(50, 10), 0) == []
    lanes.begin_iteration("a")
    assert lanes.leave("a", 1) == ["b"]
    assert layout(lanes) == [({"b"}, 60)]
    assert lanes.begin_iteration("b")


def test_small_requests_overtake_a_big_one_only_while_it_is_patient() -> None:
    lanes = of(100, max_lanes=1, patience_ns=10)
    lanes.request("a", need(40, 10), 0)
    assert lanes.request("big", need(85, 10), 0) == []
    assert lanes.request("b", need(10, 10), 9) == ["b"]
    assert lanes.request("c", need(5, 10), 10) == []
    assert lanes.leave("a", 11) == []
    assert lanes.leave("b", 12) == ["big", "c"]


def test_one_that_gives_up_waiting_no_longer_holds_up_the_others() -> None:
    lanes = of(100, patience_ns=0)
    lanes.request("a", need(40, 10), 0)
    lanes.request("big", need(90, 10), 0)
    assert lanes.request("b", need(10, 10), 1) == []
    assert lanes.leave("big", 2) == ["b"]


def test_42_inference_applications_fit_one_device_of_14_gib() -> None:
    lanes = of(14 * GIB, max_lanes=4)
    apps = inference_apps()
    assert len(apps) == 42
    for name, demand in apps.items():
        assert lanes.request(name, demand, 0) == [name]
    assert sum(demand.total_bytes for demand in apps.values()) > 14 * GIB, "side by side they do not fit"


# ---- bad input


def test_bad_input_changes_nothing() -> None:
    lanes = of(100)
    lanes.request("a", need(10, 30), 5)
    lanes.begin_iteration("a")
    before = layout(lanes), lanes.pending, lanes.free_bytes, lanes.lanes[0].owner
    for wrong, message in (
        (lambda: lanes.request("a", need(1, 1), 5), "'a' is here already"),
        (lambda: lanes.request("b", need(90, 11), 5), "needs 101 bytes, the device has 100"),
        (lambda: lanes.request("b", need(1, 1), 4), "time goes back from 5 to 4 ns"),
        (lambda: lanes.leave("a", 4), "time goes back"),
        (lambda: lanes.end_iteration("a", 4), "time goes back"),
        (lambda: lanes.leave("x", 5), "'x' is not here"),
        (lambda: lanes.begin_iteration("x"), "'x' is not here"),
        (lambda: lanes.begin_iteration("a"), "in an iteration already"),
        (lambda: lanes.end_iteration("x", 5), "'x' is not here"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
        assert (layout(lanes), lanes.pending, lanes.free_bytes, lanes.lanes[0].owner) == before


def test_one_that_waits_has_no_iterations() -> None:
    lanes = of(100, max_lanes=1)
    lanes.request("a", need(90, 10), 0)
    lanes.request("b", need(90, 10), 0)
    with pytest.raises(ValueError, match="'b' still waits for memory"):
        lanes.begin_iteration("b")
    with pytest.raises(ValueError, match="'b' is in no iteration"):
        lanes.end_iteration("b", 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: of(0), "holds nothing"),
        (lambda: of(1, max_lanes=0), "at least one lane"),
        (lambda: of(1, patience_ns=-1), "patience_ns -1"),
        (lambda: need(-1, 0), "negative memory"),
    ],
)
def test_impossible_devices_and_demands_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


# ---- properties (research: I13, I14)


class Witness:
    """Counts bytes without asking the lanes: resident memory, and memory of present iterations."""

    def __init__(self, lanes: Lanes[int], capacity: int) -> None:
        self.lanes = lanes
        self.capacity = capacity
        self.demands: dict[int, Demand] = {}
        self.resident: set[int] = set()
        self.iterating: set[int] = set()

    def admitted(self, keys: list[int]) -> None:
        self.resident.update(keys)
        self.check()

    def check(self) -> None:
        used = sum(self.demands[key].persistent_bytes for key in self.resident)
        used += sum(self.demands[key].ephemeral_bytes for key in self.iterating)
        assert used <= self.capacity, "out of memory"
        members = [key for lane in self.lanes.lanes for key in lane.members]
        assert sorted(members) == sorted(self.resident), "every resident job is in exactly one lane"
        assert len(self.lanes.lanes) <= self.lanes.max_lanes
        assert self.lanes.free_bytes >= 0
        for lane in self.lanes.lanes:
            assert len(self.iterating & lane.members.keys()) <= 1, "two jobs use one lane's scratch memory"
            assert lane.needs_bytes == sum(demand.persistent_bytes for demand in lane.members.values()) + max(
                demand.ephemeral_bytes for demand in lane.members.values()
            )


def random_life(seed: int, *, capacity: int, max_lanes: int, steps: int) -> None:
    rng = random.Random(seed)
    lanes: Lanes[int] = Lanes(capacity_bytes=capacity, max_lanes=max_lanes, patience_ns=50)
    witness = Witness(lanes, capacity)
    here: list[int] = []
    for now in range(steps):
        act = rng.random()
        if act < 0.4 or not here:
            total = rng.randint(1, capacity)
            ephemeral = rng.randint(0, total)
            witness.demands[now] = need((total - ephemeral) // rng.choice((1, 8)), ephemeral)
            here.append(now)
            witness.admitted(lanes.request(now, witness.demands[now], now))
            continue
        key = rng.choice(here)
        if act < 0.6:
            here.remove(key)
            witness.resident.discard(key)
            witness.iterating.discard(key)
            witness.admitted(lanes.leave(key, now))
        elif key in witness.iterating:
            witness.iterating.discard(key)
            witness.admitted(lanes.end_iteration(key, now))
        elif key in witness.resident and lanes.begin_iteration(key):
            witness.iterating.add(key)
            witness.check()


@given(seed=st.integers(0, 2**32), capacity=st.integers(1, 60), max_lanes=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_memory_always_suffices(seed: int, capacity: int, max_lanes: int) -> None:
    random_life(seed, capacity=capacity, max_lanes=max_lanes, steps=200)


@given(seed=st.integers(0, 2**32), max_lanes=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_a_big_request_is_admitted_once_those_before_it_have_left(seed: int, max_lanes: int) -> None:
    """This holds however many small requests keep coming. The latest moment is when all that were present at the end of
    its patience have left.
    """
    rng = random.Random(seed)
    lanes: Lanes[int] = Lanes(capacity_bytes=100, max_lanes=max_lanes, patience_ns=50)
    for key in range(8):
        lanes.request(key, need(rng.randint(5, 12), rng.randint(0, 5)), 0)
    lanes.request(-1, need(95, 5), 1)
    blockers: set[int] | None = None
    for now in range(2, 600):
        lanes.request(now + 10, need(rng.randint(5, 12), rng.randint(0, 5)), now)
        residents = [key for lane in lanes.lanes for key in lane.members]
        if -1 in residents:
            return
        if now >= 51 and blockers is None:
            blockers = set(residents)
        if blockers is not None:
            assert set(residents) <= blockers, "somebody overtook it"
        lanes.leave(rng.choice(residents), now)
    pytest.fail("it starved")
