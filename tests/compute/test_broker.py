# SPDX-License-Identifier: Apache-2.0
"""The broker's process: who is let in, what a program and a child are given, and what ends what.

Programs, supervisors and children are the test; the broker is the real one.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compute.broker_rig import (
    CHILD_STATE_OFFSET,
    FAILED,
    FREEZE,
    HELLO,
    KILL,
    LENT,
    LIMIT_S,
    MIB,
    NONE,
    READY,
    REFUSED,
    THAW,
    VERSION,
    WANT,
    WELCOME,
    YIELD,
    Broker,
    build_fake_supervisor,
    joined,
    make_broker,
    tenant,
)
from tests.compute.executor_rig import wait_for
from vgpumgr.cli.main import main
from vgpumgr.cli.session import Session
from vgpumgr.errors import BrokerRefusedError, BrokerUnreachableError

REFUSED_VERSION, REFUSED_MESSAGE, REFUSED_PROCESSES, REFUSED_RATE = 1, 2, 3, 4
REFUSED_EXECUTOR, REFUSED_STOPPING = 6, 7
CHILD_LOST = 2
F_GET_SEALS = 1034
SEALS = 0x1 | 0x2 | 0x4  # SEAL, SHRINK, GROW
FUTURE_WRITE = 0x10


@pytest.fixture(scope="module", params=["plain", pytest.param("sanitized", marks=pytest.mark.long)])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    broker = make_broker(sanitized=request.param == "sanitized")
    return broker, build_fake_supervisor(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def broker(tmp_path: Path, programs: tuple[Path, Path]) -> Iterator[Broker]:
    with Broker(tmp_path, *programs) as running:
        yield running
    assert "Sanitizer" not in running.log()
    assert "runtime error" not in running.log()


# ---- being let in


def test_a_program_gets_a_window_and_its_tenants_supervisor_a_child(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    words = "--tenant blue --child /bin/true --library /bin/true --compile-cache-bytes 8388608 --gate-limit-ms 100"
    assert supervisor.arguments == words
    program = broker.connect("blue").hello()
    child = supervisor.start()
    answer = program.answer()
    assert (answer.op, answer.window_bytes, len(answer.fds)) == (WELCOME, 4 * MIB, 1)
    assert (child.window_bytes, child.memory_bytes) == (4 * MIB, 64 * MIB)
    # Both see the same window.
    window = mmap.mmap(answer.fds[0], 4 * MIB)
    child.window.memory[1000:1005] = b"hello"
    assert window[:4] == (0x77767067).to_bytes(4, "little")
    assert window[1000:1005] == b"hello"
    shown = broker.shown("blue")["processes"]
    assert [(each["state"], each["pid"]) for each in shown] == [("running", os.getpid())]


def test_nobody_can_resize_what_is_shared_or_write_a_lease_page(broker: Broker) -> None:
    with joined(broker, broker.supervisors()["blue"]) as (_, child):
        for page in (child.window, child.stream_page, child.lease_page):
            assert fcntl.fcntl(page.fd, F_GET_SEALS) & SEALS == SEALS
            with pytest.raises(PermissionError):
                os.ftruncate(page.fd, 0)
        assert fcntl.fcntl(child.lease_page.fd, F_GET_SEALS) & FUTURE_WRITE
        with pytest.raises(PermissionError):
            os.pwrite(child.lease_page.fd, b"x", 0)
        again = os.open(f"/proc/self/fd/{child.lease_page.fd}", os.O_RDWR)
        with pytest.raises(PermissionError):
            mmap.mmap(again, 4096)
        os.close(again)


def test_a_child_that_empties_its_pages_harms_itself_only(broker: Broker) -> None:
    def punch_hole(fd: int) -> bool:
        keep_size, punch = 1, 2
        libc = ctypes.CDLL(None)
        return not libc.fallocate(fd, keep_size | punch, ctypes.c_long(0), ctypes.c_long(4096))

    found = broker.supervisors()
    with joined(broker, found["blue"]) as (program, blue), joined(broker, found["red"]) as (_, red):
        assert not punch_hole(blue.lease_page.fd)
        assert punch_hole(blue.stream_page.fd)
        assert punch_hole(blue.window.fd)
        red.request(READY)
        until(lambda: red.lease[0] == LENT)
        assert broker.shown("blue")["processes"][0]["submitted"] == 0
        found["blue"].exited(blue)
        assert program.answer().refusal == REFUSED_EXECUTOR
        assert broker.shown("red")["processes"]


def test_the_sockets_permissions_are_the_configurations_and_change_with_it(broker: Broker) -> None:
    path = broker.run / "blue.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((broker.run / "control").stat().st_mode) == 0o600
    broker.tenants[0] |= {"socket_mode": 0o660, "socket_gid": os.getgid()}
    broker.control.set(broker.settings(), generation=1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


@pytest.mark.parametrize(
    ("version", "op", "refusal"),
    [(VERSION + 1, HELLO, REFUSED_VERSION), (VERSION, WELCOME, REFUSED_MESSAGE), (VERSION, 77, REFUSED_MESSAGE)],
)
def test_a_program_that_says_something_else_is_refused(broker: Broker, version: int, op: int, refusal: int) -> None:
    program = broker.connect("blue").hello(version=version, op=op)
    answer = program.answer()
    assert (answer.op, answer.refusal) == (REFUSED, refusal)
    assert answer.reason
    assert program.is_hung_up()


@pytest.mark.parametrize("size", [1, 215, 217, 4096])
def test_a_datagram_of_another_size_ends_the_connection(broker: Broker, size: int) -> None:
    program = broker.connect("blue")
    program.socket.send(b"x" * size)
    assert program.answer().refusal == REFUSED_MESSAGE
    assert program.is_hung_up()


def test_descriptors_that_nobody_asked_for_end_the_connection_and_are_closed(broker: Broker) -> None:
    program = broker.connect("blue")
    before = descriptors(broker)
    ends = socket.socketpair()
    with ends[0], ends[1]:
        socket.send_fds(program.socket, [b"x" * 216], [ends[1].fileno()] * 3)
        assert program.answer().refusal == REFUSED_MESSAGE
        ends[1].close()
        ends[0].settimeout(LIMIT_S)
        assert ends[0].recv(1) == b""
    assert program.is_hung_up()
    assert descriptors(broker) <= before


def test_a_second_hello_ends_the_child(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    with joined(broker, supervisor) as (program, child):
        program.hello()
        assert program.answer().refusal == REFUSED_MESSAGE
        assert supervisor.expect(KILL)[1] == child.number


def test_a_tenant_has_no_more_than_max_processes(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    programs = [broker.connect("blue").hello() for _ in range(4)]
    children = [supervisor.start() for _ in programs]
    assert [program.answer().op for program in programs] == [WELCOME] * 4
    refused = broker.connect("blue").hello().answer()
    assert (refused.refusal, "max_processes" in refused.reason) == (REFUSED_PROCESSES, True)
    # One that is being killed counts until nothing is left of it.
    programs[0].close()
    assert supervisor.expect(KILL)[1] == children[0].number
    assert broker.connect("blue").hello().answer().refusal == REFUSED_PROCESSES
    supervisor.exited(children[0])
    assert len(broker.shown("blue")["processes"]) == 3
    broker.connect("blue").hello()
    assert supervisor.start().number > children[-1].number
    assert broker.shown("blue")["refused"]["processes"] == 2


def test_new_processes_come_at_a_bounded_rate(tmp_path: Path, programs: tuple[Path, Path]) -> None:
    slow = tenant("blue", process_interval_ns=3600 * 10**9, process_burst=2)
    with Broker(tmp_path, *programs, tenants=[slow]) as broker:
        supervisor = broker.supervisors()["blue"]
        for _ in range(2):
            with joined(broker, supervisor) as (program, child):
                program.close()
                supervisor.expect(KILL)
                supervisor.exited(child)
        assert broker.connect("blue").hello().answer().refusal == REFUSED_RATE


def test_a_slower_rate_counts_what_was_started_lately_and_says_when(
    tmp_path: Path, programs: tuple[Path, Path]
) -> None:
    hour = 3600 * 10**9
    with Broker(tmp_path, *programs, tenants=[tenant("blue", process_interval_ns=hour, process_burst=8)]) as broker:
        supervisor = broker.supervisors()["blue"]

        def start() -> None:
            with joined(broker, supervisor) as (program, child):
                program.close()
                supervisor.expect(KILL)
                supervisor.exited(child)

        start()
        broker.tenants[0] |= {"process_interval_ns": 20 * hour, "process_burst": 4}
        broker.control.set(broker.settings(), generation=1)
        for _ in range(3):
            start()
        assert broker.connect("blue").hello().answer().refusal == REFUSED_RATE
        # Another change forgives none of them.
        broker.tenants[0] |= {"process_interval_ns": 10 * 10**9, "process_burst": 3}
        broker.control.set(broker.settings(), generation=2)
        answer = broker.connect("blue").hello().answer()
        assert answer.refusal == REFUSED_RATE
        assert re.fullmatch("processes_per_minute is 6; try in [0-9]+ s", answer.reason)


def test_connections_without_a_hello_are_bounded(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    silent = [broker.connect("blue") for _ in range(32)]
    assert broker.connect("blue").is_hung_up()
    held = descriptors(broker)
    silent[0].close()
    until(lambda: descriptors(broker) < held)
    program = broker.connect("blue").hello()
    supervisor.start()
    assert program.answer().op == WELCOME


def test_a_child_that_does_not_start_is_a_refusal_with_the_reason(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    program = broker.connect("blue").hello()
    child = supervisor.start(done=False)
    supervisor.send(FAILED, sequence=child.sequence, child=child.number, reason="no such library")
    answer = program.answer()
    assert (answer.refusal, "no such library" in answer.reason) == (REFUSED_EXECUTOR, True)
    assert broker.shown("blue")["processes"] == []


def test_a_tenants_used_memory_is_what_its_children_say_up_to_its_limit(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]

    def used() -> tuple[int, list[int]]:
        shown = broker.shown("blue")
        return shown["memory_used_bytes"], sorted(each["memory_used_bytes"] for each in shown["processes"])

    assert used() == (0, [])
    with joined(broker, supervisor) as (_, one), joined(broker, supervisor) as (_, other):
        struct.pack_into("=Q", one.stream_page.memory, 48, 8 * MIB)
        struct.pack_into("=Q", other.stream_page.memory, 48, 4 * MIB)
        assert used() == (12 * MIB, [4 * MIB, 8 * MIB])
        struct.pack_into("=Q", one.stream_page.memory, 48, 2**64 - 1)
        assert used() == (64 * MIB, [4 * MIB, 64 * MIB])


# ---- what ends what


def test_the_end_of_a_program_kills_its_child(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    with joined(broker, supervisor) as (program, child):
        program.close()
        assert supervisor.expect(KILL)[1] == child.number
        supervisor.exited(child)
    assert broker.shown("blue")["processes"] == []


def test_refused_programs_cost_their_tenant_a_line_a_second(broker: Broker) -> None:
    broker.supervisors()
    many = 400
    begun = time.monotonic()
    for name in ("blue", "red"):
        for _ in range(many):
            broker.connect(name).hello(version=99).answer()
    for name in ("blue", "red"):
        assert broker.shown(name)["refused"]["version"] == many

    def told(name: str) -> tuple[int, int]:
        """Lines, and refusals that they tell of."""
        lines = [line for line in broker.log().splitlines() if f"tenant={name} event=client.refused" in line]
        counts = [int(line.rpartition("left_out=")[2]) if "left_out=" in line else 1 for line in lines]
        return len(counts), sum(counts)

    wait_for(lambda: all(told(name)[1] == many for name in ("blue", "red")), "the count of refused programs")
    for name in ("blue", "red"):
        assert told(name)[0] <= 2 + time.monotonic() - begun


def test_the_log_tells_a_programs_end_from_a_kill_and_names_whose_pid_it_is(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    with joined(broker, supervisor) as (program, child):
        program.close()
        supervisor.expect(KILL)
        supervisor.exited(child, reason="the program has ended and its child was removed")
    with joined(broker, supervisor) as (program, child):
        program.hello()
        supervisor.expect(KILL)
        supervisor.exited(child, reason="it broke the protocol")
    assert broker.shown("blue")["processes"] == []
    log = broker.log()
    assert log.count(f"level=info event=ready directory={broker.run} tenants=2\n") == 1
    pid = f"program_pid={os.getpid()}"
    assert f"event=child.ended child=1 {pid} the program has ended and its child was removed\n" in log
    assert f"event=child.ended child=2 {pid} the child was ended by signal 9: it broke the protocol\n" in log
    assert f"event=client.refused {pid} " in log
    assert f"event=supervisor.started supervisor_pid={supervisor.pid}\n" in log


def test_the_end_of_a_child_is_told_to_its_program(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    with joined(broker, supervisor) as (program, child):
        supervisor.exited(child, status=11, reason="out of bounds")
        answer = program.answer()
        assert (answer.refusal, answer.reason) == (
            REFUSED_EXECUTOR,
            "the child was ended by signal 11: out of bounds",
        )
        assert program.is_hung_up()
        assert child.window.memory[CHILD_STATE_OFFSET] == CHILD_LOST


def test_a_supervisor_that_dies_takes_its_tenants_programs_and_nobody_elses_and_comes_back(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (lost, child), joined(broker, found["red"]) as (kept, _):
        found["blue"].kill()
        child.close()
        assert lost.answer().refusal == REFUSED_EXECUTOR
        assert lost.is_hung_up()
        assert child.window.memory[CHILD_STATE_OFFSET] == CHILD_LOST
        again = broker.any_supervisor()
        assert again.tenant == "blue"
        with joined(broker, again):
            assert [len(broker.shown(name)["processes"]) for name in ("blue", "red")] == [1, 1]
        kept.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            kept.socket.recv(1)


def test_a_supervisor_that_makes_no_sense_is_replaced(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    supervisor.socket.send(b"nonsense")
    assert broker.any_supervisor().tenant == "blue"
    assert broker.shown("blue")["supervisor"]["starts"] == 2


def test_a_supervisor_that_dies_at_once_is_started_with_growing_pauses(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    for _ in range(3):
        supervisor.kill()
        supervisor = broker.any_supervisor()
    assert broker.shown("blue")["supervisor"]["starts"] == 4


def test_supervisors_die_with_a_broker_that_is_killed_and_programs_hear_of_it(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (program, _):
        pidfd = os.pidfd_open(found["blue"].pid)
        broker.process.kill()
        broker.process.wait(LIMIT_S)
        assert program.is_hung_up()
        poll = select.poll()
        poll.register(pidfd)
        assert poll.poll(LIMIT_S * 1000)
        os.close(pidfd)
    # Its sockets are left over; the next broker takes the directory.
    assert (broker.run / "red.sock").exists()
    broker.tenants = [tenant("blue")]
    broker.process = broker.start(json.dumps(broker.settings()).encode())
    assert broker.notices.recv(64) == b"READY=1"
    assert broker.control.show()["generation"] == 1
    assert not (broker.run / "red.sock").exists()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stop"])
def test_a_broker_that_is_stopped_ends_its_children_first(broker: Broker, how: str) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (program, child):
        if how == "stop":
            broker.control.stop()
        else:
            broker.process.send_signal(signal.Signals[how])
        answer = program.answer()
        assert answer.refusal == REFUSED_STOPPING
        assert found["blue"].expect(KILL)[1] == child.number
        found["blue"].exited(child)
        for supervisor in found.values():
            with pytest.raises((AssertionError, ConnectionResetError)):
                supervisor.expect(KILL)
            supervisor.kill()
    assert broker.process.wait(LIMIT_S) == 0
    assert not list(broker.run.glob("red.sock"))
    with pytest.raises(BrokerUnreachableError):
        broker.control.show()


def test_a_second_broker_does_not_take_the_directory(broker: Broker) -> None:
    second = broker.start(json.dumps(broker.settings()).encode(), stderr=subprocess.PIPE)
    _, said = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 4
    assert said == f"vgpumgr: broker.running: the broker with pid {broker.process.pid} has this directory\n"
    assert broker.control.show()["generation"] == 1


# ---- leases


def test_a_child_that_asks_is_lent_the_accelerator_and_hands_it_over(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (_, blue), joined(broker, found["red"]) as (_, red):
        blue.request(READY)
        until(lambda: blue.lease[0] == LENT)
        assert blue.lease == (LENT, 1, 2**64 - 1)
        blue.say(busy=True, number=1)
        red.request(READY)
        until(lambda: blue.lease[2] != 2**64 - 1)
        assert red.lease[0] == NONE
        blue.say(busy=False, number=1)
        blue.request(YIELD, lease=1)
        until(lambda: red.lease[0] == LENT)
        assert blue.lease[0] == NONE
        shown = broker.shown("red")
        assert (shown["holds_lease"], shown["stats"]["leases"]) == (True, 1)


def test_a_child_that_does_not_yield_is_frozen_and_the_next_one_computes(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (_, blue), joined(broker, found["red"]) as (_, red):
        blue.request(READY)
        until(lambda: blue.lease[0] == LENT)
        blue.say(busy=True, number=1)
        red.request(READY)
        found["blue"].expect(FREEZE)
        until(lambda: red.lease[0] == LENT)
        red.say(busy=True, number=1)
        red.say(busy=False, number=1)
        red.request(YIELD, lease=1)
        # It was in the middle of something: it is its turn again.
        found["blue"].expect(THAW)
        until(lambda: blue.lease[:2] == (LENT, 2))
        assert broker.shown("blue")["stats"]["gates"] == 1


def test_a_supervisor_that_does_not_freeze_its_children_is_killed(tmp_path: Path, programs: tuple[Path, Path]) -> None:
    with Broker(tmp_path, *programs, engine={"gate_limit_ns": 100_000_000}) as broker:
        found = broker.supervisors()
        with joined(broker, found["blue"]) as (program, blue), joined(broker, found["red"]) as (_, red):
            blue.request(READY)
            until(lambda: blue.lease[0] == LENT)
            blue.say(busy=True, number=1)
            red.request(READY)
            assert program.answer().refusal == REFUSED_EXECUTOR
            until(lambda: red.lease[0] == LENT)
        assert "event=gate.lost" in broker.log()


@pytest.mark.parametrize(("chunk_ns", "limit_ms"), [(5_000_000, 100), (50_000_000, 200)])
def test_a_supervisor_gives_children_four_chunks_to_stop(
    tmp_path: Path, programs: tuple[Path, Path], chunk_ns: int, limit_ms: int
) -> None:
    with Broker(tmp_path, *programs, engine={"chunk_ns": chunk_ns}) as broker:
        broker.supervisors()
        pid = broker.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        assert len(children) == len(broker.tenants)
        for child in children:
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            assert words[words.index("--gate-limit-ms") + 1] == str(limit_ms)


def test_a_child_that_breaks_the_protocol_is_killed(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]
    for nonsense in (b"x", b"\xff" * 32, b"\x02\0\0\0\xff\xff\xff\xff" + bytes(24)):
        with joined(broker, supervisor) as (program, child):
            child.socket.send(nonsense)
            assert program.answer().refusal == REFUSED_EXECUTOR
            assert supervisor.expect(KILL)[1] == child.number
            supervisor.exited(child)


def test_a_child_that_floods_its_socket_has_to_wait(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (_, blue), joined(broker, found["red"]) as (_, red):
        blue.socket.setblocking(False)
        for _ in range(3000):
            try:
                blue.request(YIELD, lease=7)
            except BlockingIOError:
                break
        red.request(READY)
        until(lambda: red.lease[0] == LENT)
        assert broker.shown("blue")["stats"]["leases"] == 0


def test_children_of_one_tenant_share_what_it_may_say(broker: Broker) -> None:
    blue = broker.supervisors()["blue"]
    with joined(broker, blue) as (_, one), joined(broker, blue) as (_, other):
        sent = 0
        begun = time.monotonic()
        while time.monotonic() < begun + 1:
            for child in (one, other):
                child.socket.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    child.request(YIELD, lease=7)
                    sent += 1
        # A burst, 5000 a second, and what the two sockets hold.
        assert 1000 < sent < 1000 + 5000 * (time.monotonic() - begun) + 2 * 1000


def test_the_lease_of_a_child_that_ends_is_anothers(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["blue"]) as (program, blue), joined(broker, found["red"]) as (_, red):
        blue.request(READY)
        until(lambda: blue.lease[0] == LENT)
        blue.say(busy=True, number=1)
        red.request(READY, flags=0)
        program.close()
        found["blue"].expect(KILL)
        found["blue"].exited(blue)
        until(lambda: red.lease[0] == LENT)
        # It stopped for an end that is not there any more: it is told to look again.
        woken = red.wake
        red.request(YIELD, lease=1, flags=WANT)
        until(lambda: red.wake != woken)
        assert red.lease == (LENT, 1, 2**64 - 1)


def test_memory_and_descriptors_return(broker: Broker) -> None:
    supervisor = broker.supervisors()["blue"]

    def once() -> None:
        with joined(broker, supervisor) as (program, child):
            program.close()
            supervisor.expect(KILL)
            supervisor.exited(child)
        until(lambda: not broker.shown("blue")["processes"])

    def held() -> tuple[int, int]:
        maps = Path(f"/proc/{broker.process.pid}/maps").read_text().count("vgpumgr-")
        return descriptors(broker), maps

    before = held()
    for _ in range(20):
        once()
    until(lambda: held() == before)


# ---- configuration


def test_a_configuration_is_taken_as_a_whole_or_not_at_all(broker: Broker) -> None:
    broker.tenants[0]["weight"] = 300
    broker.tenants[1]["weight"] = 0
    with pytest.raises(BrokerRefusedError) as caught:
        broker.control.set(broker.settings(), generation=1)
    assert (caught.value.code, caught.value.field) == ("field.invalid", "tenants.red.weight")
    assert broker.shown("blue")["weight"] == 100
    broker.tenants[1]["weight"] = 50
    assert broker.control.set(broker.settings(), generation=1) == 2
    assert [broker.shown(name)["weight"] for name in ("blue", "red")] == [300, 50]


def test_a_configuration_that_somebody_else_changed_meanwhile_is_refused(broker: Broker) -> None:
    assert broker.control.set(broker.settings(), generation=1) == 2
    with pytest.raises(BrokerRefusedError) as caught:
        broker.control.set(broker.settings(), generation=1)
    assert caught.value.code == "generation.stale"


def test_reservations_move_from_one_tenant_to_another_in_one_change(broker: Broker) -> None:
    latency = {"band": "latency", "reserve_ns": 9_000_000, "reserve_period_ns": 40_000_000}
    fair = {"band": "fair", "reserve_ns": 0, "reserve_period_ns": 0}
    generation = 1
    for first, second in ((latency, fair), (fair, latency), (latency, fair)):
        broker.tenants[0] |= first
        broker.tenants[1] |= second
        generation = broker.control.set(broker.settings(), generation=generation)
        assert [broker.shown(name)["band"] for name in ("blue", "red")] == [first["band"], second["band"]]
    broker.tenants[1] |= latency
    with pytest.raises(BrokerRefusedError) as caught:
        broker.control.set(broker.settings(), generation=generation)
    assert caught.value.field == "tenants.red.reserve_us"


def test_tenants_come_and_go_live(broker: Broker) -> None:
    found = broker.supervisors()
    with joined(broker, found["red"]) as (kept, _), joined(broker, found["blue"]) as (lost, child):
        broker.tenants = [tenant("red"), tenant("green")]
        broker.control.set(broker.settings(), generation=1)
        assert lost.answer().refusal == REFUSED_STOPPING
        assert not (broker.run / "blue.sock").exists()
        broker.tenants.append(tenant("blue"))
        with pytest.raises(BrokerRefusedError) as caught:
            broker.control.set(broker.settings(), generation=2)
        assert caught.value.code == "object.in_use"
        found["blue"].expect(KILL)
        found["blue"].exited(child)
        green = broker.any_supervisor()
        assert green.tenant == "green"
        with joined(broker, green):
            pass
        found["blue"].kill()
        until(lambda: {each["name"] for each in broker.control.show()["tenants"]} == {"red", "green"})
        kept.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            kept.socket.recv(1)


@pytest.mark.parametrize(
    "request_line",
    [
        b"",
        b"{",
        b"[]",
        b'{"op": "fly"}',
        b'{"op": 7}',
        b'{"op": "set"}',
        b'{"op": "set", "generation": 1}',
        b'{"op": "set", "generation": 1, "settings": {"programs": 3}}',
        b'{"op": "set", "generation": -1, "settings": {}}',
        b'{"op": "show"} trailing',
        b'{"op": "show", "op": "show"}',
        b"[" * 100,
        b'"\\ud800"',
        b'"\x01"',
        b"9" * 30,
        b"1.5",
    ],
)
def test_a_request_that_makes_no_sense_is_refused_with_a_code(broker: Broker, request_line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LIMIT_S)
        connection.connect(str(broker.run / "control"))
        connection.sendall(request_line + b"\n")
        answer = json.loads(connection.makefile().readline())
        assert answer["ok"] is False
        assert answer["code"] in ("request.invalid", "field.invalid")
        connection.sendall(b'{"op": "show"}\n')
        assert json.loads(connection.makefile().readline())["ok"] is True


def test_a_wrong_first_configuration_ends_the_broker_and_names_the_field(
    tmp_path: Path, programs: tuple[Path, Path]
) -> None:
    broker = Broker(tmp_path, *programs, tenants=[tenant("blue", memory_bytes=0)])
    broker.run = tmp_path / "run"
    broker.run.mkdir()
    process = broker.start(json.dumps(broker.settings()).encode(), stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert said.startswith("vgpumgr: field.invalid: tenants.blue.memory_bytes: ")


# ---- the command line


def test_the_command_line_shows_tenants_and_processes(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*arguments: str) -> str:
        session = Session(env={}, sleep=lambda _: None)
        assert main([*arguments, "--run-directory", str(broker.run)], session) == 0
        return capsys.readouterr().out

    with joined(broker, broker.supervisors()["blue"]):
        assert shown("broker", "show") == (
            "TENANT  WEIGHT  TIMESLICE  BAND  MEMORY  PROCESSES  LEASE  SUPERVISOR\n"
            "blue    100     5ms        fair  64M     1/4        none   up\n"
            "red     100     5ms        fair  64M     0/4        none   up\n"
            "\n"
            "TENANT  PID   CHILD  STATE    SUBMITTED  UNDER WAY  FAILED\n"
            "blue    {pid}  1      running  0          0          0\n"
        ).replace("PID ", "PID".ljust(len(str(os.getpid())))).format(pid=os.getpid())
        assert [tenant["name"] for tenant in json.loads(shown("broker", "show", "-o", "json"))["tenants"]]
        table = shown("top", "--broker", "--once").splitlines()
        assert table[0].split()[:4] == ["TENANT", "WEIGHT", "ENTITLED", "OBTAINED"]
        assert table[1].split() == [*("blue", "100", "-", "0.0%", "0us", "0", "-", "0us", "1/4", "64M", "0", "0")]
        rows = json.loads(shown("top", "--broker", "--once", "--tenant", "red", "-o", "json"))
        assert [(row["tenant"], row["processes"], row["obtained_share"]) for row in rows] == [("red", 0, 0.0)]


def test_the_command_line_stops_it(broker: Broker) -> None:
    assert main(["broker", "stop", "--run-directory", str(broker.run)], Session(env={})) == 0
    for supervisor in broker.supervisors().values():
        supervisor.kill()
    assert broker.process.wait(LIMIT_S) == 0


def descriptors(broker: Broker) -> int:
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the broker is about to do; each look asks it, or reads a page that it writes."""
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)
