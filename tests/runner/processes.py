# SPDX-License-Identifier: Apache-2.0
"""Runs each command in a new session, and ends it with all processes that it started."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from os import killpg
from pathlib import Path

from tests.runner.output import Output

GRACE_S = 20


class Processes:
    """The commands that run in `directory`; safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()  # for the members below
        self._stopped = False
        self._running: list[subprocess.Popen[bytes]] = []

    def stop(self) -> None:
        """Ends all running commands; no command starts after this."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        end(running)

    @property
    def stopped(self) -> bool:
        with self._lock:
            return self._stopped

    def run(self, command: Sequence[str], output: Output, limit_s: float) -> int:
        """Returns the exit status. Ends the whole process group at the limit and when stopped.

        Raises TimeoutExpired at the limit, and OSError if the command does not start.
        """
        with self._lock:
            if self._stopped:
                return 128 + signal.SIGTERM
            process = subprocess.Popen(
                command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment(self._directory),
            )
            self._running.append(process)
        assert process.stdout is not None
        # A daemon thread: a process that outlives the command and holds its pipe must not block this runner.
        copier = threading.Thread(target=output.copy, args=(process.stdout,), daemon=True)
        copier.start()
        try:
            return process.wait(timeout=max(limit_s, 0))
        finally:
            end([process])
            with self._lock:
                self._running.remove(process)
            copier.join(timeout=5)


def environment(directory: Path) -> dict[str, str]:
    """Returns the environment of commands: Python stores bytecode below build/, whatever the caller's settings are.

    A lane starts hundreds of interpreters. Without this, each would compile our modules, and pytest all tests, again.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": str(directory.resolve() / "build" / "pycache")}


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends processes with their groups. It asks each only once, because a second signal would interrupt the clean-up,
    for example the lab's.
    """
    _signal_groups(processes, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(until - time.monotonic(), 0))
    _signal_groups(processes, signal.SIGKILL)
    for process in processes:
        process.wait()


def _signal_groups(processes: Iterable[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            killpg(process.pid, number)
