# SPDX-License-Identifier: Apache-2.0
"""The kernel of this lab host: how long it takes, what it lacks, and what it has said."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import pytest

DEBUG = os.environ.get("LAB_KERNEL") in ("debug", "uml-debug")
PATIENCE = 10 if DEBUG else 1
"""How many times as long this kernel may take, where a test only waits so that it does not wait for ever."""

_PF_EXITING = 0x4  # include/linux/sched.h
_FLAGS = 6  # of proc(5)'s stat, counted from the state


def lacking(what: str) -> NoReturn:
    """Skip the test, which needs that; on a debug kernel, which is there for such tests, fail it."""
    if DEBUG:
        pytest.fail(f"a debug kernel is there for this, but here is no {what}")
    pytest.skip(f"here is no {what}")


def threads(name: str) -> list[str]:
    """Ids of the kernel's threads whose name begins so, but of those that do no more than end."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            before, _, after = path.read_text().rpartition(") ")
            if before.partition(" (")[2].startswith(name) and not int(after.split()[_FLAGS]) & _PF_EXITING:
                found.append(path.parent.name)
    return found


def kernel_log() -> str:
    """Since it booted, unless that is longer than it keeps."""
    return subprocess.run(["dmesg"], check=True, capture_output=True, text=True).stdout


@contextmanager
def log_grows() -> Iterator[Callable[[], str]]:
    """Yields what the kernel has said since, up to each call, unless that is longer than it keeps."""
    file = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(file, 0, os.SEEK_END)

    def records() -> Iterator[str]:
        while True:
            try:
                record = os.read(file, 8192).decode(errors="replace")
            except BlockingIOError:
                return
            except BrokenPipeError:  # the oldest are overwritten
                continue
            yield record.partition(";")[2].partition("\n")[0].replace(r"\x0a", "\n")

    try:
        yield lambda: "\n".join(records())
    finally:
        os.close(file)
