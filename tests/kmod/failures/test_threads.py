# SPDX-License-Identifier: Apache-2.0
"""Allocations of the module's own threads fail: a guest and a listener learn of it, and nobody else notices."""

import time

import pytest

from tests.rig.client import client
from tests.rig.failing import (
    MOST,
    THREAD_SAYS,
    all_failing,
    each_failure,
    failing,
    failures_possible,
    numbers,
    text_of_function,
)
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.kernel import threads
from tests.rig.ring import (
    AREA_BYTES,
    AREA_IOVA,
    COPY,
    CRC32C,
    ERROR,
    FILL,
    GEMM_I32,
    NOP,
    REG_COMPLETED,
    REG_ERROR,
    REG_STATUS,
    Guest,
    descriptor,
)
from tests.rig.vfio import Device, opened
from vgpumgr.control.events import Watch
from vgpumgr.control.model import Event, EventKind, Snapshot

ERROR_DMA, ERROR_RESOURCE = 4, 11  # kmod/uapi/vgpu_device.h
SRC, DST = AREA_IOVA, AREA_IOVA + AREA_BYTES // 2
PAGE = 4096


def work_much(device: Device, guest: Guest) -> None:
    """So much work that the worker is not in real time, nor soon after, where it would allocate twice."""
    guest.submit(device, *[descriptor(NOP)] * 60)
    guest.wait(device)


@pytest.mark.parametrize(
    ("work", "allocations"),
    [
        (descriptor(NOP), 1),
        (descriptor(FILL, dst=DST, args=[PAGE, 7]), 2),
        (descriptor(CRC32C, src=SRC, args=[PAGE]), 2),
        (descriptor(COPY, dst=DST, src=SRC, args=[PAGE]), 3),
        (descriptor(GEMM_I32, dst=DST, src=SRC, src2=SRC, args=[8, 8, 8]), 4),
    ],
    ids=["nop", "fill", "crc32c", "copy", "gemm"],
)
def test_what_an_item_needs(gpu: Gpu, work: bytes, allocations: int) -> None:
    """The slice stops and reports why, with nothing half done; enabled again, it works."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    guest = Guest()
    found: dict[int, int] = {}
    met: list[bool] = []
    with opened(uuid) as device:
        guest.attach(device)
        for number in numbers(met):
            guest.enable(device)
            work_much(device, guest)
            before = guest.tail
            with failing(number, of=threads(f"vgpu-{uuid[:10]}")) as has_failed:
                guest.submit(device, work)
                poll(lambda: bool(device.register(REG_COMPLETED) == guest.tail or device.register(REG_STATUS) & ERROR))
                met.append(has_failed())
            error = device.register(REG_ERROR)
            assert error in ((0, ERROR_RESOURCE, ERROR_DMA) if met[-1] else (0,))
            assert device.register(REG_COMPLETED) == (before if error else before + 1)
            found[number] = error or found.get(number, 0)
    assert list(found.values()).count(ERROR_RESOURCE) >= allocations
    assert client(uuid, "verify").status == 0


def test_telling_what_happens(gpu: Gpu) -> None:
    """An event that cannot be sent leaves a hole, from which a listener learns that it must read the state again."""
    holes, number = 0, 1
    made: list[str] = []
    spared = 0  # several in a row: a kernel worker that is created for the event does not have the failure setting yet
    with Watch(gpu.control) as watch:
        assert isinstance(watch.wait(), Snapshot)
        while spared < 3:
            assert number < MOST
            made.append(f"t{len(made)}")
            with failing(number, of=threads("kworker/")) as has_failed:
                gpu.tenant(made[-1], weight=100, timeslice_us=1000)
                holes += knows(watch, made[-1])
                met = has_failed()
            number, spared = (number + 1, 0) if met else (number, spared + 1)
    assert number > 2
    assert holes >= 1
    assert {tenant.name for tenant in gpu.control.tenants(ADDRESS)} == set(made)


def test_how_much_was_lost_is_told_however_late(gpu: Gpu) -> None:
    """The report of lost events needs memory as well, and uses none of their numbers twice."""
    lost = 3
    with Watch(gpu.control) as watch:
        assert isinstance(watch.wait(), Snapshot)
        first = gpu.control.gpu(ADDRESS).event_seq
        with failures_possible(text_of_function("vgpu_events_drain")), all_failing() as failed:

            def reached(count: int) -> None:
                poll(lambda: failed() >= count)

            for number in range(lost):
                gpu.tenant(f"t{number}", weight=100, timeslice_us=1000)
                reached(number + 1)
            reached(lost + 2)
        told = next(seen for seen in iter(watch.wait, None) if isinstance(seen, Event))
    assert (told.kind, told.count) == (EventKind.LOST, lost)
    assert told.sequence == gpu.control.gpu(ADDRESS).event_seq == first + lost + 1


def test_what_a_gpu_that_goes_could_not_tell_is_a_hole(gpu: Gpu) -> None:
    """No object is left to report it: the hole before the next event tells a listener that it must read the state
    again."""
    with Watch(gpu.control) as watch:
        assert isinstance(watch.wait(), Snapshot)
        gpu.tenant("blue", weight=100, timeslice_us=1000)
        assert knows(watch, "blue") is False
        first = gpu.control.gpu(ADDRESS).event_seq
        with failures_possible(text_of_function("vgpu_events_drain")), all_failing() as failed:
            gpu.sysfs.unbind(ADDRESS)
            assert failed() > 0
        gpu.sysfs.bind(ADDRESS)
        seen = watch.wait(60)
    assert isinstance(seen, Snapshot)
    assert seen.tenants == ()
    assert seen.sequence == first + 3  # the tenant and the GPU that were removed, and the new GPU


def knows(watch: Watch, name: str) -> bool:
    """Wait until a listener knows a tenant; returns whether it had to read the state again."""
    looked = False
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        match watch.wait(60):
            case Event(kind=EventKind.CREATED, tenant=tenant) if tenant == name:
                return looked
            case Snapshot(tenants=tenants):
                looked = True
                if name in {tenant.name for tenant in tenants}:
                    return True
    raise TimeoutError


def test_a_worker_that_cannot_be_made(gpu: Gpu) -> None:
    """A thread of the kernel creates threads for us. The slice fails to open, and works once it opens."""
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")

    def try_to_open() -> None:
        with opened(uuid):
            pass

    def ended() -> bool:
        poll(lambda: not threads(f"vgpu-{uuid}"))
        return gpu.slice_stats(uuid).open

    with failures_possible(text_of_function("kthreadd")):
        count = each_failure(
            try_to_open,
            undo=lambda: None,
            same=ended,
            of=threads("kthreadd"),
            says=THREAD_SAYS,
        )
    assert count > 5
    assert client(uuid, "verify").status == 0
