# SPDX-License-Identifier: Apache-2.0
"""A VM with a slice at work is paused, saved and restored; the work goes on and every result is right."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import libvirt
import pytest

from tests.chain.guests import BOOT_S, records
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.guest import Guest, Guests
from tests.rig.kernel import kernel_log
from tests.rig.migration import Header

pytestmark = pytest.mark.long

WORK = (
    "vgpu-exercise saturate --json --op mix --progress-ms 500 --queued-min 0 --seconds 30 && vgpu-guest verify --json"
)
PROGRESS = r'"record": "progress".*\n.*"record": "progress".*\n'
IMAGE = Path("/var/lib/libvirt/qemu/save/guest-blue.image")
QEMU_LOG = Path("/var/log/libvirt/qemu/guest-blue.log")
VERSION_AT, MEMORY_AT = 8, Header.BYTES + 1000


def save(gpu: Gpu, uuid: str, guest: Guest) -> None:
    """Save the VM, then remove and recreate the slice, as a reboot of the host would. The new slice has no tenant."""
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    guest.save(IMAGE)
    assert not guest.running()
    poll(lambda: not gpu.slice_stats(uuid).open)
    assert gpu.slice_stats(uuid).items > 0
    gpu.sysfs.remove(uuid)
    gpu.sysfs.create(ADDRESS, "vgpumgr-mem16m", uuid)


@contextmanager
def changed(at: int) -> Iterator[None]:
    """Change one byte of the image, counted from the beginning of the slice's part, while the body runs."""
    content = IMAGE.read_bytes()
    start = content.index(b"VGPUMIG1")
    assert start == content.rindex(b"VGPUMIG1")
    with IMAGE.open("r+b") as image:
        image.seek(start + at)
        image.write(bytes([content[start + at] ^ 3]))  # version 1 becomes 2
    yield
    IMAGE.write_bytes(content)


def refused(gpu: Gpu, uuid: str, guest: Guest, *, why: str) -> str:
    """The error of libvirt and QEMU. The kernel's log has the reason, and there is no VM."""
    before, logged = kernel_log(), len(QEMU_LOG.read_text())
    with pytest.raises(libvirt.libvirtError) as error:
        guest.restore(IMAGE)
    assert f"restore refused: {why}\n" in kernel_log().removeprefix(before), error.value
    assert not guest.running()
    poll(lambda: not gpu.slice_stats(uuid).open)
    assert gpu.slice_stats(uuid).items == 0
    return f"{error.value}\n{QEMU_LOG.read_text()[logged:]}"


def test_a_vm_is_paused_saved_and_restored_in_the_middle_of_its_work(gpu: Gpu, guests: Guests) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest = guests.start("guest-blue", slices=(uuid,), command=WORK, migratable=True)
    guest.wait_for(PROGRESS, timeout_s=BOOT_S)

    guest.domain.suspend()
    assert gpu.measured_over(0.5).run_ns["blue"] == 0
    guest.domain.resume()
    poll(lambda: gpu.measured_over(0.5).run_ns["blue"] > 0)

    save(gpu, uuid, guest)
    gpu.control.set_slice(uuid, tenant="blue")
    guest.restore(IMAGE)
    guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    (report,) = records(guest, "saturate")
    assert (report["mismatches"], report["error"]) == (0, 0)
    assert report["verified"] > 0
    assert gpu.slice_stats(uuid).items > 0


def test_what_cannot_be_restored_is_no_vm_at_all(gpu: Gpu, guests: Guests) -> None:
    """An image is refused without a tenant, from another version, or damaged; it is restored once nothing is wrong."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest = guests.start("guest-blue", slices=(uuid,), command=WORK, migratable=True)
    guest.wait_for(PROGRESS, timeout_s=BOOT_S)
    save(gpu, uuid, guest)

    assert "Operation not permitted" in refused(gpu, uuid, guest, why="no tenant")
    gpu.control.set_slice(uuid, tenant="blue")
    with changed(VERSION_AT):
        assert "Protocol not supported" in refused(gpu, uuid, guest, why="version")
    with changed(MEMORY_AT):
        assert "Invalid argument" in refused(gpu, uuid, guest, why="damaged")
    guest.restore(IMAGE)
    guest.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
