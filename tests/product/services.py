# SPDX-License-Identifier: Apache-2.0
"""API, helper and agent as processes of a lab host without systemd. Tests kill them; `lab-product` restarts them."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.product import hook
from tests.rig.api import Api
from tests.rig.product import eventually

HELPER_SOCKET = Path("/run/vgpumgr/helper.sock")
LOGS = Path("/var/log")
_WATCH_S = 0.05
_START_LIMIT_S = 240  # like lab-product; beside busy guests, an emulated host starts the API slowly


@dataclass(frozen=True)
class Service:
    """One of the product's processes. `answers`: whether it answers requests."""

    name: str
    answers: Callable[[], bool]

    @property
    def log(self) -> Path:
        return LOGS / f"vgpumgr-{self.name}.log"

    def pid(self) -> int:
        """The PID of the process that was started last."""
        return int(Path(f"/run/lab/{self.name}.pid").read_text())

    def runs(self) -> bool:
        """False once it has ended, whether or not it has been reaped. The command line cannot tell: it is empty for a
        moment of each exec."""
        try:
            _, _, state = Path(f"/proc/{self.pid()}/stat").read_text().rpartition(") ")
            return state[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def kill(self) -> None:
        """Kill it without a chance to clean up; harmless if it has ended."""
        if self.runs():
            os.kill(self.pid(), signal.SIGKILL)
        eventually(lambda: not self.runs(), what=f"the {self.name} is gone")

    def start(self, *, fault: str = "", wait: bool = True) -> None:
        """Start it. `fault`: the point where it kills itself, see vgpumgr_agent.faults."""
        environment = {**os.environ, "VGPUMGR_FAULT": fault}
        subprocess.run(["lab-product", "run", self.name], check=True, timeout=60, env=environment)
        if wait:
            eventually(self.answers, what=f"the {self.name} answers", timeout_s=_START_LIMIT_S)

    def restart(self, *, fault: str = "", wait: bool = True) -> None:
        self.kill()
        self.start(fault=fault, wait=wait)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


API = Service("api", Api().answers)
HELPER = Service("helper", lambda: _listens(HELPER_SOCKET))
AGENT = Service("agent", lambda: _listens(hook.SOCKET))


@contextmanager
def dying(faults: Mapping[Service, Sequence[str]]) -> Iterator[dict[str, list[str]]]:
    """While the body runs, restart each service that dies, like systemd, and set it to die at its next crash point.

    Yields the crash points that are still to come, by name of the service. A process without a crash point must not
    die.
    """
    left = {service.name: list(points) for service, points in faults.items()}
    ended = threading.Event()
    for service in faults:
        service.restart(fault=left[service.name][0], wait=False)

    def watch() -> None:
        while not ended.wait(_WATCH_S):
            for service in faults:
                if not service.runs() and left[service.name]:
                    left[service.name].pop(0)
                    service.start(fault=next(iter(left[service.name]), ""), wait=False)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield left
    finally:
        ended.set()
        thread.join()
        for service in faults:
            service.restart()
