# SPDX-License-Identifier: Apache-2.0
"""A supervisor and its arbiter: datagrams start and end children, and children share their slice's memory."""

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.executor_rig import (
    CALL,
    COMPILE,
    CONTROL,
    CRASH,
    DONE,
    ECHO,
    FAILED,
    LOST,
    RELEASE,
    RESERVE,
    SERVING,
    START,
    THAW,
    Slice,
    call,
    is_alive,
    kill,
    make_hostile_child,
    make_product,
    run_slice,
    tell,
    wait_for,
)

MIB = 1 << 20
SENDTO = 44
# from executor/link.h
LINK = struct.Struct("=IIQQii192s")
LINK_RESERVE, LINK_RELEASE = 3, 4
SUPERVISOR = 7


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Slice]:
    make_product()
    with run_slice(tmp_path) as slice_:
        yield slice_


@pytest.fixture(scope="module")
def hostile_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    make_product()
    return make_hostile_child(tmp_path_factory.mktemp("hostile"))


def test_a_child_serves_until_it_is_killed(tenant: Slice) -> None:
    child = tenant.start()
    assert child.window.ask(ECHO, 1).value == 0
    assert tenant.kill(child.number).op == DONE
    exited = tenant.wait_for_exit(child.number)
    assert os.WTERMSIG(exited.status) == 9
    assert exited.reason == "the arbiter killed it"
    assert exited.processor_ns > 0
    assert child.window.state == LOST
    assert child.window.reason == "the child was ended by signal 9: the arbiter killed it"
    assert tenant.kill(child.number).reason == "there is no child with this number"


def test_the_reason_of_a_kill_is_the_arbiter_s(tenant: Slice) -> None:
    child = tenant.start()
    tenant.kill(child.number, reason="the program has ended")
    assert tenant.wait_for_exit(child.number).reason == "the program has ended"
    said = f"child={child.number} event=exited status=0x9"
    line = next(line for line in tenant.log.read_text().splitlines() if said in line)
    assert line.endswith('reason="the program has ended"')


def test_children_are_told_apart_by_the_arbiter_s_numbers(tenant: Slice) -> None:
    first, second = tenant.start(), tenant.start()
    _, message = tenant.try_start(number=first.number)
    assert (message.op, message.reason) == (FAILED, "there is a child with this number")
    tenant.kill(first.number)
    tenant.wait_for_exit(first.number)
    assert second.window.ask(ECHO, 1).value == 0
    # The number of an ended child may be used again.
    third, message = tenant.try_start(number=first.number)
    assert message.op == DONE
    third.window.wait_for_state(1)


@pytest.mark.parametrize("window", [0, 4096, (4 << 20) + 1, (16 << 30) + 4096, 2**64 - 4096])
def test_a_window_of_a_size_that_is_not_allowed_is_refused(tenant: Slice, window: int) -> None:
    _, message = tenant.try_start(window=window)
    assert (message.op, message.reason) == (FAILED, "window_bytes is out of range")


def test_a_child_that_cannot_serve_says_why(tmp_path: Path) -> None:
    make_product()
    with run_slice(tmp_path, "--backend", "nothing") as slice_:
        child, message = slice_.try_start()
        assert message.op == DONE
        exited = slice_.wait_for_exit(child.number)
        assert exited.reason == "there is no backend 'nothing'"
        assert child.window.reason == "the child exited with status 1: there is no backend 'nothing'"
        assert os.WEXITSTATUS(exited.status) == 1


@pytest.mark.parametrize(
    "datagram",
    [
        b"",
        b"short",
        CONTROL.pack(2, START, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b""),
        CONTROL.pack(1, 99, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b""),
        CONTROL.pack(1, START, 1, 1, 4 * MIB, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b""),
        CONTROL.pack(1, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b"") + b"more",
    ],
    ids=["empty", "short", "another version", "an unknown operation", "no descriptors", "too long"],
)
def test_a_malformed_datagram_of_the_arbiter_ends_everything(tenant: Slice, datagram: bytes) -> None:
    child = tenant.start()
    tenant.control.send(datagram)
    assert tenant.process.wait(60) == 0
    assert child.window.state == LOST


def test_descriptors_that_do_not_belong_to_a_datagram_end_everything(tenant: Slice) -> None:
    message = CONTROL.pack(1, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, b"")
    socket.send_fds(tenant.control, [message], [0])
    assert tenant.process.wait(60) == 0


def test_a_child_s_death_is_its_own(tenant: Slice) -> None:
    victim, neighbour = tenant.start(), tenant.start()
    kill(tenant.pid_of(victim.number))
    assert os.WTERMSIG(tenant.wait_for_exit(victim.number).status) == 9
    assert victim.window.state == LOST
    assert neighbour.window.ask(ECHO, 1).value == 0


def test_a_crash_is_told_with_its_signal(hostile_program: Path, tmp_path: Path) -> None:
    with run_slice(tmp_path, "--backend", "hostile", child=hostile_program) as slice_:
        child = slice_.start()
        tell(child.window, CRASH)
        exited = slice_.wait_for_exit(child.number)
        assert os.WTERMSIG(exited.status) == 11
        assert exited.reason == ""


def test_children_share_the_memory_of_their_slice(tenant: Slice) -> None:
    one, other = tenant.start(memory=100 * MIB), tenant.start(memory=100 * MIB)
    assert one.window.ask(RESERVE, 60 * MIB).status == 0
    # The supervisor's count for this child, which is shown to users.
    assert one.stream.wholes[6] == 60 * MIB
    assert other.stream.wholes[6] == 0
    assert other.window.ask(RESERVE, 41 * MIB).status == errno.ENOMEM
    assert other.window.ask(RESERVE, 40 * MIB).status == 0
    assert one.window.ask(RESERVE, 1).status == errno.ENOMEM
    # The other child can use memory that a child releases or leaves behind.
    assert one.window.ask(RELEASE, 60 * MIB).status == 0
    assert other.window.ask(RESERVE, 40 * MIB).status == 0
    tenant.kill(other.number)
    tenant.wait_for_exit(other.number)
    assert one.window.ask(RESERVE, 84 * MIB).status == 0
    assert one.window.ask(RESERVE, 2**64 - 1).status == errno.ENOMEM


def test_it_says_how_much_memory_its_children_have(tenant: Slice) -> None:
    child = tenant.start(memory=100 * MIB)
    for _ in range(50):
        assert child.window.ask(RESERVE, 60 * MIB).status == 0
        assert child.window.ask(RELEASE, 60 * MIB).status == 0
    assert child.window.ask(RESERVE, 60 * MIB).status == 0
    tenant.wait_for_reserved(60 * MIB)
    tenant.kill(child.number)
    tenant.wait_for_exit(child.number)
    tenant.wait_for_reserved(0)
    # Frequent changes are reported only from time to time.
    assert len(tenant.reserved) < 50


def link_datagram(op: int, size: int) -> bytes:
    return LINK.pack(1, op, 0, size, 0, 0, b"")


@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        (b"x", "it sent a malformed datagram"),
        (link_datagram(LINK_RELEASE, 1), "it released more memory than it had reserved"),
        (link_datagram(99, 0), "it sent a datagram that its supervisor does not know"),
        (link_datagram(5, 0), "it sent a malformed datagram"),
        (link_datagram(LINK_RESERVE, 0) + b"more", "it sent a malformed datagram"),
    ],
    ids=["short", "memory that it has not", "unknown", "a job without descriptors", "long"],
)
def test_a_child_that_sends_another_datagram_is_killed(
    hostile_program: Path, tmp_path: Path, datagram: bytes, reason: str
) -> None:
    with run_slice(tmp_path, "--backend", "hostile", child=hostile_program) as slice_:
        child, neighbour = slice_.start(), slice_.start()
        tell(child.window, CALL, number=SENDTO, arguments=(SUPERVISOR, datagram, len(datagram), 0, 0, 0))
        assert slice_.wait_for_exit(child.number).reason == reason
        assert call(neighbour.window, 39) == 1  # getpid


def test_a_flood_of_datagrams_delays_its_own_child(hostile_program: Path, tmp_path: Path) -> None:
    with run_slice(tmp_path, "--backend", "hostile", child=hostile_program) as slice_:
        child, neighbour = slice_.start(), slice_.start()
        datagram = link_datagram(1, 0)
        tell(child.window, CALL, number=SENDTO, times=10**9, arguments=(SUPERVISOR, datagram, len(datagram), 0, 0, 0))
        for _ in range(10):
            assert slice_.freeze().op == DONE
            assert slice_.thaw().op == DONE
        assert call(neighbour.window, 39) == 1
        slice_.kill(child.number)
        assert slice_.wait_for_exit(child.number).reason == "the arbiter killed it"


def test_datagrams_of_all_children_together_are_read_at_a_bounded_rate(hostile_program: Path, tmp_path: Path) -> None:
    datagram = link_datagram(1, 0)
    many, children = 1000, 8
    with run_slice(tmp_path, "--backend", "hostile", child=hostile_program) as slice_:
        floods = [slice_.start() for _ in range(children)]
        begun = time.monotonic()
        for child in floods:
            tell(
                child.window, CALL, number=SENDTO, times=many, arguments=(SUPERVISOR, datagram, len(datagram), 0, 0, 0)
            )
        for child in floods:
            child.window.reply()
        # Each child sent 64 at once, and at most 300 are in its socket.
        assert time.monotonic() - begun >= children * (many - 64 - 300) / 2000
        # The supervisor reads a quiet child's datagram before those of the others.
        quiet = slice_.start().number
        wait_for(
            lambda: f"child={quiet} event=serving" in slice_.log.read_text(), "the first datagram of a quiet child"
        )


def test_what_a_child_prints_is_bounded_and_made_printable(hostile_program: Path, tmp_path: Path) -> None:
    with run_slice(tmp_path, "--backend", "hostile", child=hostile_program) as slice_:
        child = slice_.start()
        title = b"\x1b]0;a title\x07 tenant=red\n"
        assert call(child.window, 1, 2, title, len(title)) == len(title)
        line = b"y" * 200 + b"\n"
        assert call(child.window, 1, 1, line, len(line), times=5000) == len(line)
        slice_.kill(child.number)
        slice_.wait_for_exit(child.number)
        log = slice_.log.read_text()
    assert "event=output ?]0;a title? tenant=red" in log
    assert "dropped_bytes=" in log
    assert len(log) < 64 << 10


def test_a_job_that_is_too_long_is_refused(tmp_path: Path) -> None:
    make_product()
    with run_slice(tmp_path, "--scratch-bytes", str(128 * MIB)) as slice_:
        child = slice_.start()
        assert child.window.ask(COMPILE, 64 * MIB + 1).status == errno.E2BIG
        # The sleep backend has no real jobs, and its compiler reports an error.
        assert child.window.ask(COMPILE, 64 * MIB).status == errno.EIO


def test_jobs_of_one_child_are_bounded(hostile_program: Path, tmp_path: Path) -> None:
    with run_slice(tmp_path, "--backend", "hostile", child=hostile_program) as slice_:
        child = slice_.start()
        calls = [tell(child.window, 4, text=b"s") for _ in range(70)]
        refused = [child.window.reply().call for _ in range(6)]
        # 64 jobs wait or run.
        assert refused == calls[64:]
        assert call(child.window, 39) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gate", "magic"), "--gate: 'magic' is not a valid value"),
        (("--sandbox", "some"), "--sandbox: 'some' is not a valid value"),
        (("--compilers", "0"), "--compilers: '0' is not a valid value"),
        (("--gate-limit-ms", "-1"), "--gate-limit-ms: '-1' is not a valid value"),
        (("--child", "/nowhere"), "--child: /nowhere: No such file or directory"),
        (("--unknown",), "usage:"),
        (("word",), "usage:"),
    ],
)
def test_a_wrong_command_line_is_refused(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    make_product()
    with run_slice(tmp_path, *options) as slice_:
        assert slice_.process.wait(60) == 2
        assert said in slice_.log.read_text()


def test_compilers_are_started_at_a_bounded_rate(tenant: Slice) -> None:
    child = tenant.start()
    begun = time.monotonic()
    # The sleep backend's jobs fail at once.
    for _ in range(110):
        assert child.window.ask(COMPILE, 8).status == errno.EIO
    # 64 at once and then 20 a second.
    assert time.monotonic() - begun >= (110 - 64) / 20


def test_an_arbiter_that_reads_no_answers_ends_its_supervisor(tenant: Slice) -> None:
    child = tenant.start()
    pid = tenant.pid_of(child.number)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(100_000):
            tenant.send(THAW)
    assert tenant.process.wait(60) == 0
    assert "the arbiter reads no answers" in tenant.log.read_text()
    assert not is_alive(pid)


FLOOD = """
import socket, sys
null = open("/dev/null")
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [null.fileno()] * 240)
"""


def test_a_child_outlives_descriptors_that_others_of_its_user_have_under_way(tenant: Slice) -> None:
    child = tenant.start()
    user = 65534 if os.geteuid() == 0 else None
    ours, theirs = socket.socketpair()
    # Linux counts descriptors in transit for the user until they are received.
    flood = [sys.executable, "-I", "-c", FLOOD, str(theirs.fileno())]
    subprocess.run(flood, pass_fds=(theirs.fileno(),), user=user, check=True)
    theirs.close()
    child.window.put(COMPILE, 8)
    time.sleep(0.1)
    assert child.window.take() is None
    assert child.window.state == SERVING
    ours.close()
    assert child.window.reply().status == errno.EIO
