# SPDX-License-Identifier: Apache-2.0
"""How a GPU's broker is run and changed: under systemd as an instance of vgpumgr-broker@.service, else as a process.

Both run `vgpumgr broker run`, and change it by `vgpumgr broker apply`, in a process of their own: what a configuration
lacks is said once, in the words of that command. A broker outlives the helper.
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
    """A broker does not run, or refused a change. The text is one line."""


class BrokerRefusedError(BrokerFailedError):
    """A configuration was refused as a whole."""


class Service(Protocol):
    """One way to run brokers. Callers serialise what concerns one GPU."""

    def carry_out(self, gpu: str, directory: Path, *, running: bool) -> None:
        """Have a broker run with the configuration in its directory. BrokerFailedError."""

    def stop(self, gpu: str, directory: Path) -> None:
        """End a broker and its tenants' programs; nothing if there is none. BrokerFailedError."""

    def why(self, gpu: str, directory: Path) -> str:
        """Return why none answers, in one line."""


class _ByCommand(ABC):
    """What both ways have in common. `command`: what `vgpumgr` is."""

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
        """Start it, and wait for nothing."""

    @abstractmethod
    def _ended(self, gpu: str, directory: Path) -> bool:
        """Whether it has ended by itself."""

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
        with suppress(ExecutorFailedError):  # it is not loaded
            self._systemctl(["reset-failed", _unit(gpu)], _ASK_S)  # so that a failure is one of this start
        _translated(lambda: self._systemctl(["start", "--no-block", _unit(gpu)], _ASK_S))

    def _ended(self, gpu: str, directory: Path) -> bool:  # noqa: ARG002 - see Service
        shown = _translated(lambda: self._systemctl(["show", "--property=ActiveState", "--value", _unit(gpu)], _ASK_S))
        return shown.strip() == "failed"


class Processes(_ByCommand):
    """`Service` without systemd. A file has the process's number, and another what it has said."""

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
    """The number of a broker that lives; it counts only with the right command line."""
    try:
        pid = int((directory / "pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (ValueError, OSError):
        return None
    return pid if os.fsencode(directory) in words else None


def _end(pid: int) -> None:
    """End a process; at last by force."""
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
