# SPDX-License-Identifier: Apache-2.0
"""Allocations that fail on demand, on kernels that can do it (CONFIG_FAULT_INJECTION).

`each_failure` lets an action meet the failure of its first allocation, of its second, and so on, until it needs no
more of them. Copies from and to a process count as allocations.
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
# copy_process() says EAGAIN when there is no memory for what a kernel thread has beyond others.
THREAD_SAYS = WITHOUT_MEMORY | {errno.EAGAIN}
# No action needs more: an endless loop is a defect of the test.
MOST = 3000
_AGAIN = 16


def text_of(module: str) -> tuple[int, int]:
    """Where the code of a module lies."""
    lines = (line.split() for line in SYMBOLS.read_text().splitlines() if line.endswith(f"[{module}]"))
    places = [int(address, 16) for address, kind, *_ in lines if kind in "tT"]
    return min(places), (max(places) | 0xFFF) + 1


def text_of_function(name: str) -> tuple[int, int]:
    """Where the code of a function of the kernel, or of one of its modules, lies."""
    symbols = [line.split() for line in SYMBOLS.read_text().splitlines()]
    (start,) = (int(address, 16) for address, kind, symbol, *_ in symbols if symbol == name and kind in "tT")
    return start, min(place for address, *_ in symbols if (place := int(address, 16)) > start)


def skip_if_impossible() -> None:
    """Skips the test on kernels that cannot let allocations fail; the debug kernel must."""
    if not Path(f"/proc/{OWN}/fail-nth").exists():
        lacking("allocation that fails on demand (CONFIG_FAULT_INJECTION, CONFIG_FAILSLAB)")


@contextmanager
def failures_possible(within: tuple[int, int], *, but: tuple[int, int] = (0, 0)) -> Iterator[None]:
    """Let every allocation fail when it is told to that is made by code at `within`, or by what that calls.

    None that is made by code at `but`.
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
    """Let every allocation fail that may, see `failures_possible`, whose ever it is; yields how many have."""
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
    """Let the allocation `number` of this thread fail, or of each of those; yields whether one did."""
    with ExitStack() as stack:
        files = [os.open(f"/proc/{thread}/fail-nth", os.O_RDWR) for thread in of]
        for file in files:
            stack.callback(os.close, file)

        def left(file: int) -> int:
            try:
                return int(os.pread(file, 20, 0))
            except OSError:  # that was the failure: this copy
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
    """Give 1, 2, ... until one of them was not met, as the caller notes in `met`, and then the last few once more.

    What finds memory at hand that it had to ask for the time before makes those after it move up, past the number.
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
    """Act with each allocation failing in turn, of this thread or of those; return how many could.

    An action that failed has changed nothing that `same` sees and says that there was no memory, by one of the numbers
    `says`; one that got over the failure is undone. So is one whose answer netlink could not deliver (ENOBUFS).
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
