# SPDX-License-Identifier: Apache-2.0
"""A fence with a native program on the fake driver. c/fence_keeper.c plays its supervisor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.compute.driver_rig import NATIVE, Gpu
from tests.compute.executor_rig import BUILT, LIMIT_S, ROOT, build
from tests.compute.native_rig import NativeProgram, make_native

C = ROOT / "tests" / "compute" / "c"
PROGRAM = Path(__file__).with_name("fence_program.py")
FENCE = ("fence", "books", "filter", "holders", "rm_numbers")
GATE = ("relay_call", "relay_heap", "relay_uvm", "rm_calls", "rm_controls", "rm_objects")


def make_keeper(directory: Path) -> Path:
    """Build the program that plays the supervisor."""
    make_native()
    executor = BUILT / "compute" / "executor"
    objects = [executor / "fence" / f"{name}.o" for name in FENCE]
    objects += [executor / "gate" / f"{name}.o" for name in GATE]
    objects += [executor / f"{name}.o" for name in ("datagram", "log", "notice")]
    return build(directory / "keeper", C / "fence_keeper.c", *objects, flags=(f"-I{NATIVE}",))


def make_hostile(directory: Path) -> Path:
    """Build fence_hostile.c, which is static and needs no loader."""
    target = directory / "hostile"
    command = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-pthread"]
    subprocess.run([*command, "-o", target, C / "fence_hostile.c"], check=True)
    return target


@dataclass(frozen=True)
class Shown:
    """What a fence shares with its supervisor: held calls, memory of the program and of its tenant, objects."""

    held: int
    memory_bytes: int
    used_bytes: int
    objects: int


class Keeper:
    """Owns a program, its fence and the process that plays the supervisor."""

    def __init__(self, keeper: Path, gpu: Gpu, limit_bytes: int, command: tuple[str, ...]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        ours.settimeout(LIMIT_S)
        self.process = subprocess.Popen(
            [str(keeper), str(theirs.fileno()), str(limit_bytes), "env", "-u", "LD_PRELOAD", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            pass_fds=(theirs.fileno(),),
            env=os.environ | gpu.environment,
        )
        theirs.close()
        self.program_pid, self.fence_pid = map(int, ours.recv(128).split())
        self.program = NativeProgram(self.process, self.program_pid)

    def ask(self, line: str) -> Shown:
        self.control.send(line.encode())
        return Shown(*map(int, self.control.recv(128).split()))

    def shown(self) -> Shown:
        return self.ask("show")

    def wait_for_end(self) -> int:
        """Wait for the end of the program, and return the fence's exit status."""
        self.control.close()
        return self.process.wait(LIMIT_S)


@contextmanager
def run_fenced(keeper: Path, gpu: Gpu, *command: str, limit_bytes: int = 1 << 40) -> Iterator[Keeper]:
    """Run `command` in a fence; without a command, run the program that follows instructions."""
    told = (sys.executable, "-S", str(PROGRAM), str(gpu.fake.directory / "socket"), gpu.version)
    running = Keeper(keeper, gpu, limit_bytes, command or told)
    try:
        if not command:
            running.program.wait_until_ready()
        yield running
    finally:
        running.control.close()
        for stream in (running.process.stdin, running.process.stdout, running.process.stderr):
            if stream:
                stream.close()
        for pid in (running.program_pid, running.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        running.process.wait(LIMIT_S)
