# SPDX-License-Identifier: Apache-2.0
"""A VM with a slice at work moves to another libvirt and another GPU of this lab host, and its work goes on there."""

import threading
import uuid as uuids
from collections.abc import Iterator

import libvirt
import pytest

from tests.chain.guests import BOOT_S, kernel_log, records
from tests.rig.gpu import Gpu, poll
from tests.rig.guest import Guest, Guests
from tests.rig.second_libvirt import second_libvirt

pytestmark = pytest.mark.long

SECOND = "0000:00:00.0"  # the soft engine runs on any function; nobody drives the host bridge
MIX = "vgpu-guest saturate --json --op mix --progress-ms 500 --queued-min 0 --seconds 5"
DELAYS = "vgpu-guest saturate --json --op delay --delay-us 500 --depth 900 --progress-ms 500 --seconds 600"
PROGRESS = r'"record": "progress".*\n.*"record": "progress".*\n'
POINT = 0.01
WINDOW_S = 5


@pytest.fixture
def second_gpu(gpu: Gpu) -> Iterator[Gpu]:
    gpu.sysfs.bind(SECOND)
    second = Gpu(gpu.control, gpu.sysfs, SECOND)
    yield second
    second.clear()
    gpu.sysfs.unbind(SECOND)


@pytest.fixture
def there(guests: Guests, second_gpu: Gpu) -> Iterator[libvirt.virConnect]:
    with second_libvirt() as connection:
        yield connection
    poll(lambda: not any(one.open for one in second_gpu.slices().values()))


def goes_on(gpu: Gpu, uuid: str, guest: Guest) -> None:
    """Where it was."""
    assert guest.running()
    items = gpu.slice_stats(uuid).items
    poll(lambda: gpu.slice_stats(uuid).items > items)


def give_up(gpu: Gpu, uuid: str, guest: Guest, there: libvirt.virConnect, slices: dict[str, str]) -> None:
    """Move it so slowly that it works all the time, then cancel that."""
    failures: list[libvirt.libvirtError] = []

    def move() -> None:
        try:
            guest.move(there, slices=slices, never=True)
        except libvirt.libvirtError as error:
            failures.append(error)

    mover = threading.Thread(target=move)
    mover.start()
    poll(lambda: guest.domain.jobStats().get("memory_processed", 0) > 1 << 20, timeout_s=120)
    goes_on(gpu, uuid, guest)
    guest.domain.abortJob()
    mover.join(timeout=120)
    assert not mover.is_alive()
    assert failures[0].get_error_code() == libvirt.VIR_ERR_OPERATION_ABORTED


def test_a_vm_moves_in_the_middle_of_its_work(
    gpu: Gpu, second_gpu: Gpu, guests: Guests, there: libvirt.virConnect
) -> None:
    """After it was refused, and after it was given up, it goes on where it was.

    Each host charges what ran there, and every item ran on one of them, once.
    """
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    second_gpu.tenant("azure", weight=300, timeslice_us=1000)
    uuid, other = gpu.slice("blue"), second_gpu.slice("azure")
    command = f"until [ -e /dev/vgpu1 ]; do {MIX} || exit 1; done"  # until it is given another slice
    guest = guests.start("guest-blue", slices=(uuid,), command=command, migratable=True)
    guest.wait_for(PROGRESS, timeout_s=BOOT_S)

    nobodys = str(uuids.uuid4())
    with pytest.raises(libvirt.libvirtError, match=f"mediated device '{nobodys}' not found"):
        guest.move(there, slices={uuid: nobodys})
    goes_on(gpu, uuid, guest)

    with pytest.raises(libvirt.libvirtError) as refused:
        guest.move(there, slices={uuid: second_gpu.slice("azure", memory="mem64m")})
    assert "restoring refused: memory_bytes" in kernel_log(), refused.value
    goes_on(gpu, uuid, guest)

    give_up(gpu, uuid, guest, there, {uuid: other})
    goes_on(gpu, uuid, guest)
    assert second_gpu.stats("azure").run_ns == 0

    moved = guest.move(there, slices={uuid: other})
    assert not guest.running()
    poll(lambda: not gpu.slice_stats(uuid).open)
    here_ns, here = gpu.stats("blue").run_ns, gpu.slice_stats(uuid)
    assert 0 < here_ns == here.run_ns
    poll(lambda: second_gpu.slice_stats(other).items > 0)
    moved.attach(second_gpu.slice("azure"))
    moved.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    reports = records(moved, "saturate")
    assert {(report["mismatches"], report["error"]) for report in reports} == {(0, 0)}
    submitted = sum(report["submitted"] for report in reports)
    assert submitted == here.items + second_gpu.slice_stats(other).items
    assert second_gpu.stats("azure").run_ns == second_gpu.slice_stats(other).run_ns > 0
    assert gpu.stats("blue").run_ns == here_ns


def test_a_vm_shares_each_gpu_as_that_host_says(
    gpu: Gpu, second_gpu: Gpu, guests: Guests, there: libvirt.virConnect
) -> None:
    """Before, after a move that was refused, and on the other host, against somebody else's work on each."""
    uuids = {}
    for one, tenant, weight in ((gpu, "blue", 300), (second_gpu, "azure", 100)):
        one.tenant(tenant, weight=weight, timeslice_us=2000)
        one.tenant("red", weight=100 if one is gpu else 300, timeslice_us=2000)
        uuids[tenant] = one.slice(tenant)
    guest = guests.start("guest-blue", slices=(uuids["blue"],), command=DELAYS, migratable=True)
    guest.wait_for(PROGRESS, timeout_s=BOOT_S)
    with gpu.loaded({gpu.slice("red"): {"op": "delay", "delay_us": 500}}):
        assert gpu.measured_over(WINDOW_S).share["blue"] == pytest.approx(0.75, abs=POINT)
        with pytest.raises(libvirt.libvirtError):
            guest.move(there, slices={uuids["blue"]: second_gpu.slice("azure", memory="mem64m")})
        gpu.wait_queued(uuids["blue"])
        assert gpu.measured_over(WINDOW_S).share["blue"] == pytest.approx(0.75, abs=POINT)

    with second_gpu.loaded({second_gpu.slice("red"): {"op": "delay", "delay_us": 500}}):
        guest.move(there, slices={uuids["blue"]: uuids["azure"]})
        second_gpu.wait_queued(uuids["azure"])
        assert second_gpu.measured_over(WINDOW_S).share["azure"] == pytest.approx(0.25, abs=POINT)
