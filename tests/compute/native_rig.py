# SPDX-License-Identifier: Apache-2.0
"""A broker with real supervisors, fences and launcher, and native programs on the fake GPU."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.compute.broker_rig import Broker, make_broker, tenant
from tests.compute.driver_rig import Gpu
from tests.compute.executor_rig import BUILT, LIMIT_S, ROOT, wait_for

PROGRAM = Path(__file__).with_name("native_program.py")
MIB = 1 << 20


def make_native() -> None:
    """Build broker, supervisor and launcher from the present sources."""
    make_broker()
    targets = [str(BUILT / name) for name in ("vgpu-child", "vgpu-supervisor", "vgpu-native")]
    subprocess.run(["make", "-s", "-C", str(ROOT / "compute"), f"PYTHON={sys.executable}", *targets], check=True)


def make_supervisor(folder: Path, gpu: Gpu, *, driver: bool = True) -> Path:
    """Write the supervisor program for the broker. It and its fences have the fake driver unless `driver` is false."""
    script = folder / "supervisor"
    loaded = " ".join(f"{name}={value}" for name, value in gpu.environment.items() if driver)
    lock = folder / "gate.lock"
    script.write_text(f'#!/bin/sh\nexec env {loaded} {BUILT / "vgpu-supervisor"} "$@" --gate-lock {lock}\n')
    script.chmod(0o755)
    return script


class NativeBroker(Broker):
    """A broker whose tenants are native."""

    turns = "firmware"
    period_ns = 20_000_000

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        del found["programs"]["library"]
        found["native"] = {"turns": self.turns, "period_ns": self.period_ns}
        return found

    def native(self, name: str) -> dict[str, Any]:
        """What the broker shows of a tenant's native programs."""
        found: dict[str, Any] = self.shown(name)["native"]
        return found

    def supervisor_pid(self, name: str) -> int:
        return int(self.shown(name)["supervisor"]["pid"])

    def set_tenants(self, tenants: list[dict[str, Any]]) -> None:
        """Change the tenants of the running broker."""
        self.tenants = tenants
        self.control.set(self.settings(), generation=0)


def native_tenant(name: str, **more: Any) -> dict[str, Any]:
    return tenant(name, native=True, **more)


@dataclass
class NativeProgram:
    """A program in its fence that follows instructions."""

    process: subprocess.Popen[str]
    pid: int = 0
    said: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()

    def wait_until_ready(self) -> Self:
        line = self.answer().split()
        assert line[:1] == ["ready"], (line, self.process.stderr and self.process.stderr.read())
        self.pid = int(line[1])
        return self

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """The program's next output line; "" at the end."""
        assert self.process.stdout
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], LIMIT_S)
            assert ready, "the program says nothing"
            byte = os.read(self.process.stdout.fileno(), 1)
            if not byte:
                break
            line += byte
        return line.decode().strip()

    def do(self, line: str) -> str:
        self.tell(line)
        return self.answer()

    def work(self) -> Self:
        """Make the program create a context and give the GPU an endless kernel."""
        assert self.do("begin") == "ok None"
        assert self.do("work").startswith("ok ")
        return self

    def wait_for_end(self) -> int:
        """Return the program's exit status, which is negative for a signal."""
        return self.process.wait(LIMIT_S)


def launch(broker: Broker, name: str, *command: str) -> subprocess.Popen[str]:
    socket = broker.run / f"{name}.sock"
    return subprocess.Popen(
        [str(BUILT / "vgpu-native"), "--socket", str(socket), "--", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start(broker: Broker, name: str, gpu: Gpu) -> NativeProgram:
    """Start a native program of a tenant."""
    command = (sys.executable, "-S", str(PROGRAM), str(gpu.fake.directory / "socket"), gpu.version)
    return NativeProgram(launch(broker, name, *command)).wait_until_ready()


def enclosures(broker: Broker) -> list[Path]:
    """Cgroups of native programs, from the records of the broker's supervisors."""
    return [Path(file.read_text()) for file in (broker.run / "natives").iterdir()]


@contextmanager
def run_native_broker(
    folder: Path, gpu: Gpu, *tenants: dict[str, Any], turns: str = "firmware", driver: bool = True, **engine: int
) -> Iterator[NativeBroker]:
    make_native()
    supervisor = make_supervisor(folder, gpu, driver=driver)
    broker = NativeBroker(folder, make_broker(), supervisor, tenants=list(tenants), nvidia=0, engine=engine)
    broker.turns = turns
    with broker:
        wait_for(lambda: all(broker.supervisor_pid(each["name"]) for each in tenants), "its supervisors")
        try:
            yield broker
        finally:
            _remove(enclosures(broker) if (broker.run / "natives").is_dir() else [])


def _remove(cgroups: list[Path]) -> None:
    """Remove what a supervisor has left that was killed with its broker."""
    for cgroup in cgroups:
        with suppress(OSError):
            (cgroup / "cgroup.kill").write_text("1")
            wait_for(lambda events=cgroup / "cgroup.events": "populated 0" in events.read_text(), "its processes' end")
            cgroup.rmdir()
