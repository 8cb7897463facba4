# SPDX-License-Identifier: Apache-2.0
"""A VM whose slice is at work moves live, over the network, to another host with its own kernel."""

import threading
import uuid as uuids
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields

import libvirt
import pytest

from tests.chain.guests import BOOT_S, records
from tests.neighbours.conftest import set_wire
from tests.neighbours.far_side import ADDRESS, FarSide
from tests.rig.gpu import Gpu, poll
from tests.rig.guest import Guest, Guests

MIX = "vgpu-exercise saturate --json --op mix --progress-ms 500 --queued-min 0 --seconds 5"
DELAYS = "vgpu-exercise saturate --json --op delay --delay-us 500 --depth 900 --progress-ms 500 --seconds 600"
PROGRESS = r'"record": "progress".*\n.*"record": "progress".*\n'
POINT = 0.01
WINDOW_S = 5


@dataclass(kw_only=True)
class FarGuest(Guest):
    """A VM that has moved to the other host and prints its output there."""

    far: FarSide

    def console(self) -> str:
        return self.before + self.far.console(self.console_path.stem)


def at_work(gpu: Gpu, far: FarSide, guests: Guests) -> tuple[str, str, Guest]:
    """A VM here whose slice works without end, and a slice for it at the other host. Yields the slice here, the slice
    there, and the VM."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    far.tenant("azure", weight=100, timeslice_us=1000)
    uuid, other = gpu.slice("blue"), far.slice("azure")
    guest = guests.start("guest-blue", slices=(uuid,), command=DELAYS, migratable=True)
    guest.wait_for(PROGRESS, timeout_s=BOOT_S)
    return uuid, other, guest


def moved(guest: Guest, there: libvirt.virConnect, far: FarSide, slices: Mapping[str, str]) -> FarGuest:
    arrived = guest.move(there, slices=slices, address=ADDRESS)
    return FarGuest(**{field.name: getattr(arrived, field.name) for field in fields(arrived)}, far=far)


def goes_on(gpu: Gpu, uuid: str, guest: Guest) -> None:
    """Check that the VM is still where it was."""
    assert guest.running()
    poll(lambda: gpu.slice_stats(uuid).open)
    items = gpu.slice_stats(uuid).items
    poll(lambda: gpu.slice_stats(uuid).items > items, timeout_s=60)


@contextmanager
def on_its_way(
    guest: Guest, there: libvirt.virConnect, slices: Mapping[str, str]
) -> Iterator[list[libvirt.libvirtError]]:
    """A move that lasts for ever unless the body ends it; yields its error, afterwards."""
    failures: list[libvirt.libvirtError] = []

    def move() -> None:
        try:
            guest.move(there, slices=slices, address=ADDRESS, never=True)
        except libvirt.libvirtError as error:
            failures.append(error)

    mover = threading.Thread(target=move)
    mover.start()
    poll(lambda: guest.domain.jobStats().get("memory_processed", 0) > 1 << 20, timeout_s=120)
    yield failures
    mover.join(timeout=120)
    assert not mover.is_alive()


def test_work_goes_on_at_another_host(gpu: Gpu, far: FarSide, guests: Guests, there: libvirt.virConnect) -> None:
    """It moves after a refused move. Each host charges its part; every item ran once, on one of them, with its
    result."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    far.tenant("azure", weight=300, timeslice_us=1000)
    uuid, other = gpu.slice("blue"), far.slice("azure")
    command = f"until [ -e /dev/vgpu1 ]; do {MIX} || exit 1; done"  # until it gets another slice
    guest = guests.start("guest-blue", slices=(uuid,), command=command, migratable=True)
    guest.wait_for(PROGRESS, timeout_s=BOOT_S)

    nobodys = str(uuids.uuid4())
    with pytest.raises(libvirt.libvirtError, match=f"mediated device '{nobodys}' not found"):
        guest.move(there, slices={uuid: nobodys}, address=ADDRESS)
    for why, unfit in (("memory_bytes", far.slice("azure", memory="mem64m")), ("no tenant", far.slice())):
        before = far.kernel_log()
        with pytest.raises(libvirt.libvirtError):
            guest.move(there, slices={uuid: unfit}, address=ADDRESS)
        assert f"restore refused: {why}" in far.kernel_log().removeprefix(before)
        goes_on(gpu, uuid, guest)

    arrived = moved(guest, there, far, {uuid: other})
    assert not guest.running()
    poll(lambda: not gpu.slice_stats(uuid).open)
    here_ns, here = gpu.stats("blue").run_ns, gpu.slice_stats(uuid)
    assert 0 < here_ns == here.run_ns
    poll(lambda: far.slice_stats(other).items > 0, timeout_s=60)
    arrived.attach(far.slice("azure"))
    arrived.wait_for(r"^vgpu.exit=0\s", timeout_s=BOOT_S)
    reports = records(arrived, "saturate")
    assert {(report["mismatches"], report["error"]) for report in reports} == {(0, 0)}
    submitted = sum(report["submitted"] for report in reports)
    assert submitted == here.items + far.slice_stats(other).items
    assert far.stats("azure").run_ns == far.slice_stats(other).run_ns > 0
    assert gpu.stats("blue").run_ns == here_ns


def test_each_host_enforces_its_own_share(gpu: Gpu, far: FarSide, guests: Guests, there: libvirt.virConnect) -> None:
    """Its share is checked before, after a refused move, and at the other host, beside other tenants' work on each
    host."""
    gpu.tenant("blue", weight=300, timeslice_us=2000)
    gpu.tenant("red", weight=100, timeslice_us=2000)
    far.tenant("azure", weight=100, timeslice_us=2000)
    far.tenant("red", weight=300, timeslice_us=2000)
    uuid, other = gpu.slice("blue"), far.slice("azure")
    guest = guests.start("guest-blue", slices=(uuid,), command=DELAYS, migratable=True)
    guest.wait_for(PROGRESS, timeout_s=BOOT_S)
    with gpu.loaded({gpu.slice("red"): {"op": "delay", "delay_us": 500}}):
        assert gpu.measured_over(WINDOW_S).share["blue"] == pytest.approx(0.75, abs=POINT)
        with pytest.raises(libvirt.libvirtError):
            guest.move(there, slices={uuid: far.slice("azure", memory="mem64m")}, address=ADDRESS)
        gpu.wait_queued(uuid)
        assert gpu.measured_over(WINDOW_S).share["blue"] == pytest.approx(0.75, abs=POINT)

    far.load({far.slice("red"): {"op": "delay", "delay_us": 500}})
    moved(guest, there, far, {uuid: other})
    poll(lambda: far.slice_stats(other).queued >= 8, timeout_s=60)
    assert far.share_over(WINDOW_S, "azure") == pytest.approx(0.25, abs=POINT)


def test_a_move_whose_other_end_dies_leaves_the_vm_where_it_was(
    gpu: Gpu, far: FarSide, guests: Guests, there: libvirt.virConnect
) -> None:
    """The VM there is killed in the middle; then the same VM moves normally."""
    uuid, other, guest = at_work(gpu, far, guests)
    with on_its_way(guest, there, {uuid: other}) as failures:
        far.kill_vmm(guest.name)
    assert failures
    goes_on(gpu, uuid, guest)
    poll(lambda: not far.slice_stats(other).open)
    assert far.slice_stats(other).items == 0

    moved(guest, there, far, {uuid: other})
    poll(lambda: far.slice_stats(other).items > 0, timeout_s=60)
    assert not guest.running()


def test_a_move_whose_wire_is_cut_can_be_given_up(
    gpu: Gpu, far: FarSide, guests: Guests, there: libvirt.virConnect, wire: None
) -> None:
    uuid, other, guest = at_work(gpu, far, guests)
    with on_its_way(guest, there, {uuid: other}) as failures:
        set_wire("down")
        guest.domain.abortJob()
        goes_on(gpu, uuid, guest)
        set_wire("up")
    assert failures[0].get_error_code() == libvirt.VIR_ERR_OPERATION_ABORTED
    goes_on(gpu, uuid, guest)
    poll(lambda: not there.listAllDomains(), timeout_s=60)
    assert not far.slice_stats(other).open
    assert far.slice_stats(other).items == 0
