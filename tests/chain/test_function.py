# SPDX-License-Identifier: Apache-2.0
"""The function in a real guest: its kernel reads and resets it; it is unplugged while in use and plugged in again."""

import base64
import os
import signal
import threading

from tests.chain.guests import BOOT_S, records
from tests.kmod.test_function import POWER_ON
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.guest import Guest, Guests

EXIT_DEVICE, EXIT_ERROR = 3, 5  # kmod/guest/tool/exit.h
WORK = "vgpu-exercise saturate --json --op delay --delay-us 500 --seconds 600"
NAPS = "vgpu-exercise saturate --json --op nop --nap-us 2000000 --seconds 600"
FIND = "cd $(dirname $(grep -l 0x5647 /sys/bus/pci/devices/*/device)); "
# Vendor and device, class, subsystem; the place of the MSI-X table; the PCI Express capabilities. The guest kernel may
# write the other bits, or the VMM may change them.
FIXED = [*range(0x04), *range(0x08, 0x0C), *range(0x2C, 0x30), 0x40, *range(0x44, 0x4C), 0x50, *range(0x54, 0x58)]


def printed(guest: Guest, name: str) -> str:
    return str(guest.wait_for(rf"^vgpu\.{name}=(\S*)\s", timeout_s=BOOT_S).group(1))


def test_a_guest_reads_the_function_and_resets_it(gpu: Gpu, guests: Guests) -> None:
    """A reset is reported to programs that work on the function, programs that open it meanwhile wait, and all go
    on."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    command = (
        f"{FIND} echo vgpu.config=$(base64 -w0 config); echo vgpu.methods=$(cat reset_method); "
        "echo vgpu.windows=$(ls /dev | grep -c compute); "
        "vgpu-guest verify --json; echo vgpu.fresh=$?; echo 1 >reset; vgpu-guest verify --json; echo vgpu.idle=$?; "
        f"{WORK} --progress-ms 100 >/tmp/work & until grep -q progress /tmp/work; do sleep 0.1; done; "
        "echo 1 >reset; wait $!; echo vgpu.work=$?; "
        f"{NAPS} --progress-ms 100 >/tmp/naps & until grep -q progress /tmp/naps; do sleep 0.1; done; "
        "echo 1 >reset; wait $!; echo vgpu.naps=$?; "
        "(until [ -e /tmp/enough ]; do vgpu-guest info >/dev/null || echo vgpu.refused=$?; done) & "
        "for i in 1 2 3 4 5; do echo 1 >reset; done; touch /tmp/enough; wait $!; "
        "echo vgpu.gone=$(dmesg | grep -c 'device is gone'); "
        "vgpu-guest verify --json; echo vgpu.busy=$?; echo vgpu.again=$(base64 -w0 config)"
    )
    guest = guests.start("guest-blue", slices=(uuid,), command=command)
    config = base64.b64decode(printed(guest, "config"))
    assert {at: config[at] for at in FIXED} == {at: POWER_ON[at] for at in FIXED}
    assert printed(guest, "methods") == "flr"
    assert printed(guest, "windows") == "0"
    assert printed(guest, "fresh") == "0"
    assert printed(guest, "idle") == "0"
    assert printed(guest, "work") == str(EXIT_ERROR)
    assert printed(guest, "naps") == str(EXIT_ERROR)
    assert printed(guest, "gone") == "0"
    assert printed(guest, "busy") == "0"
    assert "vgpu.refused" not in guest.console()
    assert base64.b64decode(printed(guest, "again")) == config
    assert gpu.slice_stats(uuid).dropped > 0
    assert gpu.slice_stats(uuid).errors == 0


def test_a_slice_pulled_out_of_a_guest_can_be_plugged_in_again(gpu: Gpu, guests: Guests) -> None:
    """A bare `remove` while QEMU is stopped: the rest of the host goes on, and the guest's users learn that the slice
    is gone.

    Then a slice with the same UUID works in the same guest as if nothing had happened.
    """
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    command = (
        f"{WORK} --depth 900; echo vgpu.lost=$?; echo vgpu.said=$(dmesg | grep -c 'vgpu_guest.*device is gone'); "
        "while [ -e /dev/vgpu0 ]; do sleep 0.1; done; echo vgpu.unplugged=1; "
        "until vgpu-guest verify --json; do sleep 0.5; done"
    )
    guest = guests.start("guest-blue", slices=(uuid,), command=command)
    guest.wait_for("^vgpu.up=", timeout_s=BOOT_S)
    gpu.wait_queued(uuid, least=800, timeout_s=BOOT_S)  # longer than the slice exists

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
