# SPDX-License-Identifier: Apache-2.0
"""Compiler results that a supervisor keeps: who receives them, that nobody can change them, and their number."""

import contextlib
import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.compute.site import Site, site
from tests.compute.executor_rig import (
    DONE,
    HOSTILE_COMPILE,
    Child,
    Message,
    Slice,
    call,
    make_hostile_child,
    make_product,
    run_slice,
    tell,
    wait_for,
)
from tests.compute.icd_rig import BUILT, make
from tests.compute.test_sandbox import compile_job

PROGRAMS = Path(__file__).parent / "programs"
# Descriptors that hostile_child.c keeps.
JOB, RESULT = 100, 101
MMAP, PWRITE, FTRUNCATE = 9, 18, 77
READ_WRITE, SHARED = 3, 1
# The size of a job of hostile_child.c, its result, and the bookkeeping of both.
ENTRY_BYTES = 512 + 4096 + 128


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_product()
    return make_hostile_child(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def tenant(program: Path, tmp_path: Path) -> Iterator[Slice]:
    with run_slice(tmp_path, "--backend", "hostile", "--compilers", "1", child=program) as slice_:
        yield slice_


def counters(slice_: Slice) -> Message:
    """Return an answer of the supervisor, which contains its counters."""
    return slice_.thaw()


def occupy(slice_: Slice) -> Child:
    """Keep the only compiler busy until this child is killed."""
    child = slice_.start()
    before = counters(slice_).compilers
    tell(child.window, HOSTILE_COMPILE, text=b"s")
    wait_for(lambda: counters(slice_).compilers == before + 1, "the compiler")
    return child


def descriptors(slice_: Slice) -> list[str]:
    """The files that the supervisor has open."""
    names = []
    for path in Path(f"/proc/{slice_.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.append(str(path.readlink()))
    return names


def waiting(slice_: Slice) -> int:
    """The number of copied jobs that wait for a compiler."""
    return sum("/memfd:vgpu-job" in name for name in descriptors(slice_))


def ask(child: Child, job: bytes) -> int:
    return tell(child.window, HOSTILE_COMPILE, text=job)


def answer(child: Child) -> tuple[int, bytes]:
    data = child.window.reply().data
    return int.from_bytes(data[:8], "little", signed=True), data[8:].rstrip(b"\0")


def test_a_second_program_of_the_tenant_starts_no_compiler(tenant: Slice) -> None:
    first = tenant.start()
    assert compile_job(first, b"cone") == (0, b"one")
    tenant.kill(first.number)
    tenant.wait_for_exit(first.number)
    second = tenant.start()
    assert compile_job(second, b"cone") == (0, b"one")
    assert compile_job(second, b"ctwo") == (0, b"two")
    assert (counters(tenant).compilers, counters(tenant).hits) == (2, 1)


def test_another_tenant_s_program_starts_its_own(tenant: Slice, program: Path, tmp_path: Path) -> None:
    assert compile_job(tenant.start(), b"cone") == (0, b"one")
    with run_slice(tmp_path, "--backend", "hostile", child=program) as other:
        assert compile_job(other.start(), b"cone") == (0, b"one")
        assert (counters(other).compilers, counters(other).hits) == (1, 0)


def test_a_result_is_had_while_compilers_are_busy_and_their_rate_is_used_up(tenant: Slice) -> None:
    child = tenant.start()
    assert compile_job(child, b"cone") == (0, b"one")
    occupy(tenant)
    # More jobs than the number of compilers that may start at once.
    for _ in range(100):
        assert compile_job(child, b"cone") == (0, b"one")
    assert (counters(tenant).compilers, counters(tenant).hits) == (2, 100)


def test_programs_that_wait_for_the_same_share_one_compiler(tenant: Slice) -> None:
    busy, children = occupy(tenant), [tenant.start() for _ in range(3)]
    for child in children:
        ask(child, b"cone")
    wait_for(lambda: waiting(tenant) == 3, "the jobs")
    tenant.kill(busy.number)
    assert [answer(child) for child in children] == [(0, b"one")] * 3
    assert (counters(tenant).compilers, counters(tenant).hits) == (2, 2)


def test_a_job_that_is_changed_while_it_waits_is_compiled_as_it_was(tenant: Slice) -> None:
    busy, child = occupy(tenant), tenant.start()
    ask(child, b"cgood")
    wait_for(lambda: waiting(tenant) == 1, "the job")
    assert call(child.window, PWRITE, JOB, b"cevil", 5, 0) == 5
    tenant.kill(busy.number)
    assert answer(child) == (0, b"good")
    other = tenant.start()
    assert compile_job(other, b"cgood") == (0, b"good")
    assert compile_job(other, b"cevil") == (0, b"evil")
    assert (counters(tenant).compilers, counters(tenant).hits) == (3, 1)


def test_jobs_with_the_same_hash_are_told_apart(tenant: Slice) -> None:
    one = b"c" + bytes(range(1, 32))
    other = bytearray(one)
    # The hash of kept.c stays the same if the highest bit of a word flips together with its effect on the next word.
    for index in (15, 19, 23):
        other[index] ^= 0x80
    child = tenant.start()
    for job in (one, bytes(other), one):
        assert compile_job(child, job) == (0, job[1:])
    assert (counters(tenant).compilers, counters(tenant).hits) == (2, 1)


def test_a_result_cannot_be_changed_by_those_who_have_it(tenant: Slice) -> None:
    child = tenant.start()
    assert compile_job(child, b"cgood") == (0, b"good")
    assert call(child.window, PWRITE, RESULT, b"evil", 4, 0) == -errno.EPERM
    assert call(child.window, FTRUNCATE, RESULT, 0) == -errno.EPERM
    assert call(child.window, FTRUNCATE, RESULT, 1 << 20) == -errno.EPERM
    assert call(child.window, MMAP, 0, 4096, READ_WRITE, SHARED, RESULT, 0) == -errno.EPERM
    assert compile_job(tenant.start(), b"cgood") == (0, b"good")
    assert (counters(tenant).compilers, counters(tenant).hits) == (1, 1)


@pytest.mark.parametrize(("job", "answer"), [(b"?", (errno.EIO, b"")), (b"rwhy", (0, b"why"))])
def test_what_fails_is_not_kept(tenant: Slice, job: bytes, answer: tuple[int, bytes]) -> None:
    child = tenant.start()
    assert [compile_job(child, job) for _ in range(3)] == [answer] * 3
    assert (counters(tenant).compilers, counters(tenant).hits, counters(tenant).kept_bytes) == (3, 0, 0)


def test_what_was_used_longest_ago_goes_first(program: Path, tmp_path: Path) -> None:
    room = str(3 * ENTRY_BYTES)
    with run_slice(tmp_path, "--backend", "hostile", "--compile-cache-bytes", room, child=program) as slice_:
        child = slice_.start()
        for job in (b"ca", b"cb", b"cc", b"ca", b"cd"):
            assert compile_job(child, job) == (0, job[1:])
        assert (counters(slice_).compilers, counters(slice_).hits) == (4, 1)
        assert 2 * ENTRY_BYTES < counters(slice_).kept_bytes <= 3 * ENTRY_BYTES
        for job in (b"ca", b"cc", b"cd"):
            assert compile_job(child, job) == (0, job[1:])
        assert (counters(slice_).compilers, counters(slice_).hits) == (4, 4)
        assert compile_job(child, b"cb") == (0, b"b")
        assert counters(slice_).compilers == 5


@pytest.mark.parametrize("room", ["0", "1000"], ids=["off", "less than a job needs"])
def test_without_room_nothing_is_kept(program: Path, tmp_path: Path, room: str) -> None:
    with run_slice(tmp_path, "--backend", "hostile", "--compile-cache-bytes", room, child=program) as slice_:
        child = slice_.start()
        assert [compile_job(child, b"cone") for _ in range(2)] == [(0, b"one")] * 2
        assert (counters(slice_).compilers, counters(slice_).hits, counters(slice_).kept_bytes) == (2, 0, 0)


def test_jobs_and_results_leave_no_descriptors(tenant: Slice) -> None:
    child = tenant.start()
    for _ in range(20):
        assert compile_job(child, b"cone") == (0, b"one")
        assert compile_job(child, b"?")[0] == errno.EIO
    assert len(descriptors(tenant)) < 32


def test_waiting_jobs_are_bounded_by_the_supervisor_s_descriptors(program: Path, tmp_path: Path) -> None:
    few = ("prlimit", "--nofile=800:800")
    with run_slice(tmp_path, "--backend", "hostile", "--compilers", "1", child=program, machine=few) as slice_:
        flooding = [slice_.start() for _ in range(4)]
        refused: list[int] = []

        def settled(asked: int) -> bool:
            for child in flooding:
                while reply := child.window.take():
                    refused.append(int.from_bytes(reply.data[:8], "little"))
            return len(refused) + waiting(slice_) + 1 == asked

        for number, child in enumerate(flooding, 1):
            for _ in range(64):
                ask(child, b"s")
            wait_for(lambda: settled(64 * number), "an answer or a place for each job")  # noqa: B023
        assert set(refused) == {errno.EAGAIN}
        assert len(refused) > 64
        assert len(descriptors(slice_)) < 800
        # A child without a job still gets a place, and the supervisor still serves the arbiter.
        before = waiting(slice_)
        calm = slice_.start()
        number = ask(calm, b"ccalm")
        wait_for(lambda: waiting(slice_) == before + 1, "the job")
        assert slice_.freeze().op == slice_.thaw().op == DONE
        for child in flooding:
            slice_.kill(child.number)
        reply = calm.window.reply()
        assert (reply.call, int.from_bytes(reply.data[:8], "little")) == (number, 0)


@pytest.fixture(scope="module")
def running() -> Iterator[Site]:
    make(*(BUILT / name for name in ("libvgpu-opencl.so", "vgpu-child", "vgpu-supervisor", "vgpu-broker")))
    with site("[tenants.blue]\n[tenants.red]\n[tenants.off]\ncompile_cache = 0\n") as running:
        yield running


def compute(running: Site, tenant: str) -> tuple[int, int]:
    """Run a program. Return how many compilers it started and how many jobs the cache served."""
    before = running.tenants()[tenant]["supervisor"]
    environment = {"PYOPENCL_NO_CACHE": "1"}
    assert running.run(tenant, sys.executable, PROGRAMS / "adding.py", environment=environment).startswith("computing")
    wait_for(lambda: not running.tenants()[tenant]["processes"], "the child's end")
    after = running.tenants()[tenant]["supervisor"]
    return tuple(after[name] - before[name] for name in ("compilers", "compile_hits"))


def test_a_real_program_s_next_run_starts_no_compiler(running: Site) -> None:
    assert compute(running, "blue") == (1, 0)
    assert compute(running, "blue") == (0, 1)
    assert compute(running, "red") == (1, 0)
    assert running.tenants()["blue"]["supervisor"]["compile_kept_bytes"] > 4096


def test_a_tenant_that_keeps_nothing_compiles_each_time(running: Site) -> None:
    assert [compute(running, "off") for _ in range(2)] == [(1, 0), (1, 0)]
