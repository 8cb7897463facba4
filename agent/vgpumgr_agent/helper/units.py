# SPDX-License-Identifier: Apache-2.0
"""Executors as systemd units: instances of vgpumgr-executor@.service in their tenant's systemd slice.

Each instance's own settings are in a drop-in below /run. The drop-in is written before the unit starts and removed
after it was stopped, so the drop-ins are the list of our executors. systemd reads the drop-in when it loads the unit.
`reset-failed` lets systemd unload a unit that has failed.
"""

import logging
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from vgpumgr_agent.helper.executors import ExecutorFailedError, Found, Launch, State, running, why

log = logging.getLogger(__name__)

DIRECTORY = Path("/run/systemd/system")
_PREFIX, _SUFFIX = "vgpumgr-executor@", ".service"
_DROP_IN = "50-slice.conf"
_SHOWN = ("Id", "ActiveState", "MainPID", "StatusText", "Result", "ExecMainCode", "ExecMainStatus")
_ASK_S = 5.0
_STOP_S = 15.0
_CLD_EXITED = "1"

Systemctl = Callable[[Sequence[str], float], str]
"""Takes arguments and a time limit in seconds, returns the output. Raises ExecutorFailedError."""


def systemctl(arguments: Sequence[str], timeout_s: float) -> str:
    """Run a systemctl command. Raises ExecutorFailedError."""
    command = ["systemctl", "--no-ask-password", *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise ExecutorFailedError(f"systemctl {arguments[0]} takes longer than {timeout_s:g} s") from error
    except OSError as error:
        raise ExecutorFailedError(f"systemctl: {error.strerror}") from error
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise ExecutorFailedError(said or f"systemctl {arguments[0]} exits with {done.returncode}")
    return done.stdout


class Units:
    """`Executors` under systemd."""

    def __init__(self, directory: Path = DIRECTORY, *, systemctl: Systemctl = systemctl) -> None:
        """`directory`: for units that the next boot deletes."""
        self._directory = directory
        self._systemctl = systemctl

    def start(self, launch: Launch, *, wait_s: float) -> bool:
        """See `Executors`."""
        unit = unit_of(launch.uuid)
        text = drop_in(launch)
        path = self._path(launch.uuid)
        found = {each.uuid: each for each in self.all()}.get(launch.uuid)
        if found is not None and found.state is not State.FAILED and path.exists() and path.read_text() == text:
            if found.state is State.RUNNING:
                return False
        else:
            self.stop(launch.uuid)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if not wait_s:
            self._systemctl(["start", "--no-block", unit], _ASK_S)
            return True
        try:
            self._systemctl(["start", unit], wait_s)
        except ExecutorFailedError as error:
            reason = self._show([launch.uuid])[0].reason or str(error)
            self.stop(launch.uuid)
            raise ExecutorFailedError(reason) from error
        return True

    def stop(self, uuid: str) -> None:
        """See `Executors`."""
        directory = self._path(uuid).parent
        if not directory.exists():
            return
        self._systemctl(["stop", unit_of(uuid)], _STOP_S)
        try:
            self._systemctl(["reset-failed", unit_of(uuid)], _ASK_S)
        except ExecutorFailedError as error:  # the unit is not loaded
            log.debug("%s: %s", unit_of(uuid), error)
        shutil.rmtree(directory)

    def all(self) -> list[Found]:
        """See `Executors`."""
        paths = self._directory.glob(f"{_PREFIX}*{_SUFFIX}.d")
        uuids = sorted(path.name.removeprefix(_PREFIX).removesuffix(f"{_SUFFIX}.d") for path in paths)
        return self._show(uuids) if uuids else []

    def _show(self, uuids: Sequence[str]) -> list[Found]:
        try:
            said = self._systemctl(["show", f"--property={','.join(_SHOWN)}", *map(unit_of, uuids)], _ASK_S)
        except ExecutorFailedError as error:
            return [Found(uuid=uuid, state=State.FAILED, reason=str(error)) for uuid in uuids]
        shown = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in said.split("\n\n")]
        by_unit = {block.get("Id"): block for block in shown}
        return [_found(uuid, by_unit.get(unit_of(uuid), {})) for uuid in uuids]

    def _path(self, uuid: str) -> Path:
        return self._directory / f"{unit_of(uuid)}.d" / _DROP_IN


def unit_of(uuid: str) -> str:
    """Return the name of a slice's unit."""
    return f"{_PREFIX}{uuid}{_SUFFIX}"


def slice_of(tenant: str) -> str:
    """Return the systemd slice of a tenant. An unescaped hyphen would nest it in another tenant's slice."""
    escaped = tenant.replace("-", r"\x2d")
    return f"vgpumgr-{escaped}.slice"


def drop_in(launch: Launch) -> str:
    """Return the drop-in of one executor. The paths in the settings need no quotes."""
    settings = launch.settings
    lines = [
        "[Service]",
        f"Slice={slice_of(launch.tenant)}",
        "ExecStart=",
        f"ExecStart={' '.join(launch.command())}",
        *([f"MemoryMax={settings.memory_max_bytes}"] if settings.memory_max_bytes else []),
        *([f"TasksMax={settings.tasks_max}"] if settings.tasks_max else []),
        *([f"CPUQuota={settings.cpu_max_permille / 10:g}%"] if settings.cpu_max_permille else []),
    ]
    return "".join(f"{line}\n" for line in lines)


def _found(uuid: str, shown: dict[str, str]) -> Found:
    active = shown.get("ActiveState", "")
    pid = int(shown.get("MainPID") or 0)
    if active == "active":
        return running(uuid, pid=pid, status=shown.get("StatusText", ""))
    if active in ("activating", "reloading"):
        return Found(uuid=uuid, state=State.STARTING, pid=pid)
    if shown.get("Result") == "timeout":
        return Found(uuid=uuid, state=State.FAILED, reason="it was not ready in time")
    number = int(shown.get("ExecMainStatus") or 0)
    ended = {"exited" if shown.get("ExecMainCode") == _CLD_EXITED else "killed": number} if _ran(shown) else {}
    return Found(uuid=uuid, state=State.FAILED, reason=why(status=shown.get("StatusText", ""), **ended))


def _ran(shown: dict[str, str]) -> bool:
    return shown.get("ExecMainCode", "0") != "0"
