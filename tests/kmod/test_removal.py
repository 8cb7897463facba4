# SPDX-License-Identifier: Apache-2.0
"""A slice is removed while a VMM has it open: its user sees a function that was unplugged, and nobody else notices."""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.rig.client import Client, client
from tests.rig.faults import faulting
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.ring import (
    AREA_BYTES,
    AREA_IOVA,
    DOORBELL,
    DST_DEVICE,
    NOSPLIT,
    REG_ERROR,
    REG_STATUS,
    RINGS_IOVA,
    Guest,
    copy,
    delay,
    enable_unused,
    fill,
)
from tests.rig.vfio import BAR0, CONFIG, MSIX, REQUEST, Device, dma_timeout, eventfd, opened, taken

REG_ID, MSIX_TABLE = 0x00, 0x2000
CONFIG_BYTES = 256
LOAD = ["saturate", "--op", "delay", "--delay-us", "200", "--seconds", "60"]
EXIT_DEVICE = 3  # kmod/guest/tool/exit.h


def started(act: Callable[[], None]) -> threading.Thread:
    """Run a call that waits until another process lets go."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread) -> None:
    thread.join(timeout=30)
    assert not thread.is_alive()


def worker_state(uuid: str) -> str:
    """The names, as in ps(1), of the threads that work for a slice with a ring."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            name = (process / "comm").read_text().strip()
            if name.startswith("vgpu-") and f"vgpu-{uuid}".startswith(name):
                return (process / "stat").read_text().rpartition(")")[2].split()[0]
    raise LookupError(uuid)


def pulled_out(device: Device) -> bool:
    return device.register(REG_ID) == 0xFFFF_FFFF


def test_a_removed_slice_looks_as_if_it_was_pulled_out(gpu: Gpu) -> None:
    """All ones, no effect of any write, one interrupt to the guest and a request to the VMM; then the UUID is free."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    completion, error, request = eventfd(), eventfd(), eventfd()
    with opened(uuid) as device:
        device.connect(MSIX, [completion, error])
        device.connect(REQUEST, [request])
        enable_unused(device)
        remover = started(lambda: gpu.sysfs.remove(uuid))
        poll(lambda: pulled_out(device))
        assert not Path(f"/sys/bus/mdev/devices/{uuid}").exists()
        poll(lambda: taken(request) > 0)
        assert (taken(completion), taken(error)) == (0, 1)
        resets = gpu.slice_stats(uuid).resets
        for at in range(CONFIG_BYTES):
            device.write(CONFIG, at, b"\xff")
        assert gpu.slice_stats(uuid).resets == resets, "it took a function level reset"
        for region, offset in ((BAR0, REG_STATUS), (BAR0, DOORBELL), (BAR0, MSIX_TABLE), (CONFIG, 0), (CONFIG, 0x40)):
            for width in (1, 2, 4, 8):
                device.write(region, offset, bytes(width))
                assert device.read(region, offset, width) == b"\xff" * width
        assert device.read(CONFIG, 0, CONFIG_BYTES) == b"\xff" * CONFIG_BYTES
        with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
            device.reset()
        device.connect(MSIX, [-1, -1])
        device.connect(REQUEST, [-1])
        assert remover.is_alive(), "removed while a VMM has it open"
    ended(remover)
    assert gpu.slices() == {}
    gpu.sysfs.create(ADDRESS, "vgpumgr-mem16m", uuid)
    gpu.control.set_slice(uuid, tenant="blue")
    assert client(uuid, "verify").status == 0


def test_what_a_removed_slice_had_queued_is_dropped_and_counted(gpu: Gpu) -> None:
    """A user that releases it sees that at once. One that does not keeps a device without work, whose drops are
    counted."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    user = Client(["--json", uuid, *LOAD, "--depth", "1000"])
    gpu.wait_queued(uuid, least=900)  # longer than the slice exists
    user.stop()
    remover = started(lambda: gpu.sysfs.remove(uuid))
    poll(lambda: gpu.slice_stats(uuid).dropped > 0)
    stats = gpu.slice_stats(uuid)
    assert (stats.queued, stats.error) == (0, 0)
    poll(lambda: gpu.measured_over(0.1).run_ns["blue"] == 0)
    assert remover.is_alive()
    user.resume()
    assert user.wait(expected=(EXIT_DEVICE,), timeout_s=60).report("record", "saturate")["mismatches"] == 0
    ended(remover)
    after = gpu.stats("blue")
    assert after.slices == 0
    assert after.run_ns > 0, "what the engine had done stays charged"


def test_of_a_removed_slice_each_item_was_answered_or_is_counted_as_dropped(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, delay(1), delay(1), *[delay(900_000)] * 6)
        poll(lambda: gpu.slice_stats(uuid).items == 2)
        remover = started(lambda: gpu.sysfs.remove(uuid))
        poll(lambda: pulled_out(device))
        poll(lambda: gpu.slice_stats(uuid).queued == 0)
        poll(lambda: gpu.slice_stats(uuid).dropped == 6)
        assert gpu.slice_stats(uuid).items == 2
    ended(remover)


def test_what_executes_for_a_removed_slice_is_charged_to_its_end(gpu: Gpu) -> None:
    """The item is one piece that cannot be split. After it the slice is out of the scheduler, and its counters can
    still be read."""
    gpu.set_max_chunk_us(500_000)
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, delay(400_000, NOSPLIT))
        poll(lambda: gpu.slice_stats(uuid).run_ns > 0)
        remover = started(lambda: gpu.sysfs.remove(uuid))
        poll(lambda: pulled_out(device))
        poll(lambda: not gpu.slice_stats(uuid).scheduled)
        assert gpu.slice_stats(uuid).run_ns >= 400_000_000
        assert remover.is_alive()
    ended(remover)
    assert gpu.stats("blue").run_ns >= 400_000_000


def test_a_slice_without_a_tenant_may_be_gone_before_the_last_of_its_work(gpu: Gpu) -> None:
    """Then the engine has nothing to take out of the scheduler; the kernel itself checks that it does not look."""
    gpu.set_max_chunk_us(500_000)
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid, other = gpu.slice("blue"), gpu.slice("blue")
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, delay(500_000, NOSPLIT))
        poll(lambda: gpu.slice_stats(uuid).run_ns > 0)
    gpu.control.set_slice(uuid, tenant="")
    gpu.sysfs.remove(uuid)
    guest = Guest()
    with opened(other) as device:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, delay(100))
        guest.wait(device)


def test_a_removed_slice_gives_up_its_place(gpu: Gpu) -> None:
    """It does so at once, though a VMM keeps it open; the charge can still be read."""
    gpu.share_by("fixed_share", places=1)
    gpu.tenant("blue", weight=100, timeslice_us=1000, mode="strict")
    uuid, other = gpu.slice("blue"), gpu.slice()
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, delay(2000))
        guest.wait(device)
        remover = started(lambda: gpu.sysfs.remove(uuid))
        poll(lambda: pulled_out(device))
        poll(lambda: not gpu.slice_stats(uuid).scheduled)
        gpu.control.set_slice(other, tenant="blue")
        assert gpu.slice_stats(other).scheduled
        assert gpu.slice_stats(uuid).run_ns >= 2_000_000
        assert remover.is_alive()
    ended(remover)


def test_a_removed_slice_gets_no_place_when_its_tenant_does(gpu: Gpu) -> None:
    """Nor does it need a worker that exists already."""
    gpu.share_by("fixed_share", places=1)
    uuid, other = gpu.slice("blue"), gpu.slice("blue")
    with opened(uuid) as device:
        remover = started(lambda: gpu.sysfs.remove(uuid))
        poll(lambda: pulled_out(device))
        gpu.tenant("blue", weight=100, timeslice_us=1000, mode="strict")
        assert [gpu.slice_stats(name).scheduled for name in (uuid, other)] == [False, True]
    ended(remover)


def test_a_vmm_that_does_not_let_go_holds_up_nobody_else(gpu: Gpu) -> None:
    """Another slice is created, works and is removed meanwhile."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    with opened(uuid) as device:
        remover = started(lambda: gpu.sysfs.remove(uuid))
        poll(lambda: pulled_out(device))
        other = gpu.slice("blue")
        assert client(other, "verify").status == 0
        gpu.sysfs.remove(other)
        assert set(gpu.slices()) == {uuid}
        assert remover.is_alive()
    ended(remover)
    assert gpu.slices() == {}


def test_a_slice_is_removed_without_a_fault_of_what_it_does(gpu: Gpu) -> None:
    """Guest memory does not answer at that moment: the access is broken off, and no error is reported."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest, error = Guest(), eventfd()
    with faulting(AREA_BYTES) as faults, opened(uuid) as device:
        device.connect(MSIX, [-1, error])
        device.map(guest.rings, RINGS_IOVA)
        device.map(faults.memory, AREA_IOVA)
        guest.enable(device)
        guest.submit(device, copy(0, AREA_IOVA, 4096, DST_DEVICE))
        assert faults.wait() == 0
        remover = started(lambda: gpu.sysfs.remove(uuid))
        poll(lambda: taken(error) == 1)
        stats = gpu.slice_stats(uuid)
        assert (stats.error, stats.errors, stats.queued) == (0, 0, 0)
    ended(remover)


def test_what_looks_pulled_out_writes_no_more(gpu: Gpu) -> None:
    """Once a guest has read ones, its memory does not change any more, so that it can use the memory for something
    else.

    The function is unbound: the mdev core handles the second slice when the first one's VMM has released its slice. The
    second slice's work is broken off before that, however long its memory may take to answer.
    """
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    first, second = gpu.slice("blue"), gpu.slice("blue")
    guest = Guest()
    with dma_timeout(600_000), opened(first), faulting(AREA_BYTES) as faults, opened(second) as device:
        device.map(guest.rings, RINGS_IOVA)
        device.map(faults.memory, AREA_IOVA)
        guest.enable(device)
        guest.submit(device, fill(AREA_IOVA, 4096, 0x5A5A5A5A))
        assert faults.wait() == 0
        unbinder = started(lambda: gpu.sysfs.unbind(ADDRESS))
        ended(started(lambda: poll(lambda: pulled_out(device))))
        poll(lambda: worker_state(second) == "I")
        assert unbinder.is_alive()
        faults.give(0)
        assert faults.memory[:4096] == bytes(4096)
    ended(unbinder)
    gpu.sysfs.bind(ADDRESS)


def test_a_removal_that_waits_for_guest_memory_holds_up_nobody_else(gpu: Gpu) -> None:
    """A VM has two slices: memory that does not answer the first one delays the second one's worker as well.

    The process that removes the second slice waits for its worker, and so does the guest. Another VM opens, uses and
    closes a slice of the same GPU meanwhile, while the first slice still waits for its memory.
    """
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    first, second, other = (gpu.slice("blue") for _ in range(3))
    guest, request = Guest(), eventfd()
    found: list[bool] = []
    with faulting(AREA_BYTES) as faults, opened(first) as device, opened(second, beside=device) as waiting:
        device.map(guest.rings, RINGS_IOVA)
        device.map(faults.memory, AREA_IOVA)
        guest.enable(device)
        guest.submit(device, copy(0, AREA_IOVA, 4096, DST_DEVICE))
        assert faults.wait() == 0
        waiting.connect(REQUEST, [request])
        enable_unused(waiting)
        waiting.set_register(DOORBELL, 1)
        poll(lambda: worker_state(second) == "D")
        remover = started(lambda: gpu.sysfs.remove(second))
        poll(lambda: taken(request) > 0)
        reader = started(lambda: found.append(pulled_out(waiting)))
        with opened(other) as theirs:
            busy = Guest()
            busy.attach(theirs)
            busy.enable(theirs)
            busy.submit(theirs, delay(1000))
            busy.wait(theirs)
        assert set(gpu.slices()) == {first, second, other}
        assert remover.is_alive()
        assert (device.register(REG_ERROR), worker_state(second)) == (0, "D"), "they wait no more"
        assert reader.is_alive(), "its memory may be written yet"
        faults.give(0)
        guest.wait(device)
        ended(reader)
        assert found == [True]
    ended(remover)
    assert set(gpu.slices()) == {first, other}


def test_unbinding_the_function_takes_all_slices_away_at_once(gpu: Gpu) -> None:
    """The mdev core removes one slice after the other. None works on while a VMM is slow, and every VMM is asked."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuids = [gpu.slice("blue") for _ in range(3)]
    with ExitStack() as vmms:
        devices = [vmms.enter_context(opened(uuid)) for uuid in uuids]
        requests = [eventfd() for _ in devices]
        for device, request in zip(devices, requests, strict=True):
            device.connect(REQUEST, [request])
        unbinder = started(lambda: gpu.sysfs.unbind(ADDRESS))
        poll(lambda: all(map(pulled_out, devices)))
        poll(lambda: all(taken(request) for request in requests[1:]))
        assert [gpu.sysfs.read(uuid, "state") for uuid in uuids[1:]] == ["inert", "inert"]
        assert unbinder.is_alive()
        assert [found.name for found in gpu.control.gpus()] == [ADDRESS], "it still answers"
    ended(unbinder)
    assert gpu.control.gpus() == []
    gpu.sysfs.bind(ADDRESS)
    assert [found.name for found in gpu.control.gpus()] == [ADDRESS]


def cannot_open(uuid: str) -> bool:
    try:
        with opened(uuid):
            return False
    except OSError as refused:
        return refused.errno == errno.ENODEV


def test_a_slice_whose_function_is_being_unbound_cannot_be_opened(gpu: Gpu) -> None:
    """The mdev core handles it when the VMM of the slice before lets go. A VMM that opened it then would never be asked
    to."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    first, second = gpu.slice("blue"), gpu.slice("blue")
    with opened(first) as device:
        unbinder = started(lambda: gpu.sysfs.unbind(ADDRESS))
        poll(lambda: pulled_out(device))
        poll(lambda: cannot_open(second))
        assert unbinder.is_alive()
    ended(unbinder)
    gpu.sysfs.bind(ADDRESS)
    assert gpu.slices() == {}
