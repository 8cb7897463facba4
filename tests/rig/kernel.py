# SPDX-License-Identifier: Apache-2.0
"""The kernel of this lab host: how slow it is, which features it lacks, and its log."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

DEBUG = os.environ.get("LAB_KERNEL") in ("debug", "uml-debug")
PATIENCE = 10 if DEBUG else 1
"""The factor for time limits on this kernel, in tests whose limit only prevents an endless wait."""

_PF_EXITING = 0x4  # include/linux/sched.h
_FLAGS = 6  # of proc(5)'s stat, counted from the state


def lacking(what: str) -> NoReturn:
    """Skip the test, which needs a missing feature; fail it on a debug kernel, which is made for such tests."""
    if DEBUG:
        pytest.fail(f"a debug kernel is there for this, but here is no {what}")
    pytest.skip(f"here is no {what}")


def threads(name: str) -> list[str]:
    """Ids of the kernel threads whose name begins with this, except those that are about to end."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            before, _, after = path.read_text().rpartition(") ")
            if before.partition(" (")[2].startswith(name) and not int(after.split()[_FLAGS]) & _PF_EXITING:
                found.append(path.parent.name)
    return found


def kernel_log() -> str:
    """The log since boot, as far back as the kernel keeps it."""
    return subprocess.run(["dmesg"], check=True, capture_output=True, text=True).stdout


@contextmanager
def log_grows() -> Iterator[Callable[[], str]]:
    """Yields a function that returns the log since the start, as far back as the kernel keeps it."""
    file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(file, 0, os.SEEK_END)

    def records() -> Iterator[str]:
        while True:
            try:
                record = os.read(file, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # the oldest messages are overwritten
                continue
            yield record.partition(";")[2].partition("\n")[0].replace(r"\x0a", "\n")

    try:
        yield lambda: "\n".join(records())
    finally:
        os.close(file)
