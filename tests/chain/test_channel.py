# SPDX-License-Identifier: Apache-2.0
"""A real guest and a process of its host: bytes through the guest driver, and work that the process executes."""

from collections.abc import Iterator

import pytest

from tests.chain.guests import BOOT_S, records
from tests.rig.executor import program
from tests.rig.gpu import Gpu
from tests.rig.guest import Guests


@pytest.fixture
def grants(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.lending(max_chunk_us=10_000_000):
        yield gpu


def test_a_guest_and_its_executor_exchange_bytes_and_work(grants: Gpu, guests: Guests) -> None:
    """Twice: the guest's second opening of the device gets an executor of its own."""
    grants.tenant("blue", weight=100, timeslice_us=1000)
    uuid = grants.slice("blue")
    guest = guests.start(
        "guest-blue",
        slices=(uuid,),
        command="vgpu-guest channel 300000 --json; echo vgpu.first=$?; vgpu-guest channel 1 --json",
    )
    with program(uuid, "sum") as first:
        guest.wait_for(r"^vgpu\.first=0\s", timeout_s=BOOT_S)
        assert first.process.wait(timeout=60) == 0
    with program(uuid, "sum"):
        guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    assert [(one["received"], one["launch_result"]) for one in records(guest, "channel")] == [(300000, 1023), (1, 1023)]
