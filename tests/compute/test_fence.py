# SPDX-License-Identifier: Apache-2.0
"""A native program's calls are made by its fence on copies, and its memory is counted."""

import errno
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.driver_rig import Gpu, run_gpu
from tests.compute.executor_rig import LIMIT_S, wait_for
from tests.compute.fence_rig import PROGRAM, Keeper, make_hostile, make_keeper, run_fenced
from tests.compute.native_rig import NativeProgram, launch, native_tenant, run_native_broker

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a fence looks into a program, which takes root")
MIB = 1 << 20
PREEMPT, GET_TIMESLICE = 0xA06C0105, 0xA06C0104


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_keeper(tmp_path_factory.mktemp("keeper"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def fenced(keeper: Path, gpu: Gpu) -> Iterator[Keeper]:
    with run_fenced(keeper, gpu, limit_bytes=64 * MIB) as running:
        assert running.program.do("begin") == "ok None"
        yield running


def try_it(keeper: Path, gpu: Gpu, hostile: Path, what: str) -> list[str]:
    """Return what the hostile program prints."""
    with run_fenced(keeper, gpu, str(hostile), what, str(gpu.fake.directory / "socket")) as running:
        assert running.process.stdout
        running.control.close()
        return running.process.stdout.read().splitlines()


def test_a_command_that_changes_while_it_is_looked_at_is_done_as_it_was_allowed(fenced: Keeper, gpu: Gpu) -> None:
    word, ok, refused = fenced.program.do("race 2000").split()
    assert word == "ok"
    assert int(ok) + int(refused) == 2000
    assert int(ok) > 0
    assert int(refused) > 0
    reached = [entry["cmd"] for entry in gpu.fake.log() if entry["call"] == "control"]
    assert PREEMPT not in reached
    assert reached.count(GET_TIMESLICE) == int(ok)


def test_many_threads_and_what_they_leave(fenced: Keeper) -> None:
    before = fenced.shown()
    assert fenced.program.do("crowd 8 50") == "ok 8"
    assert fenced.shown() == before


def test_memory_comes_back_when_its_process_ends(fenced: Keeper) -> None:
    """Each process takes more than half of the memory, so it fails if memory of an earlier process is still counted."""
    assert fenced.program.do(f"storm 12 {40 * MIB}") == "ok 12"
    wait_for(lambda: fenced.shown().used_bytes == 0, "the last one's memory to come back")


def test_memory_is_counted_until_it_is_freed_with_what_it_is_below(fenced: Keeper) -> None:
    program = fenced.program
    assert program.do(f"allocate {60 * MIB}").startswith("ok")
    assert (fenced.shown().memory_bytes, fenced.shown().used_bytes) == (60 * MIB, 60 * MIB)
    assert program.do(f"allocate {8 * MIB}") == "failed status 0x51"
    assert fenced.shown().used_bytes == 60 * MIB
    assert program.do("free_client") == "ok None"
    assert (fenced.shown().used_bytes, fenced.shown().objects) == (0, 0)


def test_a_byte_counts_as_the_page_that_it_takes(fenced: Keeper) -> None:
    handle = fenced.program.do("allocate 1").split()[1]
    assert fenced.shown().used_bytes == 65536
    assert fenced.program.do(f"free {handle}") == "ok None"
    assert fenced.shown().used_bytes == 0
    assert fenced.program.do(f"allocate {2**64 - 1}") == "failed status 0x51"
    assert fenced.shown().used_bytes == 0


def test_what_the_driver_does_not_make_is_not_counted(fenced: Keeper) -> None:
    assert fenced.program.do(f"allocate_below 7 {MIB}") == "failed status 0x36"
    assert fenced.shown().used_bytes == 0


def test_the_older_way_to_memory_is_counted_and_frees_nothing_that_the_gate_must_know(fenced: Keeper) -> None:
    program = fenced.program
    handle = program.do(f"heap 2 {40 * MIB}").split()[1]
    assert fenced.shown().used_bytes == 40 * MIB
    assert program.do(f"heap 2 {40 * MIB}") == "failed status 0x51"
    objects = fenced.shown().objects
    assert program.do(f"heap 3 0 {program.do('group').split()[1]}") == "failed status 0x1b"
    assert fenced.shown().objects == objects
    assert program.do(f"heap 3 0 {handle}") == "ok " + handle
    assert fenced.shown().used_bytes == 0
    # Other functions are refused, for example one that reads a pointer.
    assert program.do("heap 27") == "failed status 0x1b"


def test_while_the_gate_is_closed_makers_wait_and_questions_and_memory_do_not(fenced: Keeper) -> None:
    program = fenced.program
    before = fenced.shown().objects
    fenced.ask("close")
    assert program.do("maker") == "ok None"
    wait_for(lambda: fenced.shown().held == 1, "the call to be held")
    assert program.do("ask") == "ok 0"
    assert program.do(f"allocate {MIB}").startswith("ok")
    assert fenced.shown().objects == before
    fenced.ask("open")
    wait_for(lambda: fenced.shown().objects == before + 1, "the call to be made")
    wait_for(lambda: fenced.shown().held == 0, "nothing to be held")


def test_a_held_call_of_a_killed_process_is_dropped(fenced: Keeper) -> None:
    fenced.ask("close")
    child = int(fenced.program.do("maker_process").split()[1])
    wait_for(lambda: fenced.shown().held == 1, "the call to be held")
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: fenced.shown().held == 0, "the call to be dropped")
    assert fenced.program.do("ask") == "ok 0"


def test_a_program_ends_while_its_call_is_held(fenced: Keeper) -> None:
    fenced.ask("close")
    assert fenced.program.do("maker") == "ok None"
    wait_for(lambda: fenced.shown().held == 1, "the call to be held")
    os.kill(fenced.program_pid, signal.SIGKILL)
    assert fenced.wait_for_end() == 0


def test_a_client_ends_when_its_file_is_nobody_s(fenced: Keeper) -> None:
    """Like after execve(): the file is closed while the process lives on."""
    assert fenced.program.do(f"allocate {MIB}").startswith("ok")
    assert fenced.program.do("close") == "ok None"
    wait_for(lambda: fenced.shown().objects == 0, "the client to be freed")
    assert fenced.shown().used_bytes == 0


def test_a_client_stays_when_another_process_has_its_file(fenced: Keeper) -> None:
    """Like after a fork() whose parent ends."""
    before = fenced.shown().objects
    assert fenced.program.do("leave").startswith("ok ")
    assert fenced.program.do("ask") == "ok 0"
    assert fenced.shown().objects == before
    fenced.program.process.stdin.close()  # type: ignore[union-attr]
    assert fenced.wait_for_end() == 0


def test_a_program_whose_file_is_with_somebody_else_is_killed(gpu: Gpu, tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        run_native_broker(Path(folder), gpu, native_tenant("blue")) as broker,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
    ):
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        command = (sys.executable, "-S", str(PROGRAM), str(gpu.fake.directory / "socket"), gpu.version)
        with NativeProgram(launch(broker, "blue", *command)).wait_until_ready() as program:
            assert program.do("begin") == "ok None"
            assert program.do(f"hand_over {tmp_path / 'socket'}") == "ok None"
            connection, _ = listener.accept()
            with connection:
                _, files, _, _ = socket.recv_fds(connection, 1, 1)
                # This process does not belong to the program.
                assert program.wait_for_end() == -signal.SIGKILL
                os.close(files[0])


def test_a_static_program_is_fenced_as_well(keeper: Path, gpu: Gpu, hostile: Path) -> None:
    assert try_it(keeper, gpu, hostile, "version") == ["0"]


def test_a_thread_with_descriptors_of_its_own_is_refused(keeper: Path, gpu: Gpu, hostile: Path) -> None:
    assert try_it(keeper, gpu, hostile, "beside") == [str(-errno.EPERM)]


def test_a_call_that_a_tracer_changes_is_the_fence_s(keeper: Path, gpu: Gpu, hostile: Path) -> None:
    assert try_it(keeper, gpu, hostile, "traced") == [str(-errno.EPERM)]


def test_there_is_no_ring(keeper: Path, gpu: Gpu, hostile: Path) -> None:
    assert try_it(keeper, gpu, hostile, "ring") == [str(-errno.EPERM)]


@pytest.mark.parametrize("architecture", ["i386", "x32"])
def test_a_call_of_another_architecture_ends_the_program(
    keeper: Path, gpu: Gpu, hostile: Path, architecture: str
) -> None:
    assert try_it(keeper, gpu, hostile, architecture) == []


def test_what_a_fence_is_asked_of(keeper: Path, gpu: Gpu, hostile: Path) -> None:
    assert try_it(keeper, gpu, hostile, "others") == [
        "FIONREAD 0",
        "TCGETS 0",
        "TCGETS2 0",
        f"FIGETBSZ {-errno.ENOTTY}",
        f"refused {-errno.EPERM}",
        f"version of another device {-errno.ENOTTY}",
        f"hello {-errno.ENOTTY}",
        "0",
    ]


def test_a_program_has_no_privilege_with_which_the_driver_would_give_it_all_memory(
    keeper: Path, gpu: Gpu, hostile: Path
) -> None:
    lines = try_it(keeper, gpu, hostile, "privileges")
    sets = {name: int(value, 16) for name, value in (line.split(":\t") for line in lines[:-1])}
    assert sets["NoNewPrivs"] == 1
    for number in (21, 19, 16, 17, 38, 39, 40):
        assert not (sets["CapPrm"] | sets["CapEff"] | sets["CapInh"]) >> number & 1


def test_a_fence_has_no_privilege_but_to_look_into_processes(fenced: Keeper) -> None:
    status = Path(f"/proc/{fenced.fence_pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    # CAP_SYS_PTRACE, CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH. The user is root, so no tenant's process may stop the
    # fence.
    assert int(fields["CapPrm"], 16) == int(fields["CapEff"], 16) == 1 << 19 | 1 << 1 | 1 << 2
    assert fields["Uid"].split() == ["0"] * 4


def test_a_program_ends_with_the_supervisor(keeper: Path, gpu: Gpu) -> None:
    with run_fenced(keeper, gpu) as running:
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait(LIMIT_S)
        # The fence writes to the cgroup's kill file, which is a pipe here, and ends. After that, nobody answers calls.
        wait_for(lambda: not Path(f"/proc/{running.fence_pid}").exists(), "the fence to end")


def test_a_driver_that_is_not_known_is_refused(keeper: Path) -> None:
    with run_gpu("590.10") as gpu, run_fenced(keeper, gpu) as running:
        assert running.program.do("begin") == "failed status 0x56"
