# SPDX-License-Identifier: Apache-2.0
"""Allocations that fail on demand, on kernels that support it (CONFIG_FAULT_INJECTION).

`each_failure` repeats an action and makes its first allocation fail, then its second, and so on, until the action needs
no more of them. Copies from and to a process count as allocations.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.rig.kernel import lacking
from vgpumgr.errors import RefusedError

DEBUGFS = Path("/sys/kernel/debug")
SYMBOLS = Path("/proc/kallsyms")
OWN = "thread-self"
OF_MEMORY = ("failslab", "fail_page_alloc")
KINDS = (*OF_MEMORY, "fail_usercopy")
# Allocations that may sleep fail as well. The log has a stack for each failure, except for callers that pass
# __GFP_NOWARN.
SETTINGS = {
    "ignore-gfp-wait": "N",
    "ignore-gfp-highmem": "N",
    "min-order": "0",
    "verbose": "2",
    "verbose_ratelimit_interval_ms": "0",
    "stacktrace-depth": "32",
}
# Out of memory; a failed copy; netlink that cannot queue an answer.
WITHOUT_MEMORY = {errno.ENOMEM, errno.EFAULT, errno.ENOBUFS}
# copy_process() returns EAGAIN when there is no memory for the parts that only kernel threads have.
THREAD_SAYS = WITHOUT_MEMORY | {errno.EAGAIN}
# No action needs more allocations: an endless loop is a defect of the test.
MOST = 3000
_AGAIN = 16


def text_of(module: str) -> tuple[int, int]:
    """The address range of a module's code."""
    lines = (line.split() for line in SYMBOLS.read_text().splitlines() if line.endswith(f"[{module}]"))
    places = [int(address, 16) for address, kind, *_ in lines if kind in "tT"]
    return min(places), (max(places) | 0xFFF) + 1


def text_of_function(name: str) -> tuple[int, int]:
    """The address range of a function of the kernel or of one of its modules."""
    symbols = [line.split() for line in SYMBOLS.read_text().splitlines()]
    (start,) = (int(address, 16) for address, kind, symbol, *_ in symbols if symbol == name and kind in "tT")
    return start, min(place for address, *_ in symbols if (place := int(address, 16)) > start)


def skip_if_impossible() -> None:
    """Skip the test on kernels that cannot make allocations fail; the debug kernel must be able to."""
    if not Path(f"/proc/{OWN}/fail-nth").exists():
        lacking("allocation that fails on demand (CONFIG_FAULT_INJECTION, CONFIG_FAILSLAB)")


@contextmanager
def failures_possible(within: tuple[int, int], *, but: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """Fail every allocation that the code at `within`, or a function it calls, makes while a failure is armed.

    Allocations made by code at `but` succeed.
    """
    settings = dict(SETTINGS)
    for name, (start, end) in (("require", within), ("reject", but)):
        settings |= {f"{name}-start": f"{start:#x}", f"{name}-end": f"{end:#x}"}
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
def all_failing() -> Iterator[Callable[[], int]]:
    """Fail every allocation that may fail (see `failures_possible`), whoever makes it; yields the number of
    failures."""
    most = 1_000_000
    settings = {"interval": "1", "space": "0", "task-filter": "N", "times": f"{most}", "probability": "100"}
    folders = [DEBUGFS / kind for kind in OF_MEMORY]
    before = {folder / name: (folder / name).read_text().strip() for folder in folders for name in settings}
    for path in before:
        path.write_text(settings[path.name])
    try:
        yield lambda: sum(most - int((folder / "times").read_text()) for folder in folders)
    finally:
        for path, value in reversed(before.items()):
            path.write_text(value)


@contextmanager
def failing(number: int, *, of: Sequence[str] = (OWN,)) -> Iterator[Callable[[], bool]]:
    """Fail allocation number `number` of this thread, or of each thread in `of`; yields whether one failed."""
    with ExitStack() as stack:
        files = [os.open(f"/proc/{thread}/fail-nth", os.O_RDWR) for thread in of]
        for file in files:
            stack.callback(os.close, file)

        def left(file: int) -> int:
            try:
                return int(os.pread(file, 20, 0))
            except OSError:  # this copy was the allocation that failed
                return int(os.pread(file, 20, 0))

        def leave(file: int, number: int) -> None:
            try:
                os.pwrite(file, str(number).encode(), 0)
            except OSError:
                os.pwrite(file, str(number).encode(), 0)

        for file in files:
            stack.callback(leave, file, 0)
            leave(file, number)
        yield lambda: any(left(file) == 0 for file in files)


def numbers(met: Sequence[bool]) -> Iterator[int]:
    """Yield 1, 2, ... until `met`, which the caller fills, says that a number was not reached. Then repeat the last
    few.

    Code that finds cached memory makes fewer allocations than the time before. Its later allocations then have smaller
    numbers and could be missed.
    """
    for number in range(1, MOST):
        yield number
        if not met[-1]:
            yield from range(max(1, number - _AGAIN), number)
            return
    raise AssertionError(f"more than {MOST} allocations")


def each_failure(
    act: Callable[[], object],
    *,
    undo: Callable[[], object],
    same: Callable[[], object],
    of: Sequence[str] = (OWN,),
    says: Collection[int] = WITHOUT_MEMORY,
) -> int:
    """Repeat an action with each of its allocations failing in turn; return how many could fail.

    The allocations are those of this thread, or of the threads in `of`. An action that failed must change nothing that
    `same` sees, and must report one of the error numbers `says`. An action that succeeds despite the failure is undone,
    and so is an action whose answer netlink could not deliver (ENOBUFS).
    """
    before = same()
    met: list[bool] = []
    count = 0
    for number in numbers(met):
        refused: OSError | RefusedError | MemoryError | None = None
        with failing(number, of=of) as has_failed:
            try:
                act()
            except (OSError, RefusedError, MemoryError) as error:
                refused = error
            met.append(has_failed())
        if met[-1]:
            count = max(count, number)
        if refused is None:
            undo()
        else:
            assert met[-1], f"refused without any failure: {refused!r}"
            why = getattr(refused, "errno", errno.ENOMEM)
            assert why in says, f"allocation {number}: {refused!r}"
            if why == errno.ENOBUFS and same() != before:
                undo()
        after = same()
        assert after == before, f"allocation {number} failed ({refused!r}) and left {after} of {before}"
    return count
