# SPDX-License-Identifier: Apache-2.0
"""Windows in a real guest: what kmod/uapi/vgpu_guest.h promises of /dev/vgpuN-compute, and how a window ends."""

import errno
import threading
from collections.abc import Iterator

import pytest

from tests.chain.guests import BOOT_S, records, virsh
from tests.chain.test_function import FIND, printed
from tests.rig.gpu import Gpu, poll
from tests.rig.guest import Guest, Guests
from tests.rig.window_executor import window_executor

# A process that opens a window, maps all of it and waits until the window is taken away; $! is its number.
HOLD = """
hold() {
    vgpu-exercise windows hold --json >/tmp/hold &
    until grep -q held /tmp/hold; do sleep 0.1; done
}
ended() {
    wait $!
    echo vgpu.$1=$?
    cat /tmp/hold
}
"""


@pytest.fixture
def leases(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.leasing():
        gpu.tenant("blue", weight=100, timeslice_us=100_000)
        yield gpu


def test_a_guest_keeps_what_its_header_promises(leases: Gpu, guests: Guests) -> None:
    """The test of waiting comes first: there the executor releases no window before a process waits for one."""
    uuid = leases.slice("blue")
    node = "/sys/class/vgpu_guest/vgpu0-compute"
    command = (
        f"echo vgpu.mode=$(stat -c %a /dev/vgpu0-compute) vgpu.size=$(cat {node}/size); "
        "vgpu-exercise windows patience --json; vgpu-exercise windows all --json; echo vgpu.all=$?; "
        f"until [ $(tr -s ' ' '\\n' <{node}/states | grep -c free) = 16 ]; do sleep 0.1; done; echo vgpu.free=16"
    )
    with window_executor(uuid) as executor:
        executor.lets_go.clear()
        guest = guests.start("guest-blue", slices=(uuid,), command=command)
        guest.wait_for(r"^vgpu\.mode=666 vgpu\.size=4194304\s", timeout_s=BOOT_S)
        guest.wait_for('"record": "waiting"', timeout_s=BOOT_S)
        executor.lets_go.set()
        printed(guest, "all")
        found = {case["case"]: case.get("message", "") for case in records(guest, "windows")}
        assert {name: why for name, why in found.items() if why} == {}
        assert found.keys() >= {"patience", "memory", "four", "full", "mappings", "waiting", "rung", "lost"}
        guest.wait_for(r"^vgpu\.free=16\s", timeout_s=BOOT_S)
        guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
        assert executor.rings >= 600


def user_pages(guest: Guest, start: int) -> list[str]:
    """The pages of BAR2 that the running process has mapped, with the flags in the letters of QEMU's monitor."""
    lines = (
        line.replace(":", "").split()
        for line in virsh("qemu-monitor-command", guest.name, "--hmp", "info tlb").splitlines()
    )
    return [
        line[2]
        for line in lines
        if len(line) == 3 and "U" in line[2] and start <= int(line[1], 16) < start + (64 << 20)
    ]


def test_a_window_ends_with_a_reset_the_driver_and_the_device(leases: Gpu, guests: Guests) -> None:
    """Waiting processes are notified, memory is out of reach, nothing holds the driver, and others get windows
    afterwards.

    Meanwhile a window is mapped as cached memory, and not in the way that the firmware sets up for BAR2.
    """
    uuid = leases.slice("blue")
    command = (
        f"{HOLD}{FIND} address=$(basename $PWD); "
        "hold; echo 1 >reset; ended reset; vgpu-exercise windows memory; echo vgpu.after_reset=$?; "
        "hold; echo $address >driver/unbind; ended unbind; "
        "echo vgpu.nodes=$(ls /dev | grep -c vgpu); rmmod vgpu_guest; echo vgpu.rmmod=$?; "
        "insmod /vgpu_guest.ko; vgpu-exercise windows memory; echo vgpu.after_unbind=$?; "
        "hold; echo vgpu.holding=$(sed -n 3p resource | cut -d' ' -f1); ended removal"
    )
    with window_executor(uuid):
        guest = guests.start("guest-blue", slices=(uuid,), command=command, keep=True)
        for name in ("reset", "after_reset", "unbind", "nodes", "rmmod", "after_unbind"):
            assert printed(guest, name) == "0", name
        start = int(printed(guest, "holding"), 16)
        pages: list[str] = []

        def mapped() -> bool:
            pages[:] = user_pages(guest, start)
            return len(pages) == 1024

        poll(mapped)
        assert [flags for flags in pages if "C" in flags or "T" in flags] == []
        remover = threading.Thread(target=leases.sysfs.remove, args=(uuid,), daemon=True)
        remover.start()
        assert printed(guest, "removal") == "0"
        remover.join(timeout=120)
        assert not remover.is_alive()
    guest.wait_for("^vgpu.exit=", timeout_s=BOOT_S)
    assert [one["value"] for one in records(guest, "taken")] == [errno.EPIPE, errno.ENODEV, errno.ENODEV]
    assert [one["ok"] for one in records(guest, "windows")] == [True] * 3
    poll(lambda: leases.slices() == {})
