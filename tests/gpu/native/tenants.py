# SPDX-License-Identifier: Apache-2.0
"""Measured programs, either outside any tenant or in tenants of a broker."""

from __future__ import annotations

import mmap
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.native import workload
from vgpumgr.broker.control import Control

READY_S = 180.0
VGPUMGR = (sys.executable, "-m", "vgpumgr.cli.main")


@dataclass
class Measured:
    """A running program."""

    process: subprocess.Popen[str]
    memory: mmap.mmap

    @property
    def steps(self) -> int:
        return int(struct.unpack_from("=Q", self.memory, 0)[0])

    def latencies_ns(self, since: int) -> list[int]:
        """Return the latencies of requests after the first `since` ones."""
        count = struct.unpack_from("=Q", self.memory, 8)[0]
        return list(struct.unpack_from(f"={count - since}Q", self.memory, 16 + 8 * since))

    @property
    def answered(self) -> int:
        return int(struct.unpack_from("=Q", self.memory, 8)[0])


@contextmanager
def running(
    folder: Path, kinds: Mapping[str, str], prefix: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, Measured]]:
    """Run programs, which begin together. `prefix`: the command that starts each."""
    with ExitStack() as stack:
        found = {}
        for name, kind in kinds.items():
            path = folder / f"{name}.counter"
            path.write_bytes(bytes(workload.BYTES))
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), workload.BYTES)
            command = [*prefix.get(name, ()), sys.executable, str(Path(workload.__file__)), kind, str(path)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(process.wait, 60)
            stack.callback(process.kill)
            found[name] = Measured(process, memory)
        for name, each in found.items():
            assert each.process.stdout
            line = each.process.stdout.readline()
            if line != "ready\n":
                raise RuntimeError(f"{name} did not start: status {each.process.wait(60)}")
        for each in found.values():
            assert each.process.stdin
            each.process.stdin.write("go\n")
            each.process.stdin.flush()
        yield found


@contextmanager
def broker(folder: Path, configuration: str) -> Iterator[Control]:
    """A broker with this configuration, in folder/run."""
    file = folder / "broker.toml"
    run = folder / "run"
    file.write_text(f'run_directory = "{run}"\n{configuration}')
    process = subprocess.Popen([*VGPUMGR, "broker", "run", str(file)])
    try:
        control = Control(run)
        end = time.monotonic() + 60
        while not (run / "control").exists():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("the broker did not start")
            time.sleep(0.05)
        yield control
    finally:
        process.terminate()
        process.wait(60)


def apply(folder: Path, configuration: str) -> None:
    """Change the configuration of the running broker."""
    file = folder / "broker.toml"
    file.write_text(f'run_directory = "{folder / "run"}"\n{configuration}')
    subprocess.run([*VGPUMGR, "broker", "apply", str(file)], check=True)


def in_tenant(folder: Path, tenant: str) -> tuple[str, ...]:
    return (*VGPUMGR, "run", "--native", "--tenant", tenant, "--run-directory", str(folder / "run"), "--")


def rates(programs: Mapping[str, Measured], seconds: float) -> dict[str, float]:
    """Return each program's steps per second over this many seconds."""
    before = {name: each.steps for name, each in programs.items()}
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    return {name: (each.steps - before[name]) / elapsed for name, each in programs.items()}


def quantiles_ms(latencies_ns: Sequence[int]) -> tuple[float, float]:
    """Return p50 and p99."""
    cuts = statistics.quantiles(latencies_ns, n=100)
    return cuts[49] / 1e6, cuts[98] / 1e6
