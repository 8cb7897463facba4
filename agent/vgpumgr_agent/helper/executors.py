# SPDX-License-Identifier: Apache-2.0
"""The executors of slices: the interface through which the helper starts, watches and stops them.

An executor runs until it is stopped, even if the helper or the agent ends. `Units` hands it to systemd, and `Processes`
starts it in its own session and cgroup. Both find the executors that an earlier helper started.
"""

import re
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vgpumgr.control.executor_settings import ExecutorSettings

SERVING = "serving the slice"
"""Prefix of a healthy executor's status. The enforcer of the shares and the memory figures follow it."""

_MEMORY = re.compile(r"\bmemory_used_bytes=(\d{1,18}) memory_bytes=(\d{1,18})\b")

READY_WITHIN_S = 30.0
"""An executor that is not ready after this time has failed."""

_REASON_CHARACTERS = 200


class State(StrEnum):
    """`starting`: not ready yet; `failed`: it has ended, or did not become ready in time."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The parameters to start an executor for a slice."""

    uuid: str
    tenant: str
    settings: ExecutorSettings

    def command(self) -> list[str]:
        """Return the command line."""
        return [str(self.settings.program), "--slice", self.uuid, *self.settings.options()]


@dataclass(frozen=True, kw_only=True)
class Found:
    """An executor. `pid`: 0 for none. `reason`: its failure in one line.

    `memory_used_bytes`, `memory_bytes`: its accelerator memory and the limit, as the executor counts them; 0 before the
    executor has reported them.
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
    """A way to run executors. Callers serialise calls for the same slice. `all` may be called at any time."""

    def start(self, launch: Launch, *, wait_s: float) -> bool:
        """Run this executor instead of any other executor of the slice. Return False if it runs already.

        `wait_s`: how long to wait until the executor is ready; 0 does not wait. An executor that is not ready in time
        is stopped. Raises ExecutorFailedError.
        """

    def stop(self, uuid: str) -> None:
        """Stop a slice's executor and all its processes, and remove every trace of it. Raises ExecutorFailedError."""

    def all(self) -> list[Found]:
        """Return every executor that was started and not stopped."""


def why(*, status: str, exited: int | None = None, killed: int | None = None) -> str:
    """Return why an executor failed: its own report, or how it ended. `exited`: exit status; `killed`: signal."""
    if status and not status.startswith(SERVING):
        return " ".join(status.split())[:_REASON_CHARACTERS]
    if killed is not None:
        return f"it was killed by {_signal(killed)}"
    return "it ended" if exited is None else f"it ended with status {exited}"


def running(uuid: str, *, pid: int, status: str) -> Found:
    """Return a running executor with this status text, which may be empty."""
    said = _MEMORY.search(status) if status.startswith(SERVING) else None
    used_bytes, bytes_ = (int(said[1]), int(said[2])) if said is not None else (0, 0)
    return Found(uuid=uuid, state=State.RUNNING, pid=pid, memory_used_bytes=used_bytes, memory_bytes=bytes_)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
