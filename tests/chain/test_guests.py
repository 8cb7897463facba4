# SPDX-License-Identifier: Apache-2.0
"""Slices inside real VMs: stock libvirt, stock QEMU, a stock kernel in the guest, our driver and tool in it."""

import errno
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import libvirt
import pytest

from tests.chain.guests import BOOT_S, NODE_DEVICE, records, virsh
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.guest import Guest, Guests
from tests.rig.traps import trapped
from vgpumgr.errors import BusyError

WORK = "echo vgpu.working=1; vgpu-exercise saturate --json --seconds 600 --op {items}"
TIME = "delay --delay-us 500"
MEMORY = "mix --queued-min 0"


def working(gpu: Gpu, guests: Guests, tenant: str, *, items: str = TIME) -> tuple[str, Guest]:
    """A guest that works on a slice of `tenant`, and keeps running if the work ends."""
    uuid = gpu.slice(tenant)
    guest = guests.start(f"guest-{tenant}", slices=(uuid,), command=WORK.format(items=items), keep=True)
    guest.wait_for("^vgpu.working=1", timeout_s=BOOT_S)
    gpu.wait_queued(uuid)
    return uuid, guest


def test_two_guests_compute_correctly_side_by_side(gpu: Gpu, guests: Guests) -> None:
    """Check every operation, size and placement in two guests at once, then mixed work; every result is checked."""
    command = (
        "vgpu-guest verify --json && vgpu-guest submit crc32c 4096 && vgpu-guest info --json && "
        "vgpu-exercise saturate --json --op mix --items 400 --queued-min 0"
    )
    started = []
    for tenant in ("blue", "green"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
        started.append(guests.start(f"guest-{tenant}", slices=(gpu.slice(tenant),), command=command))
    for guest in started:
        guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
        (summary,) = records(guest, "summary")
        assert (summary["failed"], summary["cases"] > 40) == (0, True)
        (info,) = records(guest, "info")
        assert (info["scheduled"], info["completed"] == info["fetched"]) == (True, True)
        (report,) = records(guest, "saturate")
        assert report["verified"] >= 400
        assert (report["mismatches"], report["error"]) == (0, 0)


def test_a_guest_rings_the_doorbell_once_for_a_batch(gpu: Gpu, guests: Guests) -> None:
    batch, batches = 32, 20
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    command = (
        f"vgpu-exercise saturate --op delay --delay-us 100 --batch {batch} --nap-us 1000 --items {batch * batches}"
    )
    guest = guests.start("guest-blue", slices=(uuid,), command=command)
    guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    stats = gpu.slice_stats(uuid)
    assert (stats.items, stats.doorbells) == (batch * batches, batches)


def test_nothing_but_the_doorbell_traps_while_a_guest_works(gpu: Gpu, guests: Guests) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid, _ = working(gpu, guests, "blue")
    before = gpu.slice_stats(uuid).doorbells
    with trapped() as traps:
        first = gpu.slice_stats(uuid).doorbells
        poll(lambda: gpu.slice_stats(uuid).doorbells >= first + 20)
        last = gpu.slice_stats(uuid).doorbells
    after = gpu.slice_stats(uuid).doorbells
    assert traps.reads == 0
    assert last - first <= traps.writes <= after - before


def test_a_guest_that_misbehaves_stops_alone(gpu: Gpu, guests: Guests) -> None:
    for tenant in ("blue", "green"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    good, _ = working(gpu, guests, "green")
    before = gpu.slice_stats(good)
    bad = guests.start(
        "guest-blue", slices=(gpu.slice("blue"),), command="vgpu-exercise hostile all --json; vgpu-guest verify --json"
    )
    bad.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)

    cases = records(bad, "hostile")
    assert len(cases) > 15
    assert all(case["ok"] for case in cases)
    after = gpu.slice_stats(good)
    assert (after.error, after.errors) == (0, 0)
    assert after.items > before.items


def test_a_killed_vm_monitor_frees_engine_memory_and_slice(gpu: Gpu, guests: Guests) -> None:
    """SIGKILL of QEMU while we read and write its memory; then the same slice works in another VM."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid, victim = working(gpu, guests, "blue", items=MEMORY)
    before = gpu.slice_stats(uuid).dma_bytes
    poll(lambda: gpu.slice_stats(uuid).dma_bytes > before)
    os.kill(victim.qemu_pid(), signal.SIGKILL)
    poll(lambda: not gpu.slice_stats(uuid).open)
    poll(lambda: gpu.measured_over(0.1).run_ns["blue"] == 0)
    assert gpu.measured_over(0.5).run_ns["blue"] == 0

    again = guests.start("guest-again", slices=(uuid,), command="vgpu-guest verify --json")
    again.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)


def test_the_module_does_not_unload_under_a_running_vm(gpu: Gpu, guests: Guests) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid, guest = working(gpu, guests, "blue")
    done = subprocess.run(["rmmod", "vgpumgr"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "in use" in done.stderr
    with pytest.raises(BusyError):
        gpu.control.set_slice(uuid, tenant="other")
    with pytest.raises(BusyError):
        gpu.control.delete_tenant(ADDRESS, "blue")
    before = gpu.slice_stats(uuid).items
    poll(lambda: gpu.slice_stats(uuid).items > before)
    assert guest.running()


@pytest.mark.parametrize(
    "unbind",
    [lambda gpu: gpu.sysfs.unbind(ADDRESS), lambda _: virsh("nodedev-detach", NODE_DEVICE)],
    ids=["sysfs", "libvirt"],
)
def test_unbinding_the_function_unplugs_the_slice_from_a_running_vm(
    gpu: Gpu, guests: Guests, unbind: Callable[[Gpu], object]
) -> None:
    """The VMM is asked to release it and does, and the VM goes on without the device."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    _, guest = working(gpu, guests, "blue")
    unbinder = threading.Thread(target=unbind, args=(gpu,))
    unbinder.start()
    unbinder.join(timeout=60)
    assert not unbinder.is_alive()
    assert gpu.control.gpus() == []
    gpu.sysfs.bind(ADDRESS)
    guest.wait_for("^vgpu.exit=", timeout_s=20)
    assert records(guest, "saturate")[0]["rc"] == errno.ENODEV
    assert guest.running()
    assert "mdev" not in guest.domain.XMLDesc()


def test_a_stopped_vm_monitor_does_not_delay_its_neighbour(gpu: Gpu, guests: Guests) -> None:
    """After SIGSTOP of QEMU its memory still answers, but its vCPU does not; the neighbour gets the engine time it
    leaves."""
    for tenant in ("blue", "green"):
        gpu.tenant(tenant, weight=100, timeslice_us=1000)
    _, stopped = working(gpu, guests, "blue")
    neighbour, _ = working(gpu, guests, "green")
    os.kill(stopped.qemu_pid(), signal.SIGSTOP)
    try:
        time.sleep(3)  # until its queue is empty
        window = gpu.measured_over(2)
        assert window.share["green"] > 0.99
        assert gpu.slice_stats(neighbour).error == 0
    finally:
        os.kill(stopped.qemu_pid(), signal.SIGCONT)


def test_without_a_permit_the_kernel_refuses_start_and_hot_plug(gpu: Gpu, guests: Guests) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    gpu.sysfs.write_gpu(ADDRESS, "attach", "permit")
    uuid = gpu.slice("blue")
    with pytest.raises(libvirt.libvirtError, match=r"(?i)not permitted|failed to get device"):
        guests.start("refused", slices=(uuid,), command="true")

    bare = guests.start("guest-bare", slices=(), command="sleep 1000", keep=True)
    bare.wait_for("^vgpu.up=", timeout_s=BOOT_S)
    with pytest.raises(libvirt.libvirtError):
        bare.attach(uuid)
    assert bare.running()
    assert not gpu.slice_stats(uuid).open

    gpu.sysfs.grant(uuid)
    bare.attach(uuid)
    assert gpu.slice_stats(uuid).open
    bare.destroy()
    poll(lambda: not gpu.slice_stats(uuid).open)
    # The permit was good for one opening.
    with pytest.raises(libvirt.libvirtError):
        guests.start("refused-again", slices=(uuid,), command="true")


def test_stock_tools_show_our_types_and_slices(gpu: Gpu, guests: Guests) -> None:
    """mdevctl and virsh, unmodified."""
    uuid = gpu.slice()
    types = subprocess.run(["mdevctl", "types"], capture_output=True, text=True, check=True).stdout
    assert ADDRESS in types
    assert "vgpumgr-mem16m" in types
    listed = subprocess.run(["mdevctl", "list"], capture_output=True, text=True, check=True).stdout
    assert uuid in listed
    assert NODE_DEVICE in virsh("nodedev-list", "--cap", "mdev_types")
    assert Path(f"/sys/bus/mdev/devices/{uuid}").exists()
