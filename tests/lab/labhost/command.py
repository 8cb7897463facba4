# SPDX-License-Identifier: Apache-2.0
"""Child processes, none of which outlives this tool; steps of a build write a log."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from labhost.errors import BuildError

_PR_SET_PDEATHSIG = 1
_LOG_TAIL_BYTES = 3000


def spawn(
    command: Sequence[str | Path],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    stdin: int = subprocess.DEVNULL,
    environ: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a child, in its own session, which the kernel kills when this process dies for any reason.

    The signal comes when the thread that forked ends (prctl(2)): call this from the main thread.
    """
    return subprocess.Popen(
        [str(word) for word in command],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=None if environ is None else {**os.environ, **environ},
        start_new_session=True,
        preexec_fn=_die_with_parent(),  # noqa: PLW1509 - this tool has no threads
    )


def _die_with_parent() -> Callable[[], None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arm() -> None:
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
            os._exit(127)

    return arm


def build_step(
    command: Sequence[str | Path],
    *,
    name: str,
    log: Path,
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run one step of a build with its output in `log`.

    Raises BuildError with the end of the log when the step fails or takes longer than `timeout_s`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = spawn(command, stdout=output, stderr=subprocess.STDOUT, environ=environ)
        try:
            status = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            output.write(f"\nstopped after {timeout_s:.0f} s\n".encode())
            status = None
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    if status != 0:
        raise BuildError(name, log, tail(log))


def tail(file: Path, limit_bytes: int = _LOG_TAIL_BYTES) -> str:
    """The end of a text file, cut at a line; empty if there is no such file."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return ""
    if len(data) > limit_bytes:
        data = data[-limit_bytes:].partition(b"\n")[2]
    return data.decode(errors="replace")
