# SPDX-License-Identifier: Apache-2.0
"""What a tenant's code can do in a child: system calls that reach out of the sandbox are refused."""

import errno
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    CALL,
    HOSTILE_COMPILE,
    Child,
    Slice,
    call,
    is_alive,
    make_hostile_child,
    make_product,
    run_slice,
    tell,
)

READ, WRITE, OPEN, GETDENTS = 0, 1, 2, 217
SIGCHLD = 17
AT_FDCWD = -100


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_product()
    directory = tmp_path_factory.mktemp("hostile")
    return make_hostile_child(directory)


@pytest.fixture(scope="module")
def hostile(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Slice, Child]]:
    with run_slice(tmp_path_factory.mktemp("slice"), "--backend", "hostile", child=program) as slice_:
        yield slice_, slice_.start()


@pytest.mark.parametrize(
    ("what", "number", "arguments"),
    [
        ("fork", 57, ()),
        ("vfork", 58, ()),
        ("clone a process", 56, (SIGCHLD,)),
        ("clone a thread", 56, (0x50F00, b"x" * 128)),
        ("clone a user namespace", 56, (0x10000000 | SIGCHLD,)),
        ("execve", 59, (b"/usr/bin/ld", 0, 0)),
        ("execveat", 322, (AT_FDCWD, b"/usr/bin/ld", 0, 0, 0)),
        ("socket of the internet", 41, (2, 1, 0)),
        ("unix socket", 41, (1, 1, 0)),
        ("socketpair", 53, (1, 1, 0, b"12345678")),
        ("signal to everybody", 62, (-1, 9)),
        ("signal to its group", 62, (0, 9)),
        ("signal to another thread group", 234, (2, 2, 9)),
        ("queue a signal", 129, (2, 9, b"x" * 128)),
        ("ptrace", 101, (16, 1, 0, 0)),
        ("read another process's memory", 310, (2, 0, 0, 0, 0, 0)),
        ("mount", 165, (b"a", b"/tmp", b"tmpfs", 0, 0)),
        ("unshare", 272, (0x10000000,)),
        ("setns", 308, (3, 0)),
        ("pivot_root", 155, (b".", b".")),
        ("chroot", 161, (b"/tmp",)),
        ("bpf", 321, (0, 0, 0)),
        ("perf_event_open", 298, (0, 0, 0, 0, 0)),
        ("io_uring_setup", 425, (8, 0)),
        ("userfaultfd", 323, (0,)),
        ("add_key", 248, (b"user", b"a", b"b", 1, 0)),
        ("open by handle", 304, (0, 0, 0)),
        ("another process's descriptor", 438, (3, 3, 0)),
        ("a descriptor of a process", 434, (1, 0)),
        ("survive the supervisor", 157, (1, 0)),
        ("another filter", 157, (22, 2, 0)),
        ("signals by fcntl", 72, (6, 8, -1)),
        ("raise a limit of another process", 302, (1, 7, 0, 0)),
        ("schedule in real time", 144, (0, 1, b"\1\0\0\0")),
        ("send by another descriptor", 44, (2, b"x", 1, 0, 0, 0)),
        ("create a device", 133, (b"/tmp/device", 0o60666, 0x800)),
        ("reboot", 169, (0,)),
        ("keep time", 227, (0, 0)),
    ],
)
def test_a_call_that_reaches_out_is_refused(
    hostile: tuple[Slice, Child], what: str, number: int, arguments: tuple[int | bytes, ...]
) -> None:
    assert call(hostile[1].window, number, *arguments) == -errno.EPERM, what


def test_a_child_sends_itself_no_signal_but_that_of_abort(hostile: tuple[Slice, Child]) -> None:
    window = hostile[1].window
    pid, thread = call(window, 39), call(window, 186)
    assert call(window, 234, pid, thread, 0) == 0
    # The first process of a PID namespace ignores SIGABRT.
    if pid == 1:
        assert call(window, 234, pid, thread, signal.SIGABRT) == 0
    for number in set(range(1, 65)) - {signal.SIGABRT}:
        assert call(window, 234, pid, thread, number) == -errno.EPERM, number
    assert call(window, 234, pid + 1, thread, signal.SIGABRT) == -errno.EPERM


def test_calls_by_other_numbers_do_not_exist(hostile: tuple[Slice, Child]) -> None:
    assert call(hostile[1].window, 435, 0, 0) == -errno.ENOSYS  # clone3
    assert call(hostile[1].window, 0x40000000 + 57) == -errno.ENOSYS  # fork() of the x32 interface


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/root",
        "/home",
        "/proc/self/mem",
        "/proc/1/environ",
        "/sys/kernel",
        "/dev/mem",
        "/dev/dri",
        "/var",
        "/run",
        "/usr/bin/ld",
        "/usr/share/doc",
    ],
)
def test_the_host_s_files_are_not_there(hostile: tuple[Slice, Child], path: str) -> None:
    assert call(hostile[1].window, OPEN, path.encode(), os.O_RDONLY) == -errno.ENOENT


def test_libraries_can_be_read_and_not_written(hostile: tuple[Slice, Child]) -> None:
    window = hostile[1].window
    descriptor = call(window, OPEN, b"/etc/ld.so.cache", os.O_RDONLY)
    assert descriptor >= 0
    call(window, 3, descriptor)
    for path in (b"/usr/lib/new", b"/etc/new", b"/new", b"/dev/new"):
        assert call(window, OPEN, path, os.O_CREAT | os.O_WRONLY, 0o600) in {-errno.EROFS, -errno.EACCES}
    assert call(window, OPEN, b"/etc/ld.so.cache", os.O_WRONLY) in {-errno.EROFS, -errno.EACCES}


def test_scratch_space_is_private_and_bounded(program: Path, tmp_path: Path) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--scratch-bytes", str(2 << 20), child=program) as slice_:
        one, other = slice_.start(), slice_.start()
        descriptor = call(one.window, OPEN, b"/tmp/file", os.O_CREAT | os.O_RDWR, 0o600)
        assert descriptor >= 0
        assert call(one.window, 285, descriptor, 0, 0, 1 << 20) == 0  # fallocate
        assert call(one.window, 285, descriptor, 0, 0, 4 << 20) in {-errno.ENOSPC, -errno.EFBIG}
        second = call(one.window, OPEN, b"/tmp/second", os.O_CREAT | os.O_RDWR, 0o600)
        assert call(one.window, 285, second, 0, 0, 2 << 20) == -errno.ENOSPC
        assert call(other.window, OPEN, b"/tmp/file", os.O_RDONLY) == -errno.ENOENT


def test_the_host_sees_a_process_without_privileges(hostile: tuple[Slice, Child]) -> None:
    pid = hostile[0].pid_of(hostile[1].number)
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        lines = (task / "status").read_text().splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        if os.geteuid() == 0:
            assert status["Uid"].split() == ["65534"] * 4
            assert status["Groups"].split() == []
    assert Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    assert {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()} == {0, 1, 2, 6, 7}


def test_memory_beyond_the_limit_is_not_given(program: Path, tmp_path: Path) -> None:
    options = ("--backend", "hostile", "--overhead-bytes", str(256 << 20))
    with run_slice(tmp_path, *options, child=program) as slice_:
        window = slice_.start(memory=64 << 20).window
        # mmap of anonymous memory, private and shared
        assert call(window, 9, 0, 128 << 20, 3, 0x22, -1, 0) > 0
        assert call(window, 9, 0, 200 << 20, 3, 0x22, -1, 0) == -errno.ENOMEM
        assert call(window, 9, 0, 200 << 20, 3, 0x21, -1, 0) == -errno.ENOMEM


@pytest.mark.parametrize("size", [0, 21 << 26, 30 << 26], ids=["default", "2 MiB", "1 GiB"])
def test_huge_pages_which_no_limit_counts_are_refused(hostile: tuple[Slice, Child], size: int) -> None:
    window = hostile[1].window
    assert call(window, 9, 0, 1 << 30, 3, 0x40022 | size, -1, 0) == -errno.ENOMEM
    assert call(window, 319, b"huge", 0x4 | size) == -errno.EINVAL  # memfd_create
    descriptor = call(window, 319, b"small", 0)
    assert descriptor > 0
    call(window, 3, descriptor)


def test_calls_that_delay_the_gate_are_refused(hostile: tuple[Slice, Child]) -> None:
    window = hostile[1].window
    assert call(window, 9, 0, 4096, 3, 0x8022, -1, 0) == -errno.EOPNOTSUPP  # MAP_POPULATE
    memory = call(window, 9, 0, 4096, 3, 0x22, -1, 0)
    assert memory > 0
    for advice in (22, 23):  # MADV_POPULATE_READ and _WRITE
        assert call(window, 28, memory, 4096, advice) == -errno.EINVAL
    assert call(window, 28, memory, 4096, 4) == 0  # MADV_DONTNEED
    for command in (1, 2, 4):  # membarrier on all processors
        assert call(window, 324, command, 0, 0) == -errno.EINVAL
    assert call(window, 324, 16, 0, 0) == call(window, 324, 8, 0, 0) == 0


def test_a_child_that_lies_about_its_memory_is_killed_alone(program: Path, tmp_path: Path) -> None:
    """The child maps addresses without a reservation. The slice's memory limits the pages that it touches."""
    options = ("--backend", "hostile", "--resident-bytes", str(64 << 20))
    with run_slice(tmp_path, *options, child=program) as slice_:
        if "memory=address-space" in slice_.ready():
            pytest.skip("this machine lends nobody a memory controller")
        child, neighbour = slice_.start(memory=64 << 20), slice_.start(memory=64 << 20)
        zero = call(child.window, OPEN, b"/dev/zero", os.O_RDONLY)
        # Shared anonymous memory: no limit of a single process counts it.
        address = call(child.window, 9, 0, 512 << 20, 3, 0x21, -1, 0)
        assert address > 0
        tell(child.window, CALL, number=READ, arguments=(zero, address, 512 << 20))
        assert os.WTERMSIG(slice_.wait_for_exit(child.number).status) == 9
        assert call(neighbour.window, 39) == 1


def test_everything_can_be_demanded(program: Path, tmp_path: Path) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--sandbox", "all", child=program) as slice_:
        child, message = slice_.try_start()
        assert message.reason == ""
        log = slice_.log
        exited = None
        try:
            child.window.wait_for_state(1)
        except AssertionError:
            exited = slice_.wait_for_exit(child.number)
        # If the machine permits everything, the child serves. Otherwise it reports what the machine does not permit.
        assert exited is None or "missing=" in log.read_text()
        assert exited is None or exited.reason.startswith("sandbox: no ")


def compile_job(window_of: Child, job: bytes) -> tuple[int, bytes]:
    tell(window_of.window, HOSTILE_COMPILE, text=job)
    data = window_of.window.reply().data
    return struct.unpack_from("=q", data)[0], data[8:].rstrip(b"\0")


def test_a_compiler_reads_its_job_and_starts_the_linker(hostile: tuple[Slice, Child]) -> None:
    assert compile_job(hostile[1], b"chello") == (0, b"hello")
    status, output = compile_job(hostile[1], b"x")
    assert status == 0
    assert b"GNU ld" in output


@pytest.mark.parametrize(
    ("job", "status"),
    [(b"?", errno.EIO), (b"m", errno.EIO), (b"o", errno.EIO), (b"s", errno.ETIMEDOUT)],
    ids=["fails", "takes all memory", "writes without an end", "takes for ever"],
)
def test_a_compiler_is_bounded(program: Path, tmp_path: Path, job: bytes, status: int) -> None:
    options = ("--compiler-limit-ms", "1000" if job == b"s" else "60000", "--compiler-bytes", str(256 << 20))
    with run_slice(tmp_path, "--backend", "hostile", *options, child=program) as slice_:
        child = slice_.start()
        assert compile_job(child, job)[0] == status
        # The child continues to serve.
        assert compile_job(child, b"cagain") == (0, b"again")


@pytest.mark.parametrize("gate", ["auto", "signal"])
def test_a_compiler_s_processes_end_with_it(program: Path, tmp_path: Path, gate: str) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--gate", gate, child=program) as slice_:
        child = slice_.start()
        assert compile_job(child, b"f")[0] == 0
        # The janitor and the child remain.
        assert len([pid for pid in slice_.processes() if is_alive(pid)]) == 2
