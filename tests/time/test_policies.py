# SPDX-License-Identifier: Apache-2.0
"""Policies that give nobody's turn to another tenant: R8."""

import threading
import time

import pytest

from tests.rig.client import client
from tests.rig.figures import Record
from tests.rig.gpu import Gpu, poll
from tests.rig.trace import traced
from tests.rig.vfio import opened

LOAD: dict[str, object] = {"op": "delay", "delay_us": 200}
POINT = 0.01  # of the engine
# two snapshots are not taken at the same moment
READING = 0.005


def tenants(gpu: Gpu, mode: str) -> tuple[str, list[str]]:
    """A tenant with one slice and a great weight, and one with two slices and a small one."""
    gpu.tenant("one", weight=900, timeslice_us=1000, mode=mode)
    gpu.tenant("two", weight=100, timeslice_us=3000, mode=mode)
    return gpu.slice("one"), [gpu.slice("two"), gpu.slice("two")]


def test_equal_share_gives_each_slice_its_part_and_keeps_what_is_not_used(gpu: Gpu, figures: Record) -> None:
    gpu.share_by("equal_share")
    one, two = tenants(gpu, "fair")
    with gpu.loaded({one: LOAD}):
        lonely = gpu.measured_over(2)
    with gpu.loaded({one: LOAD, two[0]: LOAD, two[1]: LOAD}):
        full = gpu.measured_over(2)

    figures(
        "equal share, 1 of 3 slices works: its share", lonely.share_of_wall["one"], against=1 / 3, unit="of all time"
    )
    figures("equal share, all work: share of 2 slices", full.share_of_wall["two"], against=2 / 3, unit="of all time")
    for window in (lonely, full):
        assert window.share_of_wall["one"] == pytest.approx(1 / 3, abs=POINT)
        assert window.share_of_wall["two"] == pytest.approx(2 / 3, abs=POINT)
    first, last = (snapshot.tenants["two"] for snapshot in (lonely.first, lonely.last))
    assert last.ghost_ns - first.ghost_ns == last.run_ns - first.run_ns
    first, last = (snapshot.tenants["two"] for snapshot in (full.first, full.last))
    assert last.ghost_ns == first.ghost_ns
    for uuid in two:
        assert full.slice_share[uuid] == pytest.approx(1 / 3, abs=POINT)


def test_fixed_share_keeps_the_places_that_are_not_sold(gpu: Gpu, figures: Record) -> None:
    gpu.share_by("fixed_share", places=5)
    one, two = tenants(gpu, "strict")
    with gpu.loaded({one: LOAD, two[0]: LOAD}):
        before = gpu.control.gpu(gpu.address)
        window = gpu.measured_over(2)
        after = gpu.control.gpu(gpu.address)

    idle = (after.idle_ns - before.idle_ns) / (after.wall_ns - before.wall_ns)
    figures("fixed share, 3 of 5 places sold, 2 work: idle", idle, against=0.4, unit="of all time")
    assert window.share_of_wall["one"] == pytest.approx(0.2, abs=POINT)
    assert window.share_of_wall["two"] == pytest.approx(0.4, abs=POINT)
    assert idle == pytest.approx(0.4, abs=POINT)
    first, last = (snapshot.tenants["two"] for snapshot in (window.first, window.last))
    assert (last.ghost_ns - first.ghost_ns) / 1e9 / window.seconds == pytest.approx(0.2, abs=POINT)


@pytest.mark.parametrize(("policy", "places", "part"), [("equal_share", None, 3), ("fixed_share", 5, 5)])
def test_an_engine_with_nothing_but_ghosts_parks_without_a_timer(
    gpu: Gpu, policy: str, places: int | None, part: int
) -> None:
    """The scheduler takes no decision for a second, and all tenants are charged for it afterwards."""
    gpu.share_by(policy, places=places)
    one, _ = tenants(gpu, "strict" if places else "fair")
    client(one, "latency", "--delay-us", "50", "--period-us", "10000", "--seconds", "0.5")
    time.sleep(0.05)  # closing the slice is the last event that wakes the engine
    first, picks = gpu.snapshot(), gpu.control.gpu(gpu.address).picks
    time.sleep(1)
    assert gpu.control.gpu(gpu.address).picks == picks
    last = gpu.snapshot()
    seconds = last.taken_s - first.taken_s
    for name, slices in (("one", 1), ("two", 2)):
        grown = (last.tenants[name].run_ns - first.tenants[name].run_ns) / 1e9 / seconds
        assert grown == pytest.approx(slices / part, abs=READING)
        assert (
            last.tenants[name].ghost_ns - first.tenants[name].ghost_ns
            == last.tenants[name].run_ns - first.tenants[name].run_ns
        )
    for uuid, found in last.slices.items():
        before = first.slices[uuid]
        assert found.ghost_ns - before.ghost_ns == found.run_ns - before.run_ns > 0
    # now new work wakes it
    report = client(one, "latency", "--delay-us", "50", "--period-us", "10000", "--seconds", "0.5").reports[-1]
    assert report["items"] > 20


def test_turns_of_ghosts_are_in_the_trace(gpu: Gpu) -> None:
    gpu.share_by("equal_share")
    one, _ = tenants(gpu, "fair")
    with gpu.loaded({one: LOAD}), traced() as trace:
        time.sleep(1)
    ghosts = [run for run in trace.runs if run.tenant == "two"]
    assert len(ghosts) > 50
    assert {run.reason for run in ghosts} == {"timeslice"}
    assert all(run.length_ns == 3_000_000 for run in ghosts)


def test_a_slice_that_goes_does_not_keep_its_turn(gpu: Gpu) -> None:
    """The engine idles in a turn of one second. When the slice leaves, waiting tenants run at once."""
    gpu.share_by("equal_share")
    gpu.tenant("works", weight=100, timeslice_us=1000)
    gpu.tenant("idles", weight=100, timeslice_us=1_000_000)
    worker, idler = gpu.slice("works"), gpu.slice("idles")

    def is_turn_of_ghost() -> bool:
        before = gpu.stats("works").run_ns
        time.sleep(0.02)
        return gpu.stats("works").run_ns == before

    with gpu.loaded({worker: LOAD}):
        poll(is_turn_of_ghost)
        ghost_ns = gpu.stats("idles").ghost_ns
        gpu.control.set_slice(idler, tenant="")
        window = gpu.measured_over(0.2)
        assert gpu.stats("idles").ghost_ns < ghost_ns + 500_000_000
    assert window.share_of_wall["works"] > 0.9


def test_a_slice_that_is_removed_does_not_keep_its_turns(gpu: Gpu) -> None:
    """Its VMM may keep it open."""
    gpu.share_by("equal_share")
    one, two = tenants(gpu, "fair")
    gpu.sysfs.remove(two.pop())
    with opened(two[0]) as device, gpu.loaded({one: LOAD}):
        assert gpu.measured_over(0.2).share_of_wall["one"] == pytest.approx(0.5, abs=POINT)
        remover = threading.Thread(target=lambda: gpu.sysfs.remove(two[0]), daemon=True)
        remover.start()
        poll(lambda: device.register(0) == 0xFFFF_FFFF)
        window = gpu.measured_over(0.2)
        assert remover.is_alive()
    remover.join()
    assert window.share_of_wall["one"] == pytest.approx(1, abs=POINT)
