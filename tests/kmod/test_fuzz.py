# SPDX-License-Identifier: Apache-2.0
"""A hostile VMM and guest (`vgpu-client fuzz`): they stop their own slice, and their neighbour does not notice."""

import pytest

from tests.rig.client import Client, client
from tests.rig.gpu import Gpu
from tests.rig.throughout import throughout

pytestmark = pytest.mark.emulated

# Two tenants of the same weight, of which one always has work: the largest share of the other, and the rounding error.
SHARE = 0.5
SHARE_SLACK = 0.02


def go_mad(gpu: Gpu, *, seconds: float, seed: int) -> None:
    for tenant in ("bad", "good"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    bad, good = gpu.slice("bad"), gpu.slice("good")
    # As many items as fit: the neighbour itself may have to wait for a processor.
    with gpu.loaded({good: {"op": "delay", "delay_us": 400, "depth": 1024}}) as outcomes, throughout(good) as items:
        window = gpu.window()
        mad = Client(["--json", bad, "fuzz", "--seconds", f"{seconds:g}", "--seed", str(seed)])
        outcome = mad.wait(timeout_s=seconds * 2 + 120)
        window.close()
    report = outcome.report("record", "fuzz")
    neighbour = outcomes[0].report("name", good)

    assert report["ok"]
    assert min(report[part] for part in ("accesses", "calls", "doorbells", "enables", "unmaps", "lives")) > 0
    assert gpu.slice_stats(bad).errors > 0
    assert (neighbour["error"], neighbour["mismatches"]) == (0, 0)
    assert neighbour["saturated"]
    assert window.share["good"] >= SHARE - SHARE_SLACK
    # This does not measure its part of all time, because it does not always get a processor here.
    assert min(items) > 0
    assert client(bad, "verify").status == 0


def test_a_client_gone_mad_harms_only_itself(gpu: Gpu) -> None:
    go_mad(gpu, seconds=3, seed=1)


@pytest.mark.long
def test_a_client_gone_mad_for_long_harms_only_itself(gpu: Gpu, fuzz_s: float) -> None:
    go_mad(gpu, seconds=fuzz_s, seed=3)
