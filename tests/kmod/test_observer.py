# SPDX-License-Identifier: Apache-2.0
"""The observer against the kernel: sums of recorded runs are the counters, to the nanosecond."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.rig.gpu import Gpu, Load, poll
from vgpumgr.observer.account import accounts, shares
from vgpumgr.observer.trace import EndedRun, Parked, Recording, recorded

RUNS = Path("/sys/kernel/debug/vgpumgr/runs")
RUNS_MIN = 50
"""The least number of runs of each tenant in a window; red, which is capped, has at most that many in a second."""


def busy(delay_us: int = 200) -> dict[str, object]:
    return {"op": "delay", "delay_us": delay_us, "queued_min": 0}


def three_tenants(gpu: Gpu) -> Load:
    """Weights, a cap, and a tenant of two slices: runs end for several reasons."""
    gpu.tenant("blue", weight=300, timeslice_us=2000)
    gpu.tenant("green", weight=100, timeslice_us=1000)
    gpu.tenant("red", weight=100, timeslice_us=1000, cap_us=1000, cap_period_us=20000)
    return {
        gpu.slice("blue"): busy(),
        gpu.slice("blue"): busy(150),
        gpu.slice("green"): busy(),
        gpu.slice("red"): busy(),
    }


def ended(recording: Recording, tenant: str) -> list[EndedRun]:
    return [run for run in recording.happened if isinstance(run, EndedRun) and run.tenant == tenant]


def bucket_start_ns(length_ns: int) -> int:
    """The buckets of the kernel's histogram: four per power of two, one below 1024 ns."""
    if length_ns < 1024:
        return 0
    octave = length_ns.bit_length() - 1
    return (4 + (length_ns >> (octave - 2) & 3)) << (octave - 2)


def test_from_idle_to_idle_every_counter_of_a_group_is_what_was_recorded(gpu: Gpu) -> None:
    """Run time, runs, reasons, longest run, histogram: read before and after, when no run crosses either end."""
    load = three_tenants(gpu)
    with recorded() as recording, gpu.loaded(load, seconds=2):
        pass
    assert recording.lost == 0
    for name in ("blue", "green", "red"):
        runs, counted = ended(recording, name), gpu.stats(name)
        assert sum(run.length_ns for run in runs) == counted.run_ns > 0
        assert len(runs) == counted.runs
        assert sum(run.reason == "timeslice" for run in runs) == counted.uncut_runs
        assert max(run.length_ns for run in runs) == counted.longest_run_ns
        assert Counter(bucket_start_ns(run.length_ns) for run in runs) == dict(counted.histogram)
        assert {run.slice for run in runs} <= set(load)
    assert {run.reason for run in ended(recording, "red")} >= {"cap"}
    assert {run.reason for run in ended(recording, "blue")} >= {"timeslice"}


def test_debugfs_shows_people_what_programs_are_told(gpu: Gpu) -> None:
    with gpu.loaded(three_tenants(gpu), seconds=1):
        pass
    gpu.tenant("none", weight=1, timeslice_us=5000)
    gpu.slice("named")
    expected = [line for name in ("blue", "green", "red", "none") for line in shown(gpu, name)]
    assert re.sub(r" lag_ns=-?\d+ ", " ", RUNS.read_text()).splitlines() == expected


def shown(gpu: Gpu, name: str) -> list[str]:
    """Its lines without what it is owed, which changes during the read."""
    told = gpu.stats(name)
    timeslice_ns = 1000 * told.timeslice_us
    return [
        f"{gpu.address} {name} timeslice_ns={timeslice_ns} runs={told.runs} longest_ns={told.longest_run_ns}",
        *(f"\t>= {start_ns} ns: {count}" for start_ns, count in told.histogram),
    ]


def test_under_load_any_window_between_runs_agrees_with_the_counters_in_the_trace(gpu: Gpu) -> None:
    with gpu.loaded(three_tenants(gpu)), recorded() as recording:
        window = gpu.window()
        for name, before in window.first.tenants.items():
            poll(lambda name=name, runs=before.runs: gpu.stats(name).runs >= runs + RUNS_MIN)  # type: ignore[misc]
        window.close()
    assert recording.lost == 0
    for first in (0, len(recording.happened) // 3):
        found = {account.tenant: account for account in accounts(recording.happened[first:])}
        assert set(found) == {"blue", "green", "red"}
        assert all(account.agrees and account.runs > 3 for account in found.values()), found
    part = shares(accounts(recording.happened))
    for name, share in window.share.items():
        assert part[gpu.address, name] == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize(("policy", "places"), [("best_effort", None), ("equal_share", None), ("fixed_share", 6)])
def test_under_every_policy_work_holds_and_idle_turns_add_up_to_the_counters(
    gpu: Gpu, policy: str, places: int | None
) -> None:
    """Busy, napping and idle tenants; one slice is created and one removed while all sleep.

    The counters at the end are read while the recording goes on.
    """
    gpu.share_by(policy, places=places)
    for name in ("busy", "naps", "none"):
        gpu.tenant(name, weight=100, timeslice_us=1000, mode="strict" if places else "fair")
    load: Load = {gpu.slice("busy"): busy(), gpu.slice("naps"): busy() | {"nap_us": 3000}}
    idle = [gpu.slice("none"), gpu.slice("none")]
    before = {name: gpu.stats(name) for name in ("busy", "naps", "none")}
    with recorded() as recording:
        for change in (lambda: gpu.sysfs.remove(idle.pop()), lambda: idle.append(gpu.slice("naps"))):
            with gpu.loaded(load, seconds=1):
                pass
            change()  # type: ignore[no-untyped-call]
        counted = {name: gpu.stats(name) for name in before}
    assert recording.lost == 0
    for name, after in counted.items():
        charged = [what.length_ns for what in recording.happened if what.tenant == name]
        assert sum(charged) == after.run_ns - before[name].run_ns
    found = {account.tenant: account for account in accounts(recording.happened)}
    assert all(account.agrees for account in found.values()), found
    parked = {what.tenant for what in recording.happened if isinstance(what, Parked)}
    assert parked == (set() if policy == "best_effort" else set(counted))
    for name in parked - {"none"}:
        first = next(what for what in recording.happened if what.tenant == name)
        assert isinstance(first, Parked), "told before the run that ends it"


def test_a_run_that_is_not_recorded_is_noticed(gpu: Gpu) -> None:
    with gpu.loaded(three_tenants(gpu)), recorded() as recording:
        gpu.measured_over(1)
    blue = ended(recording, "blue")
    happened = list(recording.happened)
    happened.remove(blue[len(blue) // 2])
    (account,) = (account for account in accounts(happened) if account.tenant == "blue")
    assert not account.agrees
    assert "not recorded" in account.faults[0]


def test_a_buffer_that_is_too_small_is_noticed(gpu: Gpu) -> None:
    """The tracer reports the loss itself; the part that is left is continuous, and its sums agree."""
    with gpu.loaded(three_tenants(gpu)), recorded(buffer_kib=4) as recording:
        gpu.measured_over(2)
    assert recording.lost > 0


def test_a_tenant_whose_slice_is_removed_while_it_runs_agrees(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    gone, stays = gpu.slice("blue"), gpu.slice("blue")
    with recorded() as recording:
        with gpu.loaded({gone: busy(), stays: busy()}, seconds=1):
            pass
        gpu.sysfs.remove(gone)
        with gpu.loaded({stays: busy()}, seconds=1):
            pass
    (account,) = accounts(recording.happened)
    counted = gpu.stats("blue")
    assert account.agrees, account.faults
    assert sum(run.length_ns for run in ended(recording, "blue")) == counted.run_ns
