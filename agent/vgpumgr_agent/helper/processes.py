# SPDX-License-Identifier: Apache-2.0
"""Executors as plain processes, where systemd does not run.

Each has a directory below /run with its launch parameters, its pid, and a mark once it is ready. The next helper finds
the executor by these files. Pids are reused, so a pid counts only if the command line matches.
"""

import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from vgpumgr_agent import faults
from vgpumgr_agent.helper import cgroups
from vgpumgr_agent.helper.executors import READY_WITHIN_S, ExecutorFailedError, Found, Launch, State, running, why

log = logging.getLogger(__name__)

DIRECTORY = Path("/run/vgpumgr-executors")
_LOOK_S = 0.05
_END_S = 8.0
# The shell writes its pid to disk, and joins its cgroup, before it becomes the executor.
_START = 'set -e; [ -z "$2" ] || echo $$ >"$2/cgroup.procs"; echo $$ >"$1"; shift 2; exec "$@"'


@dataclass
class _Started:
    """An executor that this helper has started. `told`: its notify socket; `status`: its last status text."""

    process: subprocess.Popen[bytes]
    told: socket.socket
    began_s: float
    status: str = ""


class Processes:
    """`Executors` without systemd."""

    def __init__(self, directory: Path = DIRECTORY, *, cgroup_mount: Path = cgroups.MOUNT) -> None:
        """`directory`: deleted at the next boot; only root may read it."""
        self._directory = directory
        self._cgroup_mount = cgroup_mount
        self._started: dict[str, _Started] = {}

    def start(self, launch: Launch, *, wait_s: float) -> bool:
        """See `Executors`."""
        directory = self._directory / launch.uuid
        what = json.dumps(asdict(launch), default=str)
        found = self._found(launch.uuid)
        same = _read(directory / "launch") == what
        if not same or found.state is State.FAILED:
            self.stop(launch.uuid)
            self._launch(launch, directory, what)
        elif found.state is State.RUNNING:
            return False
        if wait_s:
            self._wait(launch.uuid, wait_s)
        return True

    def _launch(self, launch: Launch, directory: Path, what: str) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        (directory / "launch").write_text(what)
        cgroup = cgroups.make(self._cgroup_mount, launch)
        told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        command = ["/bin/sh", "-c", _START, "sh", str(directory / "pid"), str(cgroup or ""), *launch.command()]
        environment = {**os.environ, "NOTIFY_SOCKET": str(directory / "notify")}
        try:
            told.bind(str(directory / "notify"))
            process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            told.close()
            raise ExecutorFailedError(f"it cannot be started: {error.strerror or error}") from error
        self._started[launch.uuid] = _Started(process, told, time.monotonic())
        faults.point("execute.launched")

    def _wait(self, uuid: str, wait_s: float) -> None:
        """Wait until an executor is ready, or stop it."""
        deadline = time.monotonic() + wait_s
        while (found := self._found(uuid)).state is State.STARTING and time.monotonic() < deadline:
            started = self._started.get(uuid)
            select.select([started.told] if started else [], [], [], _LOOK_S)
        if found.state is State.RUNNING:
            return
        self.stop(uuid)
        raise ExecutorFailedError(found.reason or f"it was not ready within {wait_s:g} s")

    def stop(self, uuid: str) -> None:
        """See `Executors`."""
        directory = self._directory / uuid
        if (pid := _pid(directory, uuid)) is not None:
            _end(pid)
        started = self._started.pop(uuid, None)
        if started is not None:
            started.told.close()
            started.process.kill()  # for a shell that is not the executor yet; an ended process ignores it
            started.process.wait()
        cgroups.remove(self._cgroup_mount, uuid)
        with suppress(FileNotFoundError):
            shutil.rmtree(directory)

    def all(self) -> list[Found]:
        """See `Executors`."""
        return [self._found(path.name) for path in sorted(self._directory.glob("*-*-*-*-*"))]

    def _found(self, uuid: str) -> Found:
        directory = self._directory / uuid
        started = self._started.get(uuid)
        ready = (directory / "ready").exists()
        if started is not None:
            ready = _hear(started, directory / "ready") or ready
            ended = started.process.poll()
            if ended is not None:
                how = {"killed": -ended} if ended < 0 else {"exited": ended}
                return Found(uuid=uuid, state=State.FAILED, reason=why(status=started.status, **how))
        pid = _pid(directory, uuid)
        if started is None and pid is None:
            return Found(uuid=uuid, state=State.FAILED, reason=why(status=""))
        if ready:
            said = started.status if started is not None else ""  # an earlier helper's notify socket is gone
            return running(uuid, pid=pid or 0, status=said)
        if started is None:
            return Found(uuid=uuid, state=State.FAILED, reason="the helper ended before it was ready")
        if time.monotonic() - started.began_s > READY_WITHIN_S:
            return Found(uuid=uuid, state=State.FAILED, reason="it was not ready in time")
        return Found(uuid=uuid, state=State.STARTING, pid=started.process.pid)


def _hear(started: _Started, mark: Path) -> bool:
    """Read an executor's notifications. Return whether it has become ready, and leave the mark if so."""
    ready = False
    while True:
        try:
            lines = started.told.recv(4096).decode(errors="replace").splitlines()
        except OSError:  # no more notifications, or the executor was stopped meanwhile
            return ready
        for line in lines:
            if line.startswith("STATUS="):
                started.status = line.removeprefix("STATUS=")
        if "READY=1" in lines:
            ready = True
            with suppress(FileNotFoundError):
                mark.touch()


def _pid(directory: Path, uuid: str) -> int | None:
    """Return the pid of a live executor."""
    try:
        pid = int(_read(directory / "pid"))
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (ValueError, OSError):
        return None
    return pid if b"--slice" in words and uuid.encode() in words else None


def _end(pid: int) -> None:
    """Terminate a process, and kill it if that takes too long. Either way its children end with it."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGTERM)
            if not select.select([process], [], [], _END_S)[0]:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [], _END_S)
    finally:
        os.close(process)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
