# SPDX-License-Identifier: Apache-2.0
"""What vgpu-executor reports to the process that started it, with the protocol of sd_notify(3)."""

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compute.broker_rig import build_fake_supervisor
from tests.compute.executor_rig import CONTROL, DONE, EXECUTOR, GATE, LIMIT_S, MEMORY, ROOT, build

SLICE = "c0ffee00-0000-4000-8000-000000000001"
VERSION, OP, SEQUENCE = range(3)
ENFORCED = -2
SLICE_BYTES = 4 << 20  # as slice_module.c says


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vgpu-executor, a module to preload, and a supervisor that the test plays."""
    folder = tmp_path_factory.mktemp("notify")
    executor = ROOT / "compute" / "executor"
    build(folder / "vgpu-executor", *sorted((executor / "slice").glob("*.c")), *sorted(executor.glob("*.c")))
    build(folder / "module.so", ROOT / "tests/compute/c/slice_module.c", flags=("-shared", "-fPIC"))
    build_fake_supervisor(folder)
    return folder


class Manager:
    """The process that started vgpu-executor. It receives the reports line by line."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(LIMIT_S)

    def hears(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def silence(self) -> bool:
        return not select.select([self._socket], [], [], 0)[0]

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path)
    yield found
    found.close()


@contextmanager
def executor(
    programs: Path, device: Path, *options: str, address: str, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    command = [programs / "vgpu-executor", "--slice", SLICE, "--library", "none", "--device", device]
    command += ["--supervisor", programs / "fake-supervisor", "--child", "none", *options]
    with subprocess.Popen(command, env={**os.environ, "NOTIFY_SOCKET": address, **more}) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def served(
    programs: Path, folder: Path, manager: Manager, *options: str
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """An executor whose module binds, and the test's end of its supervisor's socket."""
    device = folder / "device"
    os.mkfifo(device)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(folder / "supervisor"))
        listener.listen(1)
        listener.settimeout(LIMIT_S)
        preload = {"LD_PRELOAD": str(programs / "module.so"), "VGPU_TEST_SUPERVISOR": str(folder / "supervisor")}
        with executor(programs, device, *options, address=str(manager.path), **preload) as process:
            connection, _ = listener.accept()
            with connection:
                _, (descriptor, *_), _, _ = socket.recv_fds(connection, 4096, 4)
            with socket.socket(fileno=descriptor) as supervisor:
                supervisor.settimeout(LIMIT_S)
                yield process, supervisor


def answer(supervisor: socket.socket, *, enforced: int = GATE) -> None:
    """Answer the executor's first request, like a supervisor that is ready."""
    asked = list(CONTROL.unpack(supervisor.recv(CONTROL.size)))
    asked[OP], asked[ENFORCED] = DONE, enforced
    supervisor.send(CONTROL.pack(*asked))


def reserve(supervisor: socket.socket, memory: int) -> None:
    """Report how much memory the supervisor's children have."""
    supervisor.send(CONTROL.pack(1, MEMORY, 0, 0, 0, memory, 0, 0, 0, 0, 0, 0, 0, 0, 0, b""))


def serving(used: int, *, by: str = "kernel+gate") -> str:
    memory = f"memory_used_bytes={used} memory_bytes={SLICE_BYTES}"
    return f"STATUS=serving the slice; enforced_by={by} gate_p99_us=0 {memory}"


def test_it_is_ready_when_its_supervisor_answers_and_says_when_it_ends(
    programs: Path, tmp_path: Path, manager: Manager
) -> None:
    with served(programs, tmp_path, manager) as (process, supervisor):
        assert manager.silence()
        answer(supervisor)
        assert manager.hears() == ["READY=1", serving(0)]
        process.send_signal(signal.SIGTERM)
        assert manager.hears() == ["STOPPING=1"]


def test_it_says_that_nobody_stops_what_children_have_under_way(
    programs: Path, tmp_path: Path, manager: Manager
) -> None:
    with served(programs, tmp_path, manager) as (_, supervisor):
        answer(supervisor, enforced=EXECUTOR)
        assert manager.hears() == ["READY=1", serving(0, by="executor")]


def test_its_supervisor_is_told_which_gpu_the_gate_stops(programs: Path, tmp_path: Path, manager: Manager) -> None:
    with served(programs, tmp_path, manager, "--nvidia", "3") as (process, _):
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[-3:] == [b"--nvidia", b"3", b""]
    with executor(programs, tmp_path / "device", "--nvidia", "32", address=str(manager.path)) as process:
        assert process.wait(LIMIT_S) == 2


def test_it_says_how_much_accelerator_memory_is_used(programs: Path, tmp_path: Path, manager: Manager) -> None:
    with served(programs, tmp_path, manager) as (_, supervisor):
        reserve(supervisor, 1)  # not reported before the executor serves
        answer(supervisor)
        assert manager.hears() == ["READY=1", serving(0)]
        for used in (5 << 20, 0):
            reserve(supervisor, used)
            assert manager.hears() == [serving(used)]


def test_it_says_that_its_supervisor_died(programs: Path, tmp_path: Path, manager: Manager) -> None:
    with served(programs, tmp_path, manager) as (process, supervisor):
        answer(supervisor)
        manager.hears()
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        assert manager.hears() == ["STATUS=the supervisor ended with signal 9"]
        assert process.wait(LIMIT_S) == 1


def test_its_supervisor_does_not_know_whom_to_tell(programs: Path, tmp_path: Path, manager: Manager) -> None:
    with served(programs, tmp_path, manager) as (process, _):
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{child}/environ").read_bytes()


def test_it_says_why_it_cannot_bind(programs: Path, tmp_path: Path, manager: Manager) -> None:
    with executor(programs, Path("/dev/null"), address=str(manager.path)) as process:
        assert manager.hears() == ["STATUS=the module has another version"]
        assert process.wait(LIMIT_S) == 1
    with executor(programs, tmp_path / "no\ndevice", address=str(manager.path)):
        assert manager.hears() == [f"STATUS={tmp_path}/no?device: No such file or directory"]


@pytest.mark.parametrize("address", ["", "/nobody/listens", "x" * 200])
def test_without_anybody_to_tell_it_works_all_the_same(programs: Path, address: str) -> None:
    with executor(programs, Path("/dev/null"), address=address) as process:
        assert process.wait(LIMIT_S) == 1


def test_the_address_may_be_abstract(programs: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0vgpumgr-test-{os.getpid()}")
        manager.settimeout(LIMIT_S)
        with executor(programs, Path("/dev/null"), address=f"@vgpumgr-test-{os.getpid()}"):
            assert manager.recv(4096) == b"STATUS=the module has another version"
