# SPDX-License-Identifier: Apache-2.0
"""A real supervisor with its fences. The test plays the broker and sends requests that cross with programs' actions."""

import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compute.broker_rig import receive
from tests.compute.driver_rig import Gpu
from tests.compute.executor_rig import BUILT, DONE, LIMIT_S, Message, Slice, run_slice, wait_for
from tests.compute.native_rig import PROGRAM, NativeProgram, make_native

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a fence looks into a program, which takes root")

START_NATIVE, WORKS = 9, 11
MIB = 1 << 20
MS = 1_000_000
NUMBER = 7


@pytest.fixture
def tenant(gpu: Gpu) -> Iterator[Slice]:
    make_native()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        loaded = ("env", *(f"{key}={value}" for key, value in gpu.environment.items()))
        words = ("--nvidia", "0", "--gate-lock", str(folder / "gate.lock"), "--natives", str(folder / "natives"))
        with run_slice(folder, *words, machine=loaded) as slice_:
            yield slice_


@contextmanager
def announced(folder: Path, gpu: Gpu) -> Iterator[tuple[NativeProgram, int]]:
    """A program whose launcher waits for its supervisor, and the descriptor on which the kernel reports its call."""
    command = (sys.executable, "-S", str(PROGRAM), str(gpu.fake.directory / "socket"), gpu.version)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as own:
        own.bind(str(folder / "launcher"))
        own.listen()
        own.settimeout(LIMIT_S)
        process = subprocess.Popen(
            [str(BUILT / "vgpu-native"), "--socket", str(folder / "launcher"), "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with NativeProgram(process) as program:
            connection, _ = own.accept()
            with connection:
                _, (listener,) = receive(connection, 4096)
                assert select.select([listener], [], [], LIMIT_S)[0]
                yield program, listener


def start(tenant: Slice, program: NativeProgram, listener: int) -> Message:
    message = tenant.answer(tenant.send(START_NATIVE, child=NUMBER, descriptors=(listener,), memory=64 * MIB))
    os.close(listener)
    assert message.op == DONE, message.reason
    return message


def wait_for_works(tenant: Slice) -> None:
    assert (message := tenant.receive()).op == WORKS, message


def has_answered(program: NativeProgram) -> bool:
    assert program.process.stdout
    return bool(select.select([program.process.stdout], [], [], 0)[0])


def test_a_program_that_starts_after_the_gate_has_closed_waits_for_it(tenant: Slice, gpu: Gpu, tmp_path: Path) -> None:
    with announced(tmp_path, gpu) as (program, listener):
        # The broker's state of the gate was correct when it sent the request.
        assert tenant.freeze().op == DONE
        start(tenant, program, listener)
        program.wait_until_ready()
        program.tell("begin")
        program.tell("work")
        wait_for_works(tenant)
        assert not has_answered(program)
        assert tenant.thaw().op == DONE
        assert program.answer() == "ok None"
        assert program.answer().startswith("ok ")


FREEZER = Path("/sys/fs/cgroup/freezer")


@contextmanager
def held_up(pid: int, name: str) -> Iterator[None]:
    """Keep a process from ending until the end of the block, even if it is killed, like a driver's clean-up does."""
    cgroup = FREEZER / name
    cgroup.mkdir()
    try:
        (cgroup / "cgroup.procs").write_text(str(pid))
        (cgroup / "freezer.state").write_text("FROZEN")
        wait_for(lambda: (cgroup / "freezer.state").read_text() == "FROZEN\n", "it to be held up")
        yield
    finally:
        (cgroup / "freezer.state").write_text("THAWED")
        wait_for(lambda: not (cgroup / "cgroup.procs").read_text(), "it to end")
        cgroup.rmdir()


@pytest.mark.skipif(not FREEZER.exists(), reason="needs a process that SIGKILL does not end yet: the v1 freezer")
def test_the_gate_does_not_wait_for_a_killed_program_that_takes_long_to_end(
    tenant: Slice, gpu: Gpu, tmp_path: Path
) -> None:
    with announced(tmp_path, gpu) as (program, listener), gpu.observer() as observer:
        start(tenant, program, listener)
        program.wait_until_ready().work()
        wait_for_works(tenant)
        with held_up(program.pid, tmp_path.name):
            assert tenant.kill(NUMBER).op == DONE
            assert tenant.freeze().op == DONE
            before = observer.progress_ns(0)
            observer.pass_time(MS)
            assert observer.progress_ns(0) == before
            # The killed program no longer belongs to the slice, so its channels stay closed.
            assert tenant.thaw().op == DONE
            observer.pass_time(MS)
            assert observer.progress_ns(0) == before
        assert tenant.wait_for_exit(NUMBER).status == 9
