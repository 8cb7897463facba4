# SPDX-License-Identifier: Apache-2.0
"""A slice reads items from its guest's memory and writes completions and the shadow there, and accesses nothing
else."""

import mmap
import struct

import pytest

from tests.rig.gpu import Gpu, poll
from tests.rig.ring import (
    AREA_BYTES,
    AREA_IOVA,
    COMPLETION_AT,
    CRC32C,
    DOORBELL,
    ENABLE,
    ENABLED,
    NOP,
    REG_COMPLETED,
    REG_COMPLETION,
    REG_CONTROL,
    REG_ENTRIES,
    REG_ERROR,
    REG_ERROR_INDEX,
    REG_FETCHED,
    REG_RING,
    REG_RUN_NS,
    REG_SHADOW,
    REG_STATUS,
    RINGS_BYTES,
    RINGS_IOVA,
    SHADOW_AT,
    Guest,
    copy,
    delay,
    descriptor,
)
from tests.rig.vfio import Device, opened

DESCRIPTOR_BYTES, COMPLETION_BYTES, SHADOW_BYTES = 64, 32, 64
INFLIGHT_ITEMS, INFLIGHT_BYTES = 512, 8 << 20  # kmod/vgpu.h
UNKNOWN_OP, ERROR_OP = 99, 5  # kmod/uapi/vgpu_device.h
BLOCKERS, MORE = 3, 8  # of 0.9 s; more than are fetched


@pytest.fixture
def uuid(gpu: Gpu) -> str:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    return gpu.slice("blue")


def enable(device: Device, *, entries: int, shadow: int = 0) -> None:
    device.master()
    for register, value in (
        (REG_RING, RINGS_IOVA),
        (REG_COMPLETION, RINGS_IOVA + COMPLETION_AT),
        (REG_SHADOW, shadow),
        (REG_ENTRIES, entries),
        (REG_CONTROL, ENABLE),
    ):
        device.set_register(register, value)
    assert device.register(REG_STATUS) & ENABLED


def submit(device: Device, guest: Guest, items: list[bytes]) -> None:
    guest.rings[: len(items) * DESCRIPTOR_BYTES] = b"".join(items)
    guest.tail = len(items)
    device.set_register(DOORBELL, guest.tail)


def test_without_a_shadow_nothing_is_written_where_it_would_be(uuid: str) -> None:
    """Address zero is valid when a guest has memory there, both for completions and for an error."""
    guest, low = Guest(), mmap.mmap(-1, mmap.PAGESIZE)
    with opened(uuid) as device:
        guest.attach(device)
        device.map(low, 0)
        enable(device, entries=8)
        submit(device, guest, [descriptor(NOP), descriptor(UNKNOWN_OP)])
        poll(lambda: device.register(REG_ERROR) == ERROR_OP)
        device.reset()
    assert low[:] == bytes(mmap.PAGESIZE)
    assert guest.rings[SHADOW_AT:] == bytes(RINGS_BYTES - SHADOW_AT)


def test_the_shadow_says_what_the_registers_say(uuid: str) -> None:
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        enable(device, entries=8, shadow=RINGS_IOVA + SHADOW_AT)

        def said() -> tuple[int, ...]:
            return struct.unpack("<16I", guest.rings[SHADOW_AT : SHADOW_AT + SHADOW_BYTES])

        submit(device, guest, [descriptor(NOP), descriptor(NOP)])
        poll(lambda: said() == (2, 2, 0, 0, *[0] * 12))
        guest.submit(device, descriptor(NOP), descriptor(UNKNOWN_OP))
        poll(lambda: said()[2] == ERROR_OP)
        registers = (REG_FETCHED, REG_COMPLETED, REG_ERROR, REG_ERROR_INDEX)
        assert said()[:4] == tuple(map(device.register, registers))
        assert said()[3] == 3


def test_what_moves_is_counted(gpu: Gpu, uuid: str) -> None:
    """Descriptor, operands, completion and shadow."""
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        moved = DESCRIPTOR_BYTES + 2 * 4096 + COMPLETION_BYTES + SHADOW_BYTES
        for expected in (moved, 2 * moved):
            guest.submit(device, copy(AREA_IOVA, AREA_IOVA + 4096, 4096))
            guest.wait(device)
            poll(lambda expected=expected: gpu.slice_stats(uuid).dma_bytes == expected)  # type: ignore[misc]


def test_a_completion_says_how_long_its_item_ran(uuid: str) -> None:
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, delay(2000), delay(50_000))
        guest.wait(device)
        short, long = (guest.completion(number).run_ns for number in (0, 1))
        assert short >= 2_000_000
        assert long >= 50_000_000
        assert short + long <= int.from_bytes(device.read(0, REG_RUN_NS, 8), "little")


@pytest.mark.parametrize(
    ("item", "entries", "most"),
    [
        (descriptor(NOP), 1024, INFLIGHT_ITEMS),
        (descriptor(CRC32C, src=AREA_IOVA, args=[AREA_BYTES]), 64, BLOCKERS + INFLIGHT_BYTES // AREA_BYTES),
    ],
    ids=["items", "operands"],
)
def test_no_more_is_fetched_than_the_host_lends_memory_for(uuid: str, item: bytes, entries: int, most: int) -> None:
    """The others follow when the first ones are completed."""
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        enable(device, entries=entries)
        submit(device, guest, [delay(900_000)] * BLOCKERS + [item] * (most - BLOCKERS + MORE))
        poll(lambda: device.register(REG_FETCHED) >= most)
        fetched = most
        while not device.register(REG_COMPLETED):  # nothing was completed when `fetched` was read
            assert fetched == most
            fetched = device.register(REG_FETCHED)
        guest.wait(device)
        assert device.register(REG_FETCHED) == most + MORE
