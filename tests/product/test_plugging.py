# SPDX-License-Identifier: Apache-2.0
"""Slices that are plugged into and out of a running guest, and the cleanup after a busy guest's QEMU is killed."""

import os
import signal
from collections.abc import Callable

import libvirt
import pytest

from tests.product import hook
from tests.product.host import CLASS, Host, new_uuid
from tests.rig.figures import Record
from tests.rig.guest import Guest, Guests
from tests.rig.product import eventually
from tests.rig.window import Window

BOOT_S = 300
# Guest script: work on each slice that appears, check every operation first, and stop when its file is gone.
COMMAND = """
echo vgpu.ready=1
while :; do
    until vgpu-guest info >/dev/null 2>&1; do sleep 0.2; done
    vgpu-guest verify --json >/dev/null && echo vgpu.verified=1
    [ -e /tmp/second ] || { : >/tmp/second; while vgpu-guest info >/dev/null 2>&1; do sleep 0.2; done; continue; }
    vgpu-exercise saturate --json --op delay --delay-us 500 --seconds 3600
done
"""


@pytest.fixture
def running(host: Host, guests: Guests) -> Guest:
    """A guest that was started without a slice."""
    guest = guests.define("plugged", vm_uuid=new_uuid(), command=COMMAND)
    guest.start()
    guest.wait_for("^vgpu.ready=1", timeout_s=BOOT_S)
    assert host.devices() == set()
    return guest


def test_slices_of_a_running_vm(host: Host, running: Guest, figures: Record) -> None:
    refused_by_the_kernel(host, running)
    host.api.tenant("blue", share_permille=500)
    host.api.tenant("green", share_permille=500)
    slice_id = host.claim("blue", share_permille=250, vm_uuid=running.vm_uuid)
    attached_and_detached(host, running, slice_id)
    killed_at_work(host, running, slice_id, figures)


def refused_by_the_kernel(host: Host, running: Guest) -> None:
    """libvirt asks no hook before it plugs a device, so the kernel refuses a device without a permit."""
    stray = new_uuid()
    host.gpu.sysfs.create(host.gpu.address, f"vgpumgr-{CLASS}", stray)
    with pytest.raises(libvirt.libvirtError, match="Operation not permitted"):
        running.attach(stray)
    assert not host.is_open(stray)
    assert running.running()
    host.gpu.sysfs.remove(stray)


def attached_and_detached(host: Host, running: Guest, slice_id: str) -> None:
    host.product.text("attach", slice_id, "--domain", running.name)
    running.wait_for("^vgpu.verified=1", timeout_s=BOOT_S)
    assert host.is_open(slice_id)
    assert slice_id in running.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    host.product.text("detach", slice_id, "--domain", running.name, "--wait", "60")
    eventually(host.empty, what="what was plugged is gone")
    assert running.running()
    assert slice_id not in running.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)
    host.wait_claimed(slice_id)


def killed_at_work(host: Host, running: Guest, slice_id: str, figures: Record) -> None:
    """After SIGKILL of QEMU its neighbour has the engine alone at once; the VM starts again with its slice."""
    host.product.text("attach", slice_id, "--domain", running.name)
    neighbour_vm = new_uuid()
    neighbour = host.claim("green", share_permille=250, vm_uuid=neighbour_vm)
    assert hook.ask("prepare", neighbour, vm_uuid=neighbour_vm)["ok"]
    running.wait_for("(?s)(^vgpu.verified=1.*){2}", timeout_s=BOOT_S)  # what it queues from here on counts as its work
    host.gpu.wait_queued(slice_id)
    # deep enough to last while its program waits for the processor for a tenth of a second
    with host.gpu.loaded({neighbour: {"op": "delay", "delay_us": 500, "depth": 250}}):
        both = second_in_which(host, lambda window: window.share["blue"] > 0.25, what="the guest works")
        os.kill(running.qemu_pid(), signal.SIGKILL)
        eventually(lambda: slice_id not in host.devices(), what="the killed VM's device is gone")
        before, used_ns = both.share_of_wall["green"], host.gpu.stats("blue").run_ns
        # skip a second in which the program itself did not get the processor
        alone = second_in_which(
            host, lambda window: window.share_of_wall["green"] > before, what="its time is passed on"
        )
    figures("share of a neighbour of equal weight", both.share["green"], against=0.5, unit="of the used engine")
    of_wall = alone.share_of_wall["green"]
    figures("its time once the other's QEMU was killed", of_wall, against=before, unit="of all time, before")
    assert host.gpu.stats("blue").run_ns == used_ns
    assert host.memory_reserved() == 16 << 20
    assert host.records() == {neighbour}

    eventually(lambda: not running.running(), what="libvirt has noticed")
    assert host.api.slice(slice_id) is not None
    running.start(paused=True)
    assert host.is_open(slice_id)


def second_in_which(host: Host, holds: Callable[[Window], bool], *, what: str) -> Window:
    """Return the first of the following seconds for which a condition holds; raises TimeoutError."""
    seconds: list[Window] = []

    def seen() -> bool:
        seconds.append(host.gpu.measured_over(1))
        return holds(seconds[-1])

    eventually(seen, what=what)
    return seconds[-1]
