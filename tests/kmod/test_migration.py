# SPDX-License-Identifier: Apache-2.0
"""Saving and restoring a slice like a VMM: it stops completely, continues elsewhere, and trusts no stream."""

import errno
import os
import re
import threading
from contextlib import ExitStack

import pytest

from tests.kmod.test_lifetime import module_references
from tests.rig import migration
from tests.rig.gpu import Gpu, poll
from tests.rig.kernel import kernel_log
from tests.rig.migration import (
    ERROR,
    PRE_COPY,
    RESUMING,
    RUNNING,
    RUNNING_P2P,
    STOP,
    STOP_COPY,
    Header,
    restore,
    save,
    set_state,
    state,
)
from tests.rig.ring import (
    AREA_IOVA,
    CRC32C,
    DOORBELL,
    DST_DEVICE,
    ENABLED,
    IRQ,
    NOP,
    NOSPLIT,
    REG_COMPLETED,
    REG_CONTROL,
    REG_ERROR,
    REG_ERROR_INDEX,
    REG_FETCHED,
    REG_RUN_NS,
    REG_STATUS,
    SRC_DEVICE,
    Guest,
    copy,
    delay,
    descriptor,
    enable_unused,
    fill,
)
from tests.rig.vfio import BAR0, CONFIG, MSIX, Device, dma_timeout, eventfd, opened, taken

MEMORY_BYTES = 16 << 20
STREAM_BYTES = Header.BYTES + MEMORY_BYTES + 4
UNKNOWN_OP, ERROR_OP = 99, 5
BAD_STREAM = os.strerror(errno.EINVAL)
GONE = os.strerror(errno.ENODEV)


@pytest.fixture
def uuid(gpu: Gpu) -> str:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    return gpu.slice("blue")


def test_every_state_is_reached_and_left(uuid: str) -> None:
    with opened(uuid) as device:
        assert migration.flags(device) == migration.STOP_COPY_FLAG | migration.P2P_FLAG
        assert state(device) == RUNNING
        for wanted in (RUNNING_P2P, STOP, RUNNING, STOP, RUNNING_P2P, STOP_COPY, STOP, RESUMING, RUNNING_P2P, RUNNING):
            if wanted == RUNNING_P2P and state(device) == RESUMING:
                with pytest.raises(OSError, match=BAD_STREAM):  # nothing was restored
                    set_state(device, wanted)
                break
            fd = set_state(device, wanted)
            assert (fd >= 0) == (wanted in (STOP_COPY, RESUMING))
            assert state(device) == wanted
            if fd >= 0:
                os.close(fd)
        assert state(device) == ERROR
        for wanted in (RUNNING, STOP, RESUMING):
            with pytest.raises(OSError, match=BAD_STREAM):
                set_state(device, wanted)
        device.reset()
        assert state(device) == RUNNING
        for wanted in (ERROR, PRE_COPY, 99):
            with pytest.raises(OSError, match=BAD_STREAM):
                set_state(device, wanted)
            assert state(device) == RUNNING
    told = re.findall(rf"{uuid}: (\w+ refused.*)", kernel_log())
    assert told == ["restore refused: incomplete", *6 * ["migration refused for state: -EINVAL"]]


def test_a_stopped_slice_does_nothing_and_goes_on(gpu: Gpu, uuid: str) -> None:
    """The chunk on the engine is finished, and ended items are completed; then no engine time, no access, no
    interrupt."""
    guest, vector = Guest(), eventfd()
    with opened(uuid) as device:
        device.connect(MSIX, [vector, -1])
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, *[delay(900_000, IRQ)] * 4)
        poll(lambda: device.register(REG_COMPLETED) > 0)
        set_state(device, RUNNING_P2P)
        done = device.register(REG_COMPLETED)
        assert 1 <= done < 4
        assert taken(vector) == done
        assert guest.completion(done - 1).seq == done
        guest.submit(device, *[fill(AREA_IOVA, 4096, 0x11111111, IRQ)])
        for further in (RUNNING_P2P, STOP):
            set_state(device, further)
            before = bytes(guest.rings), bytes(guest.area)
            assert gpu.measured_over(0.5).run_ns["blue"] == 0
            assert device.register(REG_COMPLETED) == done
            assert (bytes(guest.rings), bytes(guest.area)) == before
            assert taken(vector) == 0
        set_state(device, RUNNING)
        guest.wait(device)
        assert guest.area[:4096] == b"\x11" * 4096
        assert [guest.completion(number).seq for number in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("end", ["restored", "given up"])
@pytest.mark.parametrize(
    "long",
    [
        pytest.param(delay(900_000), id="delay"),
        pytest.param(descriptor(CRC32C, flags=SRC_DEVICE, args=[MEMORY_BYTES]), id="crc32c"),
        pytest.param(fill(0, MEMORY_BYTES, 0xA5A5A5A5, DST_DEVICE), id="fill"),
    ],
)
def test_nobody_waits_for_the_rest_of_an_item(gpu: Gpu, uuid: str, long: bytes, end: str) -> None:
    """A guest has made the item long and has a thousandth of the engine: it goes on here, or begins anew elsewhere."""
    gpu.tenant("blue", cap_us=1000, cap_period_us=1_000_000)
    guest = Guest()
    with ExitStack() as stack:
        device = stack.enter_context(opened(uuid))
        guest.attach(device)
        guest.enable(device)
        guest.area[:4096] = b"\xee" * 4096
        guest.submit(device, long, copy(AREA_IOVA, MEMORY_BYTES - 4096, 4096, SRC_DEVICE))
        poll(lambda: gpu.slice_stats(uuid).run_ns > 0)
        set_state(device, STOP)
        assert gpu.measured_over(0.5).run_ns["blue"] == 0
        assert device.register(REG_COMPLETED) == 0
        gpu.tenant("blue", cap_us=0)
        if end == "restored":
            stream = save(device)
            device = stack.enter_context(opened(gpu.slice("blue")))
            guest.attach(device)
            restore(device, stream)
        set_state(device, RUNNING)
        guest.submit(device, long)
        guest.wait(device)
    assert guest.completion(0).result == guest.completion(2).result, "as without a pause"
    assert guest.area[:4096] in (bytes(4096), b"\xa5" * 4096)
    assert (guest.area[0] == 0xA5) == (long == fill(0, MEMORY_BYTES, 0xA5A5A5A5, DST_DEVICE))


@pytest.mark.long
def test_an_item_that_cannot_begin_anew_nor_finish_in_time_keeps_the_slice_running(gpu: Gpu, uuid: str) -> None:
    """The item has written where it reads, and others have nearly all of the engine. The VMM gets an error; nothing has
    changed."""
    gpu.set_max_chunk_us(10)
    shortest_us = gpu.control.gpu(gpu.address).timeslice_min_us
    gpu.tenant("blue", weight=1, timeslice_us=shortest_us)
    others = ("green", "red", "black")
    for name in others:
        gpu.tenant(name, weight=10_000, timeslice_us=shortest_us)
    guest = Guest()
    with dma_timeout(2000), opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        with gpu.loaded({gpu.slice(name): {"op": "delay", "delay_us": 200} for name in others}):
            guest.submit(device, copy(4096, 0, MEMORY_BYTES - 4096, DST_DEVICE | SRC_DEVICE))
            poll(lambda: gpu.slice_stats(uuid).run_ns > 0)
            with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
                set_state(device, STOP)
            assert state(device) == RUNNING
            assert device.register(REG_COMPLETED) == 0
        guest.wait(device)


def prepared(device: Device, guest: Guest) -> None:
    """Work of all kinds, stopped in the middle: device memory, queued items, written registers."""
    guest.attach(device)
    guest.enable(device)
    device.write(BAR0, 0x2000, b"\x40" + bytes(15))
    device.write(CONFIG, 0x3C, b"\x0b")
    guest.area[:4096] = bytes(range(256)) * 16
    guest.submit(
        device,
        copy(0x1000, AREA_IOVA, 4096, DST_DEVICE),
        fill(MEMORY_BYTES - 4096, 4096, 0xA5A5A5A5, DST_DEVICE),
        delay(900_000),
        copy(0x1800, 0x1000, 4096, DST_DEVICE | SRC_DEVICE),
        descriptor(CRC32C, flags=SRC_DEVICE, src=0x1000, args=[6144]),
        copy(AREA_IOVA + 0x10000, 0x1800, 4096, SRC_DEVICE),
        copy(AREA_IOVA + 0x20000, MEMORY_BYTES - 4096, 4096, SRC_DEVICE),
    )
    poll(lambda: device.register(REG_COMPLETED) >= 2)


def check_finished(device: Device, guest: Guest) -> None:
    guest.wait(device)
    content = bytes(range(256)) * 16
    assert guest.completion(4).result == migration.crc32c(content[:2048] + content)
    assert guest.area[0x10000 : 0x10000 + 4096] == content
    assert guest.area[0x20000 : 0x20000 + 4096] == b"\xa5" * 4096
    assert [guest.completion(number).seq for number in range(7)] == list(range(1, 8))


@pytest.mark.parametrize(
    "piece", [65_537, pytest.param(1 << 20, marks=pytest.mark.long), pytest.param(1 << 24, marks=pytest.mark.long)]
)
def test_work_goes_on_in_another_slice(gpu: Gpu, uuid: str, piece: int) -> None:
    """Stopped in the middle of its work, saved and restored into another slice with the same memory, it continues
    seamlessly."""
    guest = Guest()
    with opened(uuid) as device:
        prepared(device, guest)
        stream = save(device)
        ran_ns = device.register(REG_RUN_NS)
        config, table = device.read(CONFIG, 0, 256), device.read(BAR0, 0x2000, 32)
        completed = device.register(REG_COMPLETED)
    assert len(stream) == STREAM_BYTES
    header = Header.of(stream)
    assert (header.completed, header.tail, header.error) == (completed, 7, 0)
    assert completed < 7
    with opened(gpu.slice("blue")) as device:
        guest.attach(device)
        restore(device, stream, piece)
        assert (device.read(CONFIG, 0, 256), device.read(BAR0, 0x2000, 32)) == (config, table)
        assert (device.register(REG_COMPLETED), device.register(REG_FETCHED)) == (completed, completed)
        assert save(device) == stream, "a second stop saves the same"
        set_state(device, RUNNING)
        check_finished(device, guest)
        assert device.register(REG_RUN_NS) >= ran_ns
        guest.submit(device, fill(AREA_IOVA, 4096, 0))
        guest.wait(device)


def test_a_migration_given_up_in_any_state_leaves_a_running_slice(uuid: str) -> None:
    """This holds with nothing, half or all of the stream read, and with its file open or closed."""
    guest = Guest()
    with opened(uuid) as device:
        prepared(device, guest)
        for wanted in (RUNNING_P2P, STOP, STOP_COPY):
            fd = set_state(device, wanted)
            set_state(device, RUNNING)
            assert state(device) == RUNNING
            if fd >= 0:
                os.close(fd)
        left = set_state(device, STOP_COPY)
        assert len(os.read(left, STREAM_BYTES // 2)) == STREAM_BYTES // 2
        set_state(device, RUNNING)
        save(device)
        set_state(device, RUNNING)
        check_finished(device, guest)
        os.close(left)


def test_each_host_charges_for_what_ran_there(gpu: Gpu, uuid: str) -> None:
    """Counters and share stay with tenant and slice of a host; the guest's own clock of engine time goes on."""
    gpu.tenant("green", weight=300, timeslice_us=1000)
    guest = Guest()
    with opened(uuid) as device:
        prepared(device, guest)
        stream = save(device)
        source, items = gpu.stats("blue").run_ns, gpu.slice_stats(uuid).items
        assert source == gpu.slice_stats(uuid).run_ns == device.register(REG_RUN_NS) == Header.of(stream).run_ns
        target = gpu.slice("green", weight=7)
        with opened(target) as other:
            guest.attach(other)
            restore(other, stream)
            assert (gpu.stats("green").run_ns, gpu.slice_stats(target).items) == (0, 0)
            assert other.register(REG_RUN_NS) == source
            set_state(other, RUNNING)
            check_finished(other, guest)
            assert gpu.stats("blue").run_ns == gpu.slice_stats(uuid).run_ns == source
            ran_ns = gpu.stats("green").run_ns
            assert ran_ns > 0
            assert other.register(REG_RUN_NS) == source + ran_ns
            assert gpu.slice_stats(uuid).items + gpu.slice_stats(target).items == 7
            assert gpu.slice_stats(uuid).items == items
            assert (gpu.slice_stats(target).tenant, gpu.slice_stats(target).weight) == ("green", 7)
    with opened(target) as other:
        assert other.register(REG_RUN_NS) == ran_ns, "what another host counted is gone with the VM"


def test_nothing_is_restored_into_a_slice_without_a_tenant(gpu: Gpu, uuid: str) -> None:
    """Its items would wait for ever: an open slice cannot get a tenant. A named tenant that is not
    configured yet is waited for.

    The refusal changes nothing, and the restored slice works once its tenant exists.
    """
    guest = Guest()
    with opened(uuid) as device:
        prepared(device, guest)
        stream = save(device)
    with opened(gpu.slice()) as device:
        enable_unused(device)
        before = kernel_log()
        with pytest.raises(OSError, match=os.strerror(errno.EPERM)):
            set_state(device, RESUMING)
        said = kernel_log().removeprefix(before)
        assert "restore refused: no tenant\n" in said
        assert "refused for state" not in said
        assert state(device) == STOP
        set_state(device, RUNNING)
        assert device.register(REG_STATUS) & ENABLED
    with opened(gpu.slice("green")) as device:
        guest.attach(device)
        restore(device, stream)
        set_state(device, RUNNING)
        completed = device.register(REG_COMPLETED)
        assert gpu.measured_over(0.5).run_ns == {"blue": 0}
        assert device.register(REG_COMPLETED) == completed
        gpu.tenant("green", weight=100, timeslice_us=1000)
        check_finished(device, guest)


@pytest.mark.parametrize("wanted", [RUNNING_P2P, STOP, STOP_COPY, RESUMING])
@pytest.mark.parametrize("dropped_by", ["reset", "error"])
def test_a_slice_stops_when_nothing_is_at_work_on_device_memory(
    gpu: Gpu, uuid: str, wanted: int, dropped_by: str
) -> None:
    """An item that was just dropped still runs until its piece ends: saving waits for that."""
    gpu.set_max_chunk_us(1_000_000)
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        picks = gpu.control.gpu(gpu.address).picks
        guest.submit(device, delay(900_000, NOSPLIT))
        poll(lambda: gpu.control.gpu(gpu.address).picks > picks)
        if dropped_by == "reset":
            device.set_register(REG_CONTROL, 2)
        else:
            device.set_register(DOORBELL, 0)
            assert device.register(REG_ERROR)
        before = kernel_log()
        fd = set_state(device, wanted)
        assert state(device) == wanted
        ran_ns = gpu.slice_stats(uuid).run_ns
        assert ran_ns >= 900_000_000
        assert gpu.measured_over(0.2).run_ns == {"blue": 0}
        assert "refused" not in kernel_log().removeprefix(before)
        if fd >= 0:
            os.close(fd)


def test_the_latched_half_of_a_register_travels_too(gpu: Gpu, uuid: str) -> None:
    """A guest that has read the low half of its engine time reads the high half on the other host."""
    with opened(uuid) as device:
        stream = save(device)
        header = Header.of(stream)
        header.run_ns, header.run_ns_hi = 5 << 32, 3
        restore(device, header.pack() + stream[Header.BYTES :])
        assert device.register(REG_RUN_NS + 4) == 3
        assert Header.of(save(device)).run_ns_hi == 3
        device.reset()
        assert device.register(REG_RUN_NS + 4) == 0, "a reset forgets what was latched"
        assert (device.register(REG_RUN_NS), device.register(REG_RUN_NS + 4)) == (0, 5)


def test_an_error_and_a_disabled_slice_travel_too(gpu: Gpu, uuid: str) -> None:
    guest, vector = Guest(), eventfd()
    other = gpu.slice("blue")
    with opened(uuid) as device:
        idle = save(device)
        set_state(device, RUNNING)
        device.connect(MSIX, [-1, vector])
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, descriptor(NOP), descriptor(UNKNOWN_OP), descriptor(NOP))
        poll(lambda: taken(vector) == 1)
        status = device.register(REG_STATUS)
        stream = save(device)
    with opened(other) as device:
        device.connect(MSIX, [-1, vector])
        guest.attach(device)
        restore(device, stream)
        set_state(device, RUNNING)
        assert (device.register(REG_ERROR), device.register(REG_ERROR_INDEX)) == (ERROR_OP, 1)
        assert device.register(REG_STATUS) == status
        assert taken(vector) == 0, "the guest knows already"
        restore(device, idle)
        set_state(device, RUNNING)
        assert (device.register(REG_ERROR), device.register(REG_STATUS) & 3) == (0, 0)
        guest.enable(device)
        guest.submit(device, delay(10))
        guest.wait(device)


@pytest.mark.parametrize("wanted", [STOP_COPY, RESUMING])
@pytest.mark.parametrize("end", ["state", "reset", "close", "remove"])
def test_a_streams_file_outlives_what_it_is_of(gpu: Gpu, uuid: str, wanted: int, end: str) -> None:
    """The file then returns errors and may be closed at any time; until then the module stays loaded."""
    with opened(uuid) as device:
        fd = set_state(device, wanted)
        if wanted == STOP_COPY:
            assert len(os.read(fd, 1000)) == 1000
        if end == "state" and wanted == STOP_COPY:
            set_state(device, RUNNING)
        elif end in ("state", "reset"):
            device.reset()
    if end == "remove":
        gpu.sysfs.remove(uuid)
    with pytest.raises(OSError, match=GONE):
        os.read(fd, 1000) if wanted == STOP_COPY else os.write(fd, bytes(1000))
    assert module_references() > 0
    os.close(fd)
    poll(lambda: module_references() == 0)


def test_removal_ends_a_migration(gpu: Gpu, uuid: str) -> None:
    with opened(uuid) as device:
        fd = set_state(device, STOP_COPY)
        remover = threading.Thread(target=gpu.sysfs.remove, args=(uuid,))
        remover.start()
        poll(lambda: device.register(REG_STATUS) == 0xFFFF_FFFF)
        with pytest.raises(OSError, match=GONE):
            os.read(fd, 1000)
        with pytest.raises(OSError, match=GONE):
            set_state(device, RUNNING)
    os.close(fd)
    remover.join(timeout=30)
    assert not remover.is_alive()
