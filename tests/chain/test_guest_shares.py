# SPDX-License-Identifier: Apache-2.0
"""The shares of real guests, from the kernel's counters and from the guests' own counts."""

import time

import pytest

from tests.chain.guests import BOOT_S, records
from tests.rig.figures import Record
from tests.rig.gpu import Gpu
from tests.rig.guest import Guest, Guests

WINDOW_S = 10
POINT = 0.01
WORK = "vgpu-exercise saturate --json --op delay --delay-us 500 --depth 900 --progress-ms 100 --seconds {seconds}"


def completed(guest: Guest) -> tuple[int, int]:
    """The number of items the guest has counted, and the time in ns of that count."""
    progress = records(guest, "progress")[-1]
    return progress["items"], progress["wall_ns"]


def rate(guest: Guest, first: tuple[int, int]) -> float:
    """Items a second since `first`, by the guest's own clock."""
    items, wall_ns = completed(guest)
    return (items - first[0]) * 1e9 / (wall_ns - first[1])


def test_two_guests_share_three_to_one_and_follow_a_change(gpu: Gpu, guests: Guests, figures: Record) -> None:
    gpu.tenant("blue", weight=300, timeslice_us=2000)
    gpu.tenant("green", weight=100, timeslice_us=2000)
    started = {}
    for tenant in ("blue", "green"):
        uuid = gpu.slice(tenant)
        command = WORK.format(seconds=600)
        started[tenant] = (uuid, guests.start(f"guest-{tenant}", slices=(uuid,), command=command))
    for uuid, guest in started.values():
        guest.wait_for(r'"record": "progress".*\n.*"record": "progress".*\n', timeout_s=BOOT_S)
        gpu.wait_queued(uuid)

    first = {tenant: completed(guest) for tenant, (_, guest) in started.items()}
    window = gpu.measured_over(WINDOW_S)
    rates = {tenant: rate(guest, first[tenant]) for tenant, (_, guest) in started.items()}
    share = rates["blue"] / sum(rates.values())
    figures("3:1, share of blue by counters", window.share["blue"], against=0.75, unit="of the engine")
    figures("3:1, share of blue by what the guests count", share, against=0.75, unit="of the items")
    assert window.share["blue"] == pytest.approx(0.75, abs=POINT)
    # The guests count over different periods, which are some tenths of a second apart.
    assert share == pytest.approx(0.75, abs=2 * POINT)

    gpu.tenant("green", weight=900)
    time.sleep(0.5)
    assert gpu.measured_over(WINDOW_S / 2).share["green"] == pytest.approx(0.75, abs=POINT)
