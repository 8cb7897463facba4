# SPDX-License-Identifier: Apache-2.0
"""The executors of slices: the interface by which the helper starts, watches and ends them.

An executor lives until it is stopped, whatever becomes of the helper and the agent: `Units` hands it to systemd, and
`Processes` starts it in a session and a cgroup of its own. Both find what an earlier helper has started.
"""

import re
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vgpumgr.control.executor_settings import ExecutorSettings

SERVING = "serving the slice"
"""The status of an executor without trouble begins so. It goes on with who enforces, and with its memory."""

_MEMORY = re.compile(r"\bmemory_used_bytes=(\d{1,18}) memory_bytes=(\d{1,18})\b")

READY_WITHIN_S = 30.0
"""An executor that is not ready by then has failed."""

_REASON_CHARACTERS = 200


class State(StrEnum):
    """`starting`: it is not ready yet; `failed`: it has ended, or was not ready in time."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What is started for a slice of a tenant."""

    uuid: str
    tenant: str
    settings: ExecutorSettings

    def command(self) -> list[str]:
        """Return the command line."""
        return [str(self.settings.program), "--slice", self.uuid, *self.settings.options()]


@dataclass(frozen=True, kw_only=True)
class Found:
    """An executor. `pid`: 0 for none. `reason`: why it failed, one line.

    `memory_used_bytes`, `memory_bytes`: accelerator memory that it has, and may have, by its own account; 0 before it
    says so.
    """

    uuid: str
    state: State
    pid: int = 0
    reason: str = ""
    memory_used_bytes: int = 0
    memory_bytes: int = 0


class ExecutorFailedError(Exception):
    """An executor does not run. The text is one line."""


class Executors(Protocol):
    """One way to run executors. Callers serialise what concerns one slice; `all` may come at any time."""

    def start(self, launch: Launch, *, wait_s: float) -> bool:
        """Have this run, instead of what runs otherwise for the slice; False if it does already.

        `wait_s`: for how long to wait until it is ready; 0 not to wait. One that is not ready by then is stopped.
        ExecutorFailedError.
        """

    def stop(self, uuid: str) -> None:
        """End a slice's executor with all it has started, and leave nothing of it. ExecutorFailedError."""

    def all(self) -> list[Found]:
        """Return every executor that was started and not stopped, by UUID."""


def why(*, status: str, exited: int | None = None, killed: int | None = None) -> str:
    """Return why an executor failed: in its own words, else by how it ended. `exited`, `killed`: status, or signal."""
    if status and not status.startswith(SERVING):
        return " ".join(status.split())[:_REASON_CHARACTERS]
    if killed is not None:
        return f"it was killed by {_signal(killed)}"
    return "it ended" if exited is None else f"it ended with status {exited}"


def running(uuid: str, *, pid: int, status: str) -> Found:
    """Return an executor that runs and has this status, which may be empty."""
    said = _MEMORY.search(status) if status.startswith(SERVING) else None
    used_bytes, bytes_ = (int(said[1]), int(said[2])) if said is not None else (0, 0)
    return Found(uuid=uuid, state=State.RUNNING, pid=pid, memory_used_bytes=used_bytes, memory_bytes=bytes_)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
