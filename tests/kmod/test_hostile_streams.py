# SPDX-License-Identifier: Apache-2.0
"""Streams that no device has made: each is an error, and leaves a slice in the state after opening."""

import errno
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress

import pytest

from tests.rig import migration
from tests.rig.gpu import Gpu
from tests.rig.migration import (
    ENABLED,
    ERROR,
    REPORTED,
    RESUMING,
    RUNNING,
    STOP,
    Header,
    restore,
    save,
    set_state,
    state,
)
from tests.rig.ring import CRC32C, NOP, REG_STATUS, SRC_DEVICE, Guest, delay, descriptor
from tests.rig.vfio import BAR0, CONFIG, Device, opened

MEMORY_BYTES = 16 << 20
ABI_MINOR = 4  # kmod/uapi/vgpu_device.h
BAD_STREAM = os.strerror(errno.EINVAL)


@pytest.fixture
def uuid(gpu: Gpu) -> str:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    return gpu.slice("blue")


def changed(**values: int | bytes) -> Callable[[Header], None]:
    def change(header: Header) -> None:
        for name, value in values.items():
            setattr(header, name, value)

    return change


def changed_byte(name: str, at: int, value: int) -> Callable[[Header], None]:
    def change(header: Header) -> None:
        getattr(header, name)[at] ^= value

    return change


OTHER_VERSION, OTHER_SIZE = os.strerror(errno.EPROTONOSUPPORT), os.strerror(errno.ERANGE)
OTHER_ENGINE = os.strerror(errno.EOPNOTSUPP)
REFUSALS = {
    "magic": OTHER_VERSION,
    "version 0": OTHER_VERSION,
    "version 2": OTHER_VERSION,
    "longer header": OTHER_VERSION,
    "shorter header": OTHER_VERSION,
    "ABI major": OTHER_VERSION,
    "older ABI major": OTHER_VERSION,
    "next ABI minor": OTHER_VERSION,
    "ABI minor": OTHER_VERSION,
    "no memory": OTHER_SIZE,
    "more memory": OTHER_SIZE,
    "less memory": OTHER_SIZE,
    "most memory": OTHER_SIZE,
    "engine": OTHER_ENGINE,
    "longer name of an engine": OTHER_ENGINE,
    "more operations": OTHER_ENGINE,
}
BAD_HEADERS: dict[str, Callable[[Header], None]] = {
    "magic": changed(magic=0),
    "version 0": changed(version=0),
    "version 2": changed(version=2),
    "longer header": changed(header_bytes=Header.BYTES + 4),
    "shorter header": changed(header_bytes=Header.BYTES - 4),
    "no memory": changed(memory_bytes=0),
    "less memory": changed(memory_bytes=MEMORY_BYTES - 1),
    "more memory": changed(memory_bytes=MEMORY_BYTES + 1),
    "most memory": changed(memory_bytes=2**64 - 1),
    "ABI major": changed(abi=2 << 16),
    "ABI minor": changed(abi=1 << 16 | 0xFFFF),
    "older ABI major": changed(abi=ABI_MINOR),
    "next ABI minor": changed(abi=1 << 16 | ABI_MINOR + 1),
    "flags": changed(flags=1 << 31),
    "next flag": changed(flags=ENABLED | 1 << 2),
    "engine": changed(engine=b"edu"),
    "longer name of an engine": changed(engine=b"soft\0".ljust(16, b"x")),
    "more operations": changed(operations=1 << 31),
    "vendor": changed_byte("config", 0x00, 1),
    "fixed bit of command": changed_byte("config", 0x04, 1),
    "FLR bit": changed_byte("config", 0x59, 0x80),
    "without bus mastering": changed_byte("config", 0x04, 4),
    "last byte of configuration space": changed_byte("config", 0xFF, 0x80),
    "MSI-X control": changed_byte("msix", 13, 1),
    "last byte of the MSI-X table": changed_byte("msix", 31, 0x80),
    "entries 0": changed(entries=0),
    "entries 4": changed(entries=4),
    "entries 65": changed(entries=65),
    "entries 8192": changed(entries=8192),
    "misaligned ring": changed(ring=0x10_0001),
    "ring that wraps": changed(ring=2**64 - 4096),
    "misaligned completion": changed(completion=0x11_0008),
    "completion that wraps": changed(completion=2**64 - 2048),
    "misaligned shadow": changed(shadow=0x12_0010),
    "shadow that wraps": changed(shadow=2**64 - 32),
    "tail beyond": changed(tail=65, completed=0),
    "tail behind": changed(tail=0, completed=1),
    "error": changed(error=13),
    "error's item without an error": changed(error_index=1),
    "told of no error": changed(flags=ENABLED | REPORTED),
    "told by a disabled ring": changed(flags=REPORTED, tail=0, completed=0, error=5),
    "tail of a disabled ring": changed(flags=0, completed=0),
    "answers of a disabled ring": changed(flags=0, tail=0),
}
GOOD_HEADERS: dict[str, Callable[[Header], None]] = {
    "older ABI minor": changed(abi=1 << 16),
    "fewer operations": changed(operations=1),
    "full ring": changed(tail=64, completed=0),
    "counters that wrap": changed(tail=1, completed=0xFFFF_FFFF),
    "last error": changed(error=12, error_index=7),
    "told of an error": changed(flags=ENABLED | REPORTED, error=5),
    "no shadow": changed(shadow=0),
    "fewest entries": changed(entries=8, tail=0, completed=0),
    "most entries": changed(entries=4096),
    "disabled ring": changed(flags=0, tail=0, completed=0, entries=0, ring=1),
}


@pytest.fixture
def stream(uuid: str) -> bytes:
    """The stream of an enabled slice that has completed an item."""
    guest = Guest()
    with opened(uuid) as device:
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, descriptor(NOP))
        guest.wait(device)
        return save(device)


def power_on(device: Device) -> tuple[bytes, bytes, bytes]:
    """The state of a device without its device memory."""
    return device.read(CONFIG, 0, 256), device.read(BAR0, 0x2000, 32), device.read(BAR0, 0x10, 0x48 - 0x10)


def test_no_header_is_believed(uuid: str, stream: bytes) -> None:
    """Each refusal leaves the state ERROR, in which nothing works. A reset ends it, and nothing of the stream is
    left."""
    header, rest = stream[: Header.BYTES], stream[Header.BYTES :]
    # with a legal value, so that only the checksum detects it
    streams = {"flipped bit of run_ns": header[:56] + bytes([header[56] ^ 1]) + header[57:]}
    for name, change in BAD_HEADERS.items():
        bad = Header.of(stream)
        change(bad)
        streams[name] = bad.pack()
    with opened(uuid) as device:
        fresh = power_on(device)
        for name, data in streams.items():
            with pytest.raises(OSError, match=REFUSALS.get(name, BAD_STREAM)):
                restore(device, data + rest)
            with pytest.raises(OSError, match=BAD_STREAM):
                set_state(device, STOP)
            assert state(device) == ERROR, name
            assert power_on(device) == fresh, name
            device.reset()
            assert state(device) == RUNNING
            assert device.register(REG_STATUS) & 3 == 0


def test_what_a_device_can_have_become_is_taken(uuid: str, stream: bytes) -> None:
    """Valid values up to the limits of each field; the refused ones are just beyond. A second stop saves the same
    stream."""
    with opened(uuid) as device:
        for name, change in GOOD_HEADERS.items():
            good = Header.of(stream)
            change(good)
            restore(device, good.pack() + stream[Header.BYTES :], piece=1 << 24)
            again = Header.of(save(device))
            assert (again.abi, again.operations) >= (good.abi, good.operations), name
            again.abi, again.operations = good.abi, good.operations
            assert again == good, name
            device.reset()


def memory_sums(device: Device) -> list[int]:
    """Checksums of device memory, one per megabyte, computed by the device itself, which is enabled for this and
    reset."""
    guest = Guest()
    guest.attach(device)
    guest.enable(device)
    guest.submit(
        device,
        *[descriptor(CRC32C, flags=SRC_DEVICE, src=at, args=[1 << 20]) for at in range(0, MEMORY_BYTES, 1 << 20)],
    )
    guest.wait(device)
    sums = [guest.completion(number).result for number in range(MEMORY_BYTES >> 20)]
    device.reset()
    device.unmap(0, 1 << 40)
    return sums


def test_who_completes_a_damaged_stream_is_told_by_that_write(uuid: str, stream: bytes) -> None:
    """This holds for a write of any size."""
    with opened(uuid) as device:
        fd = set_state(device, RESUMING)
        try:
            with pytest.raises(OSError, match=BAD_STREAM):
                os.write(fd, stream[:-1] + bytes([stream[-1] ^ 0x80]))
        finally:
            os.close(fd)


def test_nothing_stays_of_a_damaged_stream(uuid: str, stream: bytes) -> None:
    """Nor is anything left of a stream whose restore was given up, whichever part had been written."""
    header, memory, trailer = stream[: Header.BYTES], b"\xc3" * MEMORY_BYTES, stream[-4:]
    with opened(uuid) as device:
        zeros = memory_sums(device)
        for name, data in {
            "nothing": b"",
            "half a header": header[:100],
            "no memory": header,
            "half the memory": header + memory[: MEMORY_BYTES // 2],
            "no trailer": header + memory,
            "damaged memory": header + memory + trailer,
            "damaged trailer": stream[:-1] + bytes([trailer[-1] ^ 0x80]),
        }.items():
            fd = set_state(device, RESUMING)
            with pytest.raises(OSError, match=BAD_STREAM) if name.startswith("damaged") else nullcontext():
                migration.write_all(fd, data, 1 << 24)  # the writer gets an error; the start of a VM cannot be refused
            os.close(fd)
            with pytest.raises(OSError, match=BAD_STREAM):
                set_state(device, STOP)
            assert state(device) == ERROR, name
            device.reset()
        assert memory_sums(device) == zeros
        with pytest.raises(OSError, match=BAD_STREAM):
            restore(device, stream + b"\0", piece=1 << 24)
        assert state(device) == RESUMING
        device.reset()
        fd = set_state(device, RESUMING)
        migration.write_all(fd, header + memory[: MEMORY_BYTES // 2], 1 << 24)
        device.reset()
        os.close(fd)
        assert memory_sums(device) == zeros
        restore(device, stream)
        set_state(device, RUNNING)
        device.reset()
        assert memory_sums(device) == zeros


def test_a_slice_of_another_size_takes_nothing(gpu: Gpu, stream: bytes) -> None:
    with opened(gpu.slice("blue", memory="mem64m")) as device:
        with pytest.raises(OSError, match=OTHER_SIZE):
            restore(device, stream)
        device.reset()
        guest = Guest()
        guest.attach(device)
        guest.enable(device)
        guest.submit(device, delay(10))
        guest.wait(device)


def test_writers_at_the_same_time_gain_nothing(uuid: str, stream: bytes) -> None:
    """Each piece is written as a whole, in random order; the result is refused unless it is right."""
    with opened(uuid) as device:
        fd = set_state(device, RESUMING)

        def write() -> None:
            with suppress(OSError):
                migration.write_all(fd, stream, 4096)

        writers = [threading.Thread(target=write) for _ in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(timeout=60)
        os.close(fd)
        with suppress(OSError):
            set_state(device, STOP)
        assert state(device) in (STOP, ERROR)
        device.reset()
        assert state(device) == RUNNING
