# SPDX-License-Identifier: Apache-2.0
"""What guests announce about their items, true or not: results stay right, and settings may change meanwhile."""

from typing import Any

import pytest

from tests.rig.client import Client, client
from tests.rig.gpu import Gpu, poll
from vgpumgr.errors import BusyError

FAIR: dict[str, Any] = {"weight": 100, "timeslice_us": 1000}
LATENCY: dict[str, Any] = {
    **FAIR,
    "band": "latency",
    "reserve_us": 3000,
    "reserve_period_us": 8000,
    "hold_max_us": 2000,
    "inversion_permille": 10,
}


def paced(*more: str, items: int = 60) -> tuple[str, ...]:
    return ("saturate", "--op", "mix", "--request", "3", "--gap-us", "100", "--items", str(items), *more)


@pytest.mark.parametrize("settings", [FAIR, LATENCY], ids=["fair", "latency"])
@pytest.mark.parametrize("claim", [(), ("--lie",), ("--end",)], ids=["truth", "lie", "end"])
def test_claims_change_no_result(gpu: Gpu, settings: dict[str, Any], claim: tuple[str, ...]) -> None:
    gpu.tenant("blue", **settings)
    gpu.tenant("green", **FAIR)
    blue, green = gpu.slice("blue"), gpu.slice("green")
    neighbour = Client(["--json", green, "saturate", "--op", "mix", "--items", "500", "--queued-min", "0"])
    try:
        report = client(blue, *paced(*claim)).report("record", "saturate")
        assert neighbour.wait().report("record", "saturate")["mismatches"] == 0
    finally:
        neighbour.kill()
    assert (report["items"], report["requests"], report["mismatches"]) == (60, 20, 0)
    assert (gpu.stats("blue").holds > 0) == (settings is LATENCY)
    # items beyond the load: one more for each announcement that was taken back
    assert gpu.slice_stats(blue).items == (80 if claim == ("--end",) else 60)


def test_settings_change_under_holds(gpu: Gpu) -> None:
    """A racing operator sets and clears reservation and hold while a guest holds and others work."""
    gpu.tenant("blue", **LATENCY)
    gpu.tenant("green", **FAIR)
    blue, green = gpu.slice("blue"), gpu.slice("green")
    load = Client(["--json", green, "saturate", "--op", "mix", "--items", "3000", "--queued-min", "0"])
    holds = Client(["--json", blue, *paced("--lie", items=100_000)])
    try:
        poll(lambda: gpu.stats("blue").holds > 0)
        for number in range(100):
            gpu.tenant("blue", band="fair")
            gpu.tenant("blue", **{**LATENCY, "hold_max_us": number, "reserve_us": 100 + number})
            gpu.tenant("blue", cap_us=5000 if number % 2 else 0, cap_period_us=10_000)
            with pytest.raises(BusyError):
                gpu.share_by("equal_share")
        assert load.wait().report("record", "saturate")["mismatches"] == 0
    finally:
        load.kill()
        holds.kill()
    gpu.tenant("blue", **LATENCY)
    assert client(blue, "verify").status == 0


def test_a_guest_that_ends_while_it_holds_leaves_nothing_behind(gpu: Gpu) -> None:
    """The slice is reset, removed or forgotten in the middle of a hold of one second."""
    settings = {**LATENCY, "reserve_us": 1_500_000, "reserve_period_us": 4_000_000, "hold_max_us": 1_000_000}
    for _ in range(5):
        gpu.tenant("blue", **settings)
        blue = gpu.slice("blue")
        holds = Client(["--json", blue, "saturate", "--request", "2", "--gap-us", "60000000", "--items", "2"])
        poll(lambda: gpu.stats("blue").holds > 0)
        holds.kill()
        gpu.sysfs.remove(blue)
        gpu.control.delete_tenant(gpu.address, "blue")
    gpu.tenant("green", **FAIR)
    assert client(gpu.slice("green"), "verify").status == 0
