# SPDX-License-Identifier: Apache-2.0
"""Runs and changes a GPU's broker: as an instance of vgpumgr-broker@.service, or without systemd as a process.

In both cases `vgpumgr broker run` starts the broker and `vgpumgr broker apply` changes it, each as a separate process.
So errors of a configuration are always reported in that command's words. A broker outlives the helper.
"""

import os
import select
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from vgpumgr.broker.control import Control
from vgpumgr.errors import VgpumgrError
from vgpumgr_agent.helper.executors import ExecutorFailedError
from vgpumgr_agent.helper.units import Systemctl, systemctl

CLI = (sys.executable, "-c", "from vgpumgr.cli.main import run; run()")
_ASK_S, _STOP_S, _READY_S, _LOOK_S = 5.0, 15.0, 8.0, 0.05
_LOG_BYTES = 4096
_REASON_CHARACTERS = 200


class BrokerFailedError(Exception):
    """A broker does not run, or it refused a change. The text is one line."""


class BrokerRefusedError(BrokerFailedError):
    """The broker refused a configuration as a whole."""


class Service(Protocol):
    """A way to run brokers. Callers serialise calls for the same GPU."""

    def carry_out(self, gpu: str, directory: Path, *, running: bool) -> None:
        """Have a broker run with the configuration in its directory. Raises BrokerFailedError."""

    def stop(self, gpu: str, directory: Path) -> None:
        """Stop a broker, if it runs, and its tenants' programs. Raises BrokerFailedError."""

    def why(self, gpu: str, directory: Path) -> str:
        """Return why no broker answers, in one line."""


class _ByCommand(ABC):
    """The part that both ways share. `command`: the command line of `vgpumgr`."""

    def __init__(self, command: Sequence[str] = CLI) -> None:
        self._command = [*command, "broker"]

    def carry_out(self, gpu: str, directory: Path, *, running: bool) -> None:
        """See `Service`."""
        file = str(directory / "broker.toml")
        if running:
            self._ask("apply", file, "--run-directory", str(directory))
            return
        self._ask("run", file, "--run-directory", str(directory), "--check")
        self._start(gpu, directory)
        self._wait(gpu, directory)

    def _ask(self, *arguments: str) -> None:
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=2 * _ASK_S)
        except subprocess.TimeoutExpired as error:
            raise BrokerFailedError(f"vgpumgr broker {arguments[0]} takes longer than {2 * _ASK_S:g} s") from error
        except OSError as error:
            raise BrokerFailedError(f"vgpumgr broker {arguments[0]}: {error.strerror}") from error
        if done.returncode:
            said = _last_line(done.stderr)
            raise BrokerRefusedError(said or f"vgpumgr broker {arguments[0]} exits with {done.returncode}")

    def _wait(self, gpu: str, directory: Path) -> None:
        deadline = time.monotonic() + _READY_S
        while not _answers(directory):
            if self._ended(gpu, directory) or time.monotonic() >= deadline:
                raise BrokerFailedError(self.why(gpu, directory))
            time.sleep(_LOOK_S)

    @abstractmethod
    def _start(self, gpu: str, directory: Path) -> None:
        """Start the broker without waiting for it."""

    @abstractmethod
    def _ended(self, gpu: str, directory: Path) -> bool:
        """Return whether the broker has ended by itself."""

    @abstractmethod
    def why(self, gpu: str, directory: Path) -> str:
        """See `Service`."""


class Units(_ByCommand):
    """`Service` under systemd."""

    def __init__(self, command: Sequence[str] = CLI, *, systemctl: Systemctl = systemctl) -> None:
        super().__init__(command)
        self._systemctl = systemctl

    def stop(self, gpu: str, directory: Path) -> None:  # noqa: ARG002 - see Service
        """See `Service`."""
        _translated(lambda: self._systemctl(["stop", _unit(gpu)], _STOP_S))

    def why(self, gpu: str, directory: Path) -> str:  # noqa: ARG002 - see Service
        """See `Service`."""
        return f"it does not run; see `journalctl --unit={_unit(gpu)}`"

    def _start(self, gpu: str, directory: Path) -> None:  # noqa: ARG002 - see Service
        with suppress(ExecutorFailedError):  # the unit is not loaded
            self._systemctl(["reset-failed", _unit(gpu)], _ASK_S)  # so that a failed state comes from this start
        _translated(lambda: self._systemctl(["start", "--no-block", _unit(gpu)], _ASK_S))

    def _ended(self, gpu: str, directory: Path) -> bool:  # noqa: ARG002 - see Service
        shown = _translated(lambda: self._systemctl(["show", "--property=ActiveState", "--value", _unit(gpu)], _ASK_S))
        return shown.strip() == "failed"


class Processes(_ByCommand):
    """`Service` without systemd. One file has the process's pid, another file has its output."""

    def __init__(self, command: Sequence[str] = CLI) -> None:
        super().__init__(command)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def stop(self, gpu: str, directory: Path) -> None:
        """See `Service`."""
        if (pid := _pid(directory)) is not None:
            _end(pid)
        if (child := self._children.pop(gpu, None)) is not None:
            child.wait()

    def why(self, gpu: str, directory: Path) -> str:  # noqa: ARG002 - see Service
        """See `Service`."""
        with suppress(OSError):
            return _last_line((directory / "log").read_bytes()[-_LOG_BYTES:]) or "it does not run"
        return "it does not run"

    def _start(self, gpu: str, directory: Path) -> None:
        self.stop(gpu, directory)
        command = [*self._command, "run", str(directory / "broker.toml"), "--run-directory", str(directory)]
        try:
            with (directory / "log").open("wb") as log:
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise BrokerFailedError(f"it cannot be started: {error.strerror}") from error
        self._children[gpu] = child
        (directory / "pid").write_text(str(child.pid))

    def _ended(self, gpu: str, directory: Path) -> bool:
        child = self._children.get(gpu)
        return child.poll() is not None if child is not None else _pid(directory) is None


def _answers(directory: Path) -> bool:
    try:
        Control(directory).show()
    except VgpumgrError:
        return False
    return True


def _unit(gpu: str) -> str:
    return f"vgpumgr-broker@{gpu}.service"


def _translated(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except ExecutorFailedError as error:
        raise BrokerFailedError(str(error)) from error


def _pid(directory: Path) -> int | None:
    """Return the pid of a live broker. The command line is checked, because pids are reused."""
    try:
        pid = int((directory / "pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (ValueError, OSError):
        return None
    return pid if os.fsencode(directory) in words else None


def _end(pid: int) -> None:
    """Terminate a process, and kill it if that takes too long."""
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)
        try:
            signal.pidfd_send_signal(process, signal.SIGTERM)
            if not select.select([process], [], [], _STOP_S)[0]:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                select.select([process], [], [], _STOP_S)
        finally:
            os.close(process)


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return " ".join(lines[-1].removeprefix("vgpumgr: ").split())[:_REASON_CHARACTERS] if lines else ""
