# SPDX-License-Identifier: Apache-2.0
"""Allocations that fail on demand, on kernels that can do it (CONFIG_FAULT_INJECTION).

`each_failure` lets an action meet the failure of its first allocation, of its second, and so on, until it needs no
more of them. Copies from and to a process count as allocations.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vgpumgr.errors import RefusedError

DEBUGFS = Path("/sys/kernel/debug")
OWN = Path("/proc/thread-self/fail-nth")
KINDS = ("failslab", "fail_page_alloc", "fail_usercopy")
# Allocations that may sleep fail as well. Each failure is told in the log with its stack, but those of callers that
# say __GFP_NOWARN.
SETTINGS = {
    "ignore-gfp-wait": "N",
    "ignore-gfp-highmem": "N",
    "min-order": "0",
    "verbose": "2",
    "verbose_ratelimit_interval_ms": "0",
    "stacktrace-depth": "32",
}
# Without memory; a failed copy; netlink that cannot queue an answer.
WITHOUT_MEMORY = {errno.ENOMEM, errno.EFAULT, errno.ENOBUFS}
# No action needs more: an endless loop is a defect of the test.
MOST = 3000


def text_of(module: str) -> tuple[int, int]:
    """Where the code of a module lies."""
    lines = (line.split() for line in Path("/proc/kallsyms").read_text().splitlines() if line.endswith(f"[{module}]"))
    places = [int(address, 16) for address, kind, *_ in lines if kind in "tT"]
    return min(places), (max(places) | 0xFFF) + 1


@contextmanager
def failures_possible(within: tuple[int, int]) -> Iterator[None]:
    """Let every allocation fail when it is told to that is made by code at `within`, or by what that calls.

    Skips the test on other kernels.
    """
    if not OWN.exists():
        pytest.skip("this kernel cannot let allocations fail (CONFIG_FAULT_INJECTION, CONFIG_FAILSLAB)")
    start, end = within
    settings = {**SETTINGS, "require-start": f"{start:#x}", "require-end": f"{end:#x}"}
    before: dict[Path, str] = {}
    try:
        for kind in KINDS:
            for name, value in settings.items():
                path = DEBUGFS / kind / name
                if path.exists():
                    before[path] = path.read_text().strip()
                    path.write_text(value)
        assert before, "debugfs is not mounted"
        yield
    finally:
        for path, value in before.items():
            path.write_text(value)


@contextmanager
def failing(number: int) -> Iterator[Callable[[], bool]]:
    """Let the allocation `number` of this thread fail; yields whether it did."""
    file = os.open(OWN, os.O_RDWR)

    def left() -> int:
        try:
            return int(os.pread(file, 20, 0))
        except OSError:  # that was the failure: this copy
            return int(os.pread(file, 20, 0))

    def stop() -> None:
        try:
            os.pwrite(file, b"0", 0)
        except OSError:
            os.pwrite(file, b"0", 0)

    try:
        os.pwrite(file, str(number).encode(), 0)
        yield lambda: left() == 0
    finally:
        stop()
        os.close(file)


def each_failure(act: Callable[[], object], *, undo: Callable[[], object], same: Callable[[], object]) -> int:
    """Act with each allocation failing in turn; return how many could.

    An action that failed has changed nothing that `same` sees and says that there was no memory; one that got over
    the failure is undone. So is one whose answer netlink could not deliver (ENOBUFS).
    """
    before = same()
    for number in range(1, MOST):
        refused: OSError | RefusedError | MemoryError | None = None
        with failing(number) as has_failed:
            try:
                act()
            except (OSError, RefusedError, MemoryError) as error:
                refused = error
            met = has_failed()
        if refused is None:
            undo()
        else:
            assert met, f"refused without any failure: {refused!r}"
            why = getattr(refused, "errno", errno.ENOMEM)
            assert why in WITHOUT_MEMORY, f"allocation {number}: {refused!r}"
            if why == errno.ENOBUFS and same() != before:
                undo()
        assert same() == before, f"allocation {number} failed ({refused!r}) and left something behind"
        if not met:
            return number - 1
    raise AssertionError(f"more than {MOST} allocations")
