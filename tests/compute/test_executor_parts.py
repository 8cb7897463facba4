# SPDX-License-Identifier: Apache-2.0
"""What broker, supervisor and vgpu-executor share: headers of windows, rates, and bounded log lines."""

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

import pytest

from tests.compute.executor_rig import COMPUTE, LOST, PAGE, REASON_AT, WINDOW_MAGIC, Window, build

SECOND = 10**9
NEVER = 2**64 - 1
BEGUN = struct.Struct("=IIQ")


class Rate(ctypes.Structure):
    """struct vgpu_rate"""

    _fields_ = [(name, ctypes.c_uint64) for name in ("interval_ns", "burst", "credit_ns", "at_ns")]


class Notice(ctypes.Structure):
    """struct vgpu_notice"""

    _fields_ = [(name, ctypes.c_uint64) for name in ("until_ns", "left_out")]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    sources = [COMPUTE / "executor" / f"{name}.c" for name in ("header", "rate", "notice")]
    output = tmp_path_factory.mktemp("parts") / "parts.so"
    library = ctypes.CDLL(str(build(output, *sources, flags=("-shared", "-fPIC"))))
    for name in ("vgpu_rate_take", "vgpu_notice_due_ns", "vgpu_notice_take"):
        getattr(library, name).restype = ctypes.c_uint64
    library.vgpu_notice_may.restype = ctypes.c_bool
    return library


@pytest.fixture
def memory() -> Iterator[int]:
    """An unused window."""
    descriptor = os.memfd_create("window")
    os.ftruncate(descriptor, 4 << 20)
    yield descriptor
    os.close(descriptor)


def begin(parts: ctypes.CDLL, memory: int) -> int:
    return int(parts.vgpu_header_begin(memory, ctypes.c_uint64(4 << 20)))


def test_a_new_window_gets_a_header(parts: ctypes.CDLL, memory: int) -> None:
    assert begin(parts, memory) == 0
    assert os.pread(memory, BEGUN.size, 0) == BEGUN.pack(WINDOW_MAGIC, 1, 4 << 20)
    assert not any(os.pread(memory, PAGE, BEGUN.size))


@pytest.mark.parametrize("at", [0, 64, 128, REASON_AT, PAGE - 1])
def test_a_window_with_something_in_its_header_is_not_begun(parts: ctypes.CDLL, memory: int, at: int) -> None:
    os.pwrite(memory, b"\1", at)
    before = os.pread(memory, PAGE, 0)
    assert begin(parts, memory) == errno.EBUSY
    assert os.pread(memory, PAGE, 0) == before


def test_a_window_whose_pages_are_gone_is_an_error_and_no_signal(parts: ctypes.CDLL, memory: int) -> None:
    os.ftruncate(memory, 0)
    assert begin(parts, memory) == errno.EFAULT
    parts.vgpu_header_lose(memory, b"the slice was reset")
    parts.vgpu_header_lose(-1, b"it has no window")


def test_a_lost_window_tells_why_and_wakes_whoever_sleeps(parts: ctypes.CDLL) -> None:
    window = Window()
    before = bytes(window.memory[:PAGE])
    parts.vgpu_header_lose(window.descriptor, b"x" * 500)
    assert window.state == LOST
    assert window.reason == "x" * 191
    changed = [at for at in range(0, REASON_AT, 4) if before[at : at + 4] != window.memory[at : at + 4]]
    assert changed == [64, 128 + 196, 384 + 132]  # child, request.space, reply.bell


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (9, b"", "the child was ended by signal 9"),
        (11 | 0x80, b"", "the child was ended by signal 11"),
        (0x100, b"no library", "the child exited with status 1: no library"),
        (9, b"y" * 190, "the child was ended by signal 9: " + "y" * 120),
    ],
)
def test_how_a_child_ended_is_one_sentence(parts: ctypes.CDLL, status: int, reason: bytes, text: str) -> None:
    said = ctypes.create_string_buffer(192)
    parts.vgpu_exit_text(said, status, reason)
    assert said.value.decode() == text


def take(parts: ctypes.CDLL, rate: Rate, now_ns: int) -> int:
    return int(parts.vgpu_rate_take(ctypes.byref(rate), ctypes.c_uint64(now_ns)))


def opened(parts: ctypes.CDLL, interval_ns: int, burst: int) -> Rate:
    rate = Rate()
    arguments = (ctypes.c_uint64(number) for number in (interval_ns, burst, SECOND))
    parts.vgpu_rate_open(ctypes.byref(rate), *arguments)
    return rate


def test_a_rate_has_a_burst_and_then_one_in_each_interval(parts: ctypes.CDLL) -> None:
    rate = opened(parts, 100, 3)
    assert [take(parts, rate, SECOND) for _ in range(4)] == [0, 0, 0, 100]
    assert take(parts, rate, SECOND + 40) == 60
    assert take(parts, rate, SECOND + 100) == 0
    # At most one burst is saved up.
    assert [take(parts, rate, 2 * SECOND) for _ in range(4)] == [0, 0, 0, 100]


def test_what_was_taken_counts_after_a_change_of_the_rate(parts: ctypes.CDLL) -> None:
    rate = opened(parts, 100, 4)
    assert [take(parts, rate, SECOND) for _ in range(3)] == [0, 0, 0]
    changed = (ctypes.c_uint64(number) for number in (5000, 4, SECOND))
    parts.vgpu_rate_change(ctypes.byref(rate), *changed)
    assert [take(parts, rate, SECOND) for _ in range(2)] == [0, 5000]


def test_one_line_a_second_is_let_through_and_the_others_are_counted(parts: ctypes.CDLL) -> None:
    notice = Notice()
    here = ctypes.byref(notice)

    def may(now_ns: int) -> bool:
        return bool(parts.vgpu_notice_may(here, ctypes.c_uint64(now_ns)))

    def left_out(now_ns: int) -> int:
        return int(parts.vgpu_notice_take(here, ctypes.c_uint64(now_ns)))

    def due_ns() -> int:
        return int(parts.vgpu_notice_due_ns(here))

    assert may(5 * SECOND)
    assert due_ns() == NEVER
    assert [may(5 * SECOND + n) for n in (0, 1, SECOND - 1)] == [False] * 3
    assert due_ns() == 6 * SECOND
    assert left_out(6 * SECOND - 1) == 0
    # The count comes before the next line, and counts as the line of that second.
    assert not may(6 * SECOND)
    assert left_out(6 * SECOND) == 4
    assert left_out(9 * SECOND) == 0
    assert not may(7 * SECOND - 1)
    assert left_out(7 * SECOND) == 1
    assert may(8 * SECOND)
