# SPDX-License-Identifier: Apache-2.0
"""A VM with a slice at work is paused, saved and restored; the work goes on and every result is right."""

from pathlib import Path

import pytest

from tests.chain.guests import BOOT_S, records
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.guest import Guests

pytestmark = pytest.mark.long

WORK = "vgpu-guest saturate --json --op mix --progress-ms 500 --queued-min 0 --seconds 30 && vgpu-guest verify --json"
PROGRESS = r'"record": "progress".*\n.*"record": "progress".*\n'


def test_a_vm_is_paused_saved_and_restored_in_the_middle_of_its_work(gpu: Gpu, guests: Guests) -> None:
    """The slice is removed and created again in between, as after a reboot of the host."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest = guests.start("guest-blue", slices=(uuid,), command=WORK, migratable=True)
    guest.wait_for(PROGRESS, timeout_s=BOOT_S)

    guest.domain.suspend()
    assert gpu.measured_over(0.5).run_ns["blue"] == 0
    guest.domain.resume()
    poll(lambda: gpu.measured_over(0.5).run_ns["blue"] > 0)

    image = Path("/var/lib/libvirt/qemu/save/guest-blue.image")
    image.parent.mkdir(parents=True, exist_ok=True)
    guest.save(image)
    assert not guest.running()
    poll(lambda: not gpu.slice_stats(uuid).open)
    assert gpu.slice_stats(uuid).items > 0
    gpu.sysfs.remove(uuid)
    gpu.sysfs.create(ADDRESS, "vgpumgr-mem16m", uuid)
    gpu.control.set_slice(uuid, tenant="blue")

    guest.restore(image)
    guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    (report,) = records(guest, "saturate")
    assert (report["mismatches"], report["error"]) == (0, 0)
    assert report["verified"] > 0
    assert gpu.slice_stats(uuid).items > 0
