# SPDX-License-Identifier: Apache-2.0
"""The function is pulled out under a real guest and plugged in again."""

import os
import signal
import threading

from tests.chain.guests import BOOT_S, records
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.guest import Guest, Guests

EXIT_DEVICE = 3  # kmod/guest/tool/exit.h
WORK = "vgpu-guest saturate --json --op delay --delay-us 500 --seconds 600"


def printed(guest: Guest, name: str) -> str:
    return str(guest.wait_for(rf"^vgpu\.{name}=(\S*)\s", timeout_s=BOOT_S).group(1))


def test_a_slice_pulled_out_of_a_guest_can_be_plugged_in_again(gpu: Gpu, guests: Guests) -> None:
    """A bare `remove`, while QEMU does not even run: the rest of the host goes on, the guest's users learn it is gone.

    Then the same UUID in the same guest, which works as if nothing had been.
    """
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    command = (
        f"{WORK}; echo vgpu.lost=$?; echo vgpu.said=$(dmesg | grep -c 'vgpu_guest.*device is gone'); "
        "while [ -e /dev/vgpu0 ]; do sleep 0.1; done; echo vgpu.unplugged=1; "
        "until vgpu-guest verify --json; do sleep 0.5; done"
    )
    guest = guests.start("guest-blue", slices=(uuid,), command=command)
    guest.wait_for("^vgpu.up=", timeout_s=BOOT_S)
    gpu.wait_queued(uuid, timeout_s=BOOT_S)

    os.kill(guest.qemu_pid(), signal.SIGSTOP)
    try:
        remover = threading.Thread(target=gpu.sysfs.remove, args=(uuid,), daemon=True)
        remover.start()
        poll(lambda: gpu.slice_stats(uuid).dropped > 0)
        assert gpu.slice_stats(uuid).queued == 0
        gpu.sysfs.remove(gpu.slice("blue"))
        assert remover.is_alive()
    finally:
        os.kill(guest.qemu_pid(), signal.SIGCONT)
    remover.join(timeout=120)
    assert not remover.is_alive()
    assert gpu.slices() == {}
    assert printed(guest, "lost") == str(EXIT_DEVICE)
    assert printed(guest, "said") == "1"
    printed(guest, "unplugged")
    assert "mdev" not in guest.domain.XMLDesc()

    gpu.sysfs.create(ADDRESS, "vgpumgr-mem16m", uuid)
    gpu.control.set_slice(uuid, tenant="blue")
    guest.attach(uuid)
    guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    assert records(guest, "summary")[-1]["failed"] == 0
