# SPDX-License-Identifier: Apache-2.0
"""The executor of a slice (vgpu-executor) from outside: started, killed, started again."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.rig.drawing import COMPUTE
from vgpumgr.broker.places import pocl_library

LOGS = Path("/var/log/vgpu-executors")
END_S = 60.0


class SliceExecutor:
    """The executor of one slice, in one process after another. Not for use by several threads."""

    def __init__(self, uuid: str, *options: str) -> None:
        LOGS.mkdir(exist_ok=True)
        self.uuid = uuid
        self.log_path = LOGS / f"{uuid}.log"
        self._command = [
            str(COMPUTE / "vgpu-executor"),
            "--slice", uuid,
            "--library", str(pocl_library()),
            "--supervisor", str(COMPUTE / "vgpu-supervisor"),
            "--child", str(COMPUTE / "vgpu-child"),
            *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the process before has ended."""
        assert not self.running()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "never started"
        return self._process.pid

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait(self) -> int:
        """Wait for its end; returns the exit status, negative for a signal. Raises subprocess.TimeoutExpired."""
        assert self._process is not None, "never started"
        return self._process.wait(END_S)

    def end(self) -> None:
        """Terminate it the way systemd does."""
        if self.running():
            os.kill(self.pid, signal.SIGTERM)
        if self._process is not None:
            self.wait()

    def supervisor(self) -> int:
        """The PID of its supervisor."""
        (found,) = children_of(self.pid, "vgpu-supervisor")
        return found

    def children(self) -> list[int]:
        """The processes that serve its guest's programs, without compilers."""
        supervisors = children_of(self.pid, "vgpu-supervisor") if self.running() else []
        found = [pid for supervisor in supervisors for pid in children_of(supervisor, "vgpu-child")]
        return [pid for pid in found if b"--compile\0" not in arguments(pid)]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


def children_of(parent: int, name: str) -> list[int]:
    """The running children of a process that have this name, in ascending order."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            before, _, after = stat.read_text().rpartition(") ")
            state, parent_pid, *_ = after.split()
            # The kernel keeps 15 characters of a name.
            if (before.partition(" (")[2], int(parent_pid)) == (name[:15], parent) and state != "Z":
                found.append(int(stat.parent.name))
    return sorted(found)


def arguments(pid: int) -> bytes:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
