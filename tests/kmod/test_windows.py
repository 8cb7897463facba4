# SPDX-License-Identifier: Apache-2.0
"""Windows: memory that a guest shares with an executor's children, in BAR2 of a slice whose engine lends."""

import ctypes
import errno
import mmap
import os
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.rig.gpu import Gpu, poll
from tests.rig.leasing import WINDOW, Child, Event, State, bound, child, refused
from tests.rig.ring import DOORBELL, ERROR, REG_STATUS, Guest
from tests.rig.vfio import BAR0, MSIX, Device, eventfd, opened, taken

BAR2 = 2
WINDOWS, WINDOW_BYTES, OPEN, CLOSE, STATES, EVENTS = 0x70, 0x74, 0x78, 0x7C, 0x80, 0x84
FEATURES, HAS_WINDOWS = 0x64, 2
BELL = 0x1010
CONTROL, RESET = 0x10, 2


@dataclass(frozen=True)
class Function:
    """A slice from its guest's view."""

    device: Device

    def states(self) -> list[State]:
        word = self.device.register(STATES)
        return [State(word >> 2 * n & 3) for n in range(16)]

    def state(self, number: int) -> State:
        return self.states()[number]

    def open(self, number: int) -> None:
        self.device.set_register(OPEN, number)

    def close(self, number: int) -> None:
        self.device.set_register(CLOSE, number)

    def bell(self, number: int) -> None:
        self.device.set_register(BELL, number)

    def events(self) -> int:
        return self.device.register(EVENTS)

    def map(self, number: int) -> mmap.mmap:
        size = self.device.register(WINDOW_BYTES)
        at = self.device.region(BAR2)[1] + number * size
        return mmap.mmap(self.device.fd, size, offset=at)


@contextmanager
def function(uuid: str) -> Iterator[Function]:
    with opened(uuid) as device:
        device.master()
        yield Function(device)


@pytest.fixture
def lending(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.leasing():
        gpu.tenant("blue", weight=100, timeslice_us=100_000)
        yield gpu


@pytest.fixture
def uuid(lending: Gpu) -> str:
    return lending.slice("blue")


def test_only_an_engine_that_lends_has_windows(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    with opened(uuid) as device:
        assert device.region(BAR2)[0] == 0
        assert not device.register(FEATURES) & HAS_WINDOWS
        assert [device.register(at) for at in (WINDOWS, WINDOW_BYTES, STATES, EVENTS)] == [0] * 4
        device.set_register(OPEN, 0)
        assert device.register(STATES) == 0
        assert refused(mmap.mmap, device.fd, 4096, offset=device.region(BAR2)[1]) == "EINVAL"
    assert refused(bound(uuid).__enter__) == "ENOTSUP"


def test_what_a_guest_finds(uuid: str) -> None:
    with function(uuid) as guest:
        device = guest.device
        assert device.register(FEATURES) & HAS_WINDOWS
        assert (device.register(WINDOWS), device.register(WINDOW_BYTES)) == (16, 4 << 20)
        assert device.region(BAR2)[0] == 64 << 20
        assert guest.states() == [State.FREE] * 16
        device.write(7, 0x18, b"\xff" * 8)
        assert device.read(7, 0x18, 8) == struct.pack("<II", 0xFC00_000C, 0xFFFF_FFFF)
        assert device.read(BAR2, 0, 8) == b"\xff" * 8
        for number in range(16):
            guest.open(number)
        guest.open(16)
        assert guest.states() == [State.OPEN] * 16
        # no child has them
        for number in range(16):
            guest.close(number)
        assert guest.states() == [State.FREE] * 16


def test_guest_and_child_see_the_same_memory_and_ring_for_each_other(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        assert (executor.windows, executor.window_bytes, executor.memory_bytes) == (16, 4 << 20, 16 << 20)
        assert executor.poll() == 0
        vector = eventfd()
        guest.device.connect(MSIX, [vector])
        guest.open(3)
        assert executor.event() == (Event.OPENED, 3, 0)
        with child(executor, 3) as served, guest.map(3) as seen, guest.map(4) as other:
            seen[:5] = b"guest"
            assert served.window[:5] == b"guest"
            served.window[-5:] = b"child"
            assert (seen[-5:], other[-5:]) == (b"child", bytes(5))
            assert served.signalled(0) == 0
            for _ in range(3):
                guest.bell(3)
            guest.bell(4)
            assert served.signalled() == 3
            for _ in range(3):
                served.ring()
            assert taken(vector) == 1
            assert guest.events() == 1 << 3
            executor.ring(3)
            assert (taken(vector), guest.events(), guest.events()) == (1, 1 << 3, 0)


def test_a_window_is_free_again_and_zeroed_when_nothing_of_its_child_is_left(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        vector = eventfd()
        guest.device.connect(MSIX, [vector])
        guest.open(0)
        executor.event()
        with child(executor, 0) as served, guest.map(0) as seen:
            seen[0] = served.window[4096] = 7
            guest.close(0)
            assert guest.state(0) is State.CLOSING
            assert executor.event() == (Event.CLOSED, 0, 0)
            guest.open(0)
            assert guest.state(0) is State.CLOSING
            assert refused(executor.lost, 0) == "ENXIO"
            assert (taken(vector), seen[0]) == (0, 7)
            served.let_go()
            executor.closed(0)
            assert (taken(vector), guest.events(), guest.state(0)) == (1, 1, State.FREE)
            assert served.signalled() == -1
            assert (seen[0], seen[4096]) == (0, 0)
        guest.open(0)
        assert executor.event() == (Event.OPENED, 0, 0)


def test_a_window_whose_child_has_ended_is_lost_until_its_guest_closes_it(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(5)
        executor.event()
        with child(executor, 5) as served:
            served.let_go()
            executor.lost(5)
            assert (guest.state(5), guest.events()) == (State.LOST, 1 << 5)
            assert served.signalled() == -1
            assert refused(served.ready) == "ENODEV"
            assert refused(executor.lost, 5) == "ENXIO"
            executor.ring(5)
            guest.close(5)
            # its executor has already reported that nothing is left
            assert guest.state(5) is State.FREE
            assert executor.poll() == 0


def test_what_an_executor_that_dies_leaves_is_for_the_next_one(uuid: str) -> None:
    with function(uuid) as guest:
        children = []
        with bound(uuid) as executor:
            for number in (1, 2):
                guest.open(number)
                executor.event()
                children.append(Child(executor.window(number)))
            guest.open(6)
            guest.close(2)
            os.close(os.dup(executor.fd))
            assert guest.states()[:3] == [State.FREE, State.OPEN, State.CLOSING]
            vector = eventfd()
            guest.device.connect(MSIX, [vector])
        assert (taken(vector), guest.events()) == (1, 2)
        for each in children:
            assert each.signalled() == -1
            each.close()
        assert [guest.state(n) for n in (1, 2, 6)] == [State.LOST, State.CLOSING, State.OPEN]
        guest.close(1)
        assert guest.state(1) is State.CLOSING
        with bound(uuid) as executor:
            assert refused(bound(uuid).__enter__) == "EBUSY"
            events = [executor.event() for _ in range(3)]
            assert events == [(Event.CLOSED, 1, 0), (Event.CLOSED, 2, 0), (Event.OPENED, 6, 0)]
            for number in (1, 2):
                executor.closed(number)
            assert guest.states()[1:3] == [State.FREE] * 2


def test_a_window_is_nobody_elses_as_long_as_any_process_has_its_memory(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)
        executor.event()
        held = Child(executor.window(0))
        guest.close(0)
        executor.event()
        assert refused(executor.closed, 0) == "EBUSY"
        # a mapping alone is enough
        os.close(held.memory)
        held.memory = -1
        assert refused(executor.closed, 0) == "EBUSY"
        assert guest.state(0) is State.CLOSING
        held.close()
        executor.closed(0)
        assert guest.state(0) is State.FREE


def test_a_file_that_was_opened_anew_keeps_a_window_as_well(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)
        executor.event()
        held = Child(executor.window(0))
        again = os.open(f"/proc/self/fd/{held.memory}", os.O_RDONLY)
        held.close()
        guest.close(0)
        executor.event()
        assert refused(executor.closed, 0) == "EBUSY"
        os.close(again)
        executor.closed(0)
        assert guest.state(0) is State.FREE


def lowest_free_fd() -> int:
    fd = os.dup(0)
    os.close(fd)
    return fd


def test_an_executor_that_could_not_get_a_windows_files_may_ask_again(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)
        executor.event()
        free = lowest_free_fd()
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            struct.pack_into("<I", page, 0, 0)
            readable = (ctypes.c_char * 20).from_buffer(page)
            address = ctypes.addressof(readable)
            libc = ctypes.CDLL(None, use_errno=True)
            assert libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ) == 0
            assert libc.ioctl(executor.fd, ctypes.c_ulong(WINDOW), ctypes.c_void_p(address)) == -1
            assert ctypes.get_errno() == errno.EFAULT
            del readable
        assert lowest_free_fd() == free
        guest.bell(0)
        with child(executor, 0) as served:
            assert served.signalled(0) == 0
            guest.bell(0)
            assert served.signalled() == 1


@pytest.mark.parametrize("how", ["register", "vfio", "close"])
def test_a_reset_closes_all_windows_and_ends_the_generation(uuid: str, how: str) -> None:
    with bound(uuid) as executor:
        with function(uuid) as guest:
            for number in (0, 9):
                guest.open(number)
            executor.event()
            with child(executor, 0) as served:
                generation = served.generation()
                if how == "register":
                    guest.device.set_register(CONTROL, RESET)
                elif how == "vfio":
                    guest.device.reset()
                if how != "close":
                    assert guest.states() == [State.CLOSING] + [State.FREE] * 15
                    assert served.generation() == generation + 1
                    assert served.signalled() > 0
                    served.let_go()
                    executor.closed(0)
                    assert guest.states() == [State.FREE] * 16
        if how == "close":
            # the test's own child reported the window lost, so no window is left
            assert executor.poll() == 0
        with function(uuid) as guest, guest.map(0) as seen:
            assert (guest.states(), seen[0]) == ([State.FREE] * 16, 0)


@pytest.mark.parametrize("how", ["error", "reset"])
def test_a_ring_that_ends_leaves_the_executor_and_its_windows(uuid: str, how: str) -> None:
    ring = Guest()
    with function(uuid) as guest, bound(uuid) as executor:
        ring.attach(guest.device)
        ring.enable(guest.device)
        guest.open(0)
        executor.event()
        with child(executor, 0) as served:
            if how == "error":
                guest.device.set_register(DOORBELL, 1 << 20)
                assert guest.device.register(REG_STATUS) & ERROR
                assert guest.state(0) is State.OPEN
                served.ring()
                assert guest.events() == 1
            else:
                guest.device.set_register(CONTROL, RESET)
                assert executor.event() == (Event.CLOSED, 0, 0)
            served.let_go()
        assert not executor.poll() & select.POLLHUP


def test_a_removed_slice_lets_its_executor_go(lending: Gpu) -> None:
    uuid = lending.slice("blue")
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)
        executor.event()
        with child(executor, 0) as served:
            remover = threading.Thread(target=lending.sysfs.remove, args=(uuid,))
            remover.start()
            poll(lambda: bool(executor.poll() & select.POLLHUP))
            assert refused(executor.event) == "ENODEV"
            assert refused(executor.ring, 0) == "ENODEV"
            assert served.signalled() == -1
    remover.join()


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        ("EINVAL", lambda executor: executor.window(16)),
        ("EINVAL", lambda executor: executor.window(0, reserved=1)),
        ("ENXIO", lambda executor: executor.window(0)),
        ("EINVAL", lambda executor: executor.lost(16)),
        ("EINVAL", lambda executor: executor.lost(0, reserved=1)),
        ("ENXIO", lambda executor: executor.lost(0)),
        ("ENXIO", lambda executor: executor.closed(0)),
        ("ENXIO", lambda executor: executor.ring(0)),
        ("EINVAL", lambda executor: executor.gate(0, done=2)),
        ("EINVAL", lambda executor: executor.gate(0, reserved=1)),
        ("EINVAL", lambda executor: os.read(executor.fd, 8)),
        ("EAGAIN", lambda executor: os.read(executor.fd, 16)),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(uuid: str, answer: str, call: object) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        assert refused(call, executor) == answer
        assert guest.states() == [State.FREE] * 16


def test_a_child_cannot_change_its_windows_size_or_its_lease_page(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)
        executor.event()
        assert refused(executor.window, 16) == "EINVAL"
        with child(executor, 0) as served:
            assert refused(executor.window, 0) == "ENXIO"
            for size in (0, 4096, 8 << 20):
                assert refused(os.ftruncate, served.memory, size) == "EPERM"
            assert refused(mmap.mmap, served.lease_file, 4096) == "EACCES"
            for file in (served.lease_file, served.stream):
                assert refused(mmap.mmap, file, 8192, prot=mmap.PROT_READ) == "EINVAL"
            assert refused(os.write, served.stream, b"x") == "EINVAL"
            assert refused(os.read, served.stream, 4) == "EINVAL"
            for request in (
                {"op": 0},
                {"op": 4},
                {"op": 1, "flags": 1},
                {"op": 2, "flags": 8},
                {"op": 1, "reserved": 1},
            ):
                assert refused(served.request, **request) == "EINVAL"
            assert refused(served.request, op=3, flags=1) == "EINVAL"


def test_a_child_cannot_open_its_windows_memory_again(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)
        executor.event()
        with child(executor, 0) as served:
            path = f"/proc/self/fd/{served.memory}"
            script = (
                f"import os; os.fstat({served.memory})\n"
                f"for call in (lambda: os.open({path!r}, os.O_RDONLY), lambda: os.fchmod({served.memory}, 0o777)):\n"
                " try: call(); print('done')\n"
                " except PermissionError: pass\n"
            )
            command = [sys.executable, "-c", script]
            found = subprocess.run(command, user=65534, pass_fds=(served.memory,), check=True, capture_output=True)
            assert found.stdout == b""


def test_a_child_cannot_be_waited_for_by_poll(uuid: str) -> None:
    """A waiter is woken under the engine's lock, and any number of others may wait behind an epoll."""
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)
        executor.event()
        with child(executor, 0) as served, select.epoll() as watch:
            assert refused(watch.register, served.stream, select.EPOLLIN) == "EPERM"
            waiter = select.poll()
            waiter.register(served.stream, select.POLLIN)
            assert waiter.poll(20_000) == [(served.stream, select.POLLIN)]


def test_one_thread_of_a_child_reads_at_a_time(uuid: str) -> None:
    with function(uuid) as guest, bound(uuid) as executor:
        guest.open(0)
        executor.event()
        with ThreadPoolExecutor(2) as threads, child(executor, 0) as served:
            reads = [threads.submit(refused, os.read, served.stream, 8) for _ in range(2)]
            refusals = []
            for read in as_completed(reads, timeout=20):
                refusals.append(read.result())
                guest.bell(0)
            assert refusals == ["EBUSY", ""]


def test_a_vmm_maps_windows_one_by_one_and_shared(uuid: str) -> None:
    with function(uuid) as guest:
        size, at = guest.device.region(BAR2)
        fd = guest.device.fd
        assert refused(mmap.mmap, fd, size, offset=at) == "EINVAL"
        assert refused(mmap.mmap, fd, 8192, offset=at + (4 << 20) - 4096) == "EINVAL"
        assert refused(mmap.mmap, fd, 4096, flags=mmap.MAP_PRIVATE, offset=at) == "EINVAL"
        assert refused(mmap.mmap, fd, 4096, offset=at + size) == "EINVAL"
        assert refused(mmap.mmap, fd, 4096, offset=guest.device.region(BAR0)[1]) == "EINVAL"
        with mmap.mmap(fd, 4096, offset=at + (4 << 20) - 4096) as last, guest.map(0) as whole:
            last[0] = 9
            assert whole[-4096] == 9
