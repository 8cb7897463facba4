# SPDX-License-Identifier: Apache-2.0
"""How long a tenant may hold the engine: R9."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.rig.figures import Record
from tests.rig.gpu import Gpu
from tests.rig.trace import Run, traced_runs

CHUNK_US = 400
LOAD: dict[str, object] = {"op": "delay", "delay_us": 200}


def of(runs: list[Run], tenant: str) -> list[Run]:
    return [run for run in runs if run.tenant == tenant]


def assert_runs_obey(runs: list[Run], timeslice_us: int) -> None:
    """No run is longer than timeslice + chunk; 99 % of the uncut ones last at least the timeslice."""
    assert len(runs) > 50
    assert max(run.length_ns for run in runs) <= (timeslice_us + CHUNK_US) * 1000
    uncut = [run for run in runs if run.reason == "timeslice"]
    assert len(uncut) > 0.9 * len(runs)
    short = [run for run in uncut if run.length_ns < timeslice_us * 1000]
    assert len(short) <= 0.01 * len(uncut)


@pytest.mark.parametrize(("blue_us", "green_us"), [(1000, 5000), (5000, 1000), (1000, 1000)])
def test_each_tenant_runs_for_its_own_timeslice(gpu: Gpu, figures: Record, blue_us: int, green_us: int) -> None:
    gpu.set_max_chunk_us(CHUNK_US)
    gpu.tenant("blue", weight=100, timeslice_us=blue_us)
    gpu.tenant("green", weight=100, timeslice_us=green_us)
    with gpu.loaded({gpu.slice("blue"): LOAD, gpu.slice("green"): LOAD}), traced_runs() as runs:
        shares = gpu.measured_over(2).share

    for tenant, timeslice_us in (("blue", blue_us), ("green", green_us)):
        longest_us = max(run.length_ns for run in of(runs, tenant)) / 1000
        title = f"timeslice {timeslice_us} us, longest of {len(of(runs, tenant))} runs"
        figures(title, longest_us, against=timeslice_us + CHUNK_US, unit="us, at most")
        assert_runs_obey(of(runs, tenant), timeslice_us)
    assert shares["blue"] == pytest.approx(0.5, abs=0.01)
    assert gpu.stats("blue").short_uncut_runs == gpu.stats("green").short_uncut_runs == 0


def test_a_timeslice_changed_live_holds_from_the_next_run(gpu: Gpu) -> None:
    gpu.set_max_chunk_us(CHUNK_US)
    gpu.tenant("blue", weight=100, timeslice_us=5000)
    gpu.tenant("green", weight=100, timeslice_us=5000)
    with gpu.loaded({gpu.slice("blue"): LOAD, gpu.slice("green"): LOAD}):
        with traced_runs() as before:
            gpu.measured_over(1)
        with traced_runs() as after:
            gpu.tenant("blue", weight=100, timeslice_us=1000)
            gpu.measured_over(2)
            longest_run_ns = gpu.stats("blue").longest_run_ns

    assert_runs_obey(of(before, "blue"), 5000)
    # The run under way at the change still has its old timeslice; no later run has.
    assert_runs_obey(of(after, "blue")[1:], 1000)
    assert_runs_obey(of(after, "green"), 5000)
    # The counter starts again with the new timeslice.
    assert longest_run_ns <= (1000 + CHUNK_US) * 1000


# The shortest chunk, which may extend beyond a timeslice (kmod/sched), and the largest charge for a late beginning and
# a late end (kmod/engine/engine.h).
MIN_CHUNK_US, NOTICE_US = 10, 50
# Keeps the processor from all tasks, including the engine's thread, for longer than a chunk at a time. The moments
# shift relative to the chunks.
SEIZING = f"""
import itertools, time
for number in itertools.count():
    until_ns = time.monotonic_ns() + {2 * CHUNK_US * 1000}
    while time.monotonic_ns() < until_ns:
        pass
    time.sleep((300 + 7 * number % 400) / 1e6)
"""


@contextmanager
def seized_processor() -> Iterator[None]:
    words = ["timeout", "120", "chrt", "--fifo", "50", sys.executable, "-c", SEIZING]
    with subprocess.Popen(words) as program:
        try:
            yield
        finally:
            program.terminate()


@pytest.mark.emulated
def test_a_host_that_is_late_makes_no_run_longer(gpu: Gpu, figures: Record) -> None:
    """The charge for a chunk is bounded from the decision on, however late the thread gets a processor."""
    gpu.set_max_chunk_us(CHUNK_US)
    for tenant in ("blue", "green"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    with gpu.loaded({gpu.slice("blue"): LOAD, gpu.slice("green"): LOAD}), seized_processor(), traced_runs() as runs:
        gpu.measured_over(8)

    bound_us = 1000 + MIN_CHUNK_US + 2 * NOTICE_US
    longest_us = max(run.length_ns for run in runs) / 1000
    late_us = max(run.end_ns - run.charged_until_ns for run in runs) / 1000
    figures(f"processor seized, longest of {len(runs)} runs", longest_us, against=bound_us, unit="us, at most")
    assert late_us > CHUNK_US, "the processor was not seized"
    assert longest_us <= bound_us
