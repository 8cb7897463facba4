# SPDX-License-Identifier: Apache-2.0
"""How much a tenant may use even when nobody else wants the engine: R7, R1."""

import time

import pytest

from tests.rig.figures import Record
from tests.rig.gpu import Gpu
from tests.rig.trace import traced_runs, worst_excess_ns

LOAD: dict[str, object] = {"op": "delay", "delay_us": 200}
CHUNK_US = 400


@pytest.mark.parametrize(
    ("cap_us", "period_us", "burst_us"),
    [(2000, 10000, 0), (300, 1000, 3000)],
)
def test_a_capped_tenant_on_an_idle_gpu_stays_under_its_cap(
    gpu: Gpu, figures: Record, cap_us: int, period_us: int, burst_us: int
) -> None:
    """use <= rate * T + burst + one chunk, for every window T between any two instants."""
    timeslice_us = 1000
    gpu.set_max_chunk_us(CHUNK_US)
    gpu.tenant(
        "capped",
        weight=100,
        timeslice_us=timeslice_us,
        cap_us=cap_us,
        cap_period_us=period_us,
        burst_us=burst_us,
    )
    with gpu.loaded({gpu.slice("capped"): LOAD}), traced_runs() as runs:
        share = gpu.measured_over(2).share_of_wall["capped"]

    assert len(runs) > 50
    excess_us = worst_excess_ns(runs, cap_us=cap_us, period_us=period_us) / 1000
    bound_us = (burst_us or timeslice_us) + CHUNK_US
    figures(
        f"cap {cap_us} of {period_us} us, worst excess over rate * T", excess_us, against=bound_us, unit="us, at most"
    )
    assert excess_us <= bound_us
    # the tenant can also use all of its cap
    assert share == pytest.approx(cap_us / period_us, abs=0.01)


def test_a_burst_and_all_that_follows_stay_under_the_cap(gpu: Gpu, figures: Record) -> None:
    """The same bound from the first item on, so that the windows include the burst itself."""
    cap_us, period_us, burst_us = 300, 1000, 3000
    gpu.set_max_chunk_us(CHUNK_US)
    gpu.tenant("capped", weight=100, timeslice_us=1000, cap_us=cap_us, cap_period_us=period_us, burst_us=burst_us)
    with traced_runs() as runs, gpu.loaded({gpu.slice("capped"): LOAD}):
        gpu.measured_over(2)

    longest_us = max(run.length_ns for run in runs) / 1000
    excess_us = worst_excess_ns(runs, cap_us=cap_us, period_us=period_us) / 1000
    figures("burst of 3 ms, longest run", longest_us, against=1000 + CHUNK_US, unit="us, at most")
    figures("burst of 3 ms, worst excess over rate * T", excess_us, against=burst_us + CHUNK_US, unit="us, at most")
    assert excess_us <= burst_us + CHUNK_US


def test_a_cap_leaves_the_rest_to_others(gpu: Gpu) -> None:
    """Water-filling: the capped tenant gets its 20 %, not its weight's half; the other tenant gets the rest."""
    gpu.tenant("capped", weight=100, timeslice_us=1000, cap_us=2000, cap_period_us=10000)
    gpu.tenant("free", weight=100, timeslice_us=1000)
    with gpu.loaded({gpu.slice("capped"): LOAD, gpu.slice("free"): LOAD}):
        window = gpu.measured_over(3)

    assert window.entitled == {"capped": pytest.approx(0.2), "free": pytest.approx(0.8)}
    for tenant in ("capped", "free"):
        assert window.share_of_wall[tenant] == pytest.approx(window.entitled[tenant], abs=0.01)


def test_a_slice_whose_tenant_is_not_configured_runs_nothing(gpu: Gpu) -> None:
    """The slice accepts items, executes none, and starts the moment its tenant is configured."""
    inert = gpu.slice("nobody")
    with gpu.loaded({inert: LOAD}):
        before = gpu.slice_stats(inert)
        time.sleep(1)
        after = gpu.slice_stats(inert)
        gpu.tenant("nobody", weight=100, timeslice_us=1000)
        time.sleep(1)
        configured = gpu.slice_stats(inert)

    assert before.queued >= 8
    assert (after.items, after.run_ns) == (0, 0)
    assert configured.items > 1000
