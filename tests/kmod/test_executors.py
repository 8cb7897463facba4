# SPDX-License-Identifier: Apache-2.0
"""Files of /dev/vgpumgr-exec: which slice they serve and for how long, their answers, and the log about them.

test_windows.py and test_leases.py test the executor's work for windows and leases.
"""

import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from random import Random

import pytest

from tests.kmod.test_windows import CONTROL, RESET, Function, function
from tests.rig import leasing
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.kernel import PATIENCE, kernel_log
from tests.rig.leasing import CHECKOUT, Bound, Event, Lease, State, bind, bound, child, executor_file, refused
from tests.rig.vfio import opened

NOBODY = "00000000-0000-4000-8000-000000000000"
# Calls of the engine `exec`, which executed one item at a time: attach, take and complete.
OLD_REQUESTS = (0x40287650, 0x80307651, 0x40187652)


@pytest.fixture
def lending(gpu: Gpu) -> Iterator[Gpu]:
    with gpu.leasing():
        for name in ("blue", "green"):
            gpu.tenant(name, weight=100, timeslice_us=100_000)
        yield gpu


@pytest.fixture
def blue(lending: Gpu) -> str:
    return lending.slice("blue")


@pytest.fixture
def green(lending: Gpu) -> str:
    return lending.slice("green")


def said_of_binding(fd: int, uuid: str, *, reserved: int = 0) -> str:
    """The log's message about a file that is refused a slice."""
    before = kernel_log()
    with pytest.raises(OSError, match=r"\[Errno"):
        bind(fd, uuid, reserved=reserved)
    return kernel_log().removeprefix(before)


def answer_gate(executor: Bound) -> None:
    """Answer all pending requests for the gate as done."""
    while executor.poll():
        kind, _, sequence = executor.event()
        assert kind in (Event.GATE_OPEN, Event.GATE_CLOSE)
        executor.gate(sequence)


def test_an_executor_is_there_before_its_guest_and_stays_from_one_to_the_next(blue: str) -> None:
    with bound(blue) as executor:
        for _ in range(2):
            with opened(blue) as device:
                device.set_register(CONTROL, RESET)
                device.reset()
            assert executor.poll() == 0
        with function(blue) as guest:
            guest.open(0)
            assert executor.event() == (Event.OPENED, 0, 0)
            with child(executor, 0) as worker:
                assert worker.start() == 1


def test_an_executor_serves_one_tenant(lending: Gpu) -> None:
    """The executor may exist before the slice has a tenant, and leaves with the tenant."""
    uuid = lending.slice(None)
    with bound(uuid) as executor:
        lending.control.set_slice(uuid, tenant="blue")
        lending.control.set_slice(uuid, tenant="blue", weight=2)
        assert executor.poll() == 0
        lending.control.set_slice(uuid, tenant="green")
        assert executor.ended()
    with bound(uuid) as other:
        assert other.poll() == 0


def test_a_function_is_unbound_with_executors_bound(lending: Gpu, blue: str) -> None:
    """A bound file keeps the module loaded, and keeps nothing else."""
    with bound(blue) as executor:
        lending.sysfs.unbind(ADDRESS)
        assert executor.ended()
        assert subprocess.run(["rmmod", "vgpumgr"], capture_output=True, check=False).returncode
        lending.sysfs.bind(ADDRESS)
    lending.sysfs.write_gpu(ADDRESS, "engine", "lease")


@contextmanager
def stopped_executor(uuid: str, guest: Function) -> Iterator[subprocess.Popen[str]]:
    """A process that serves the guest, has the engine, and then does nothing more."""
    command = [sys.executable, "-m", "tests.rig.leasing", uuid]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT) as process:
        guest.open(0)
        assert process.stdout is not None
        assert process.stdout.readline() == "busy\n"
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.kill()


def test_an_executor_that_is_stopped_loses_the_engine_and_is_killed(blue: str, green: str) -> None:
    with (
        function(blue) as guest,
        stopped_executor(blue, guest) as process,
        function(green) as neighbour,
        bound(green) as executor,
    ):
        neighbour.open(0)
        assert executor.event() == (Event.OPENED, 0, 0)
        with child(executor, 0) as rival:
            answer_gate(executor)
            assert rival.start(timeout_s=20 * PATIENCE) == 1
            assert process.wait(timeout=20 * PATIENCE) == -signal.SIGKILL
        poll(lambda: guest.state(0) is State.LOST)


def test_nobody_waits_for_an_executor_that_is_stopped(lending: Gpu, blue: str) -> None:
    """A reset, a close and the slice's removal do not wait for it."""
    with ExitStack() as stack:
        with function(blue) as guest:
            process = stack.enter_context(stopped_executor(blue, guest))
            guest.device.set_register(CONTROL, RESET)
            guest.device.reset()
        lending.sysfs.remove(blue)
        assert blue not in lending.slices()
        assert process.poll() is None


def test_what_a_file_may_not_do(blue: str, green: str) -> None:
    assert leasing.DEVICE.stat().st_mode & 0o777 == 0o600
    with executor_file() as fd:
        assert refused(os.read, fd, 16) == "ENOTCONN"
        assert refused(os.write, fd, b"x") == "EINVAL"
        for request in (leasing.WINDOW, leasing.LOST, leasing.CLOSED, leasing.RING, leasing.GATE, *OLD_REQUESTS):
            assert refused(fcntl.ioctl, fd, request, bytes(64)) == "ENOTTY"
        assert refused(fcntl.ioctl, fd, leasing.BIND, 1) == "EFAULT"
        for name in ("", blue[:-1], blue + "0"):
            assert refused(bind, fd, name) == "EINVAL"
        assert refused(bind, fd, blue, reserved=1) == "EINVAL"
        assert refused(bind, fd, NOBODY) == "ENOENT"
        with bound(blue):
            assert refused(bind, fd, blue) == "EBUSY"
        executor = bind(fd, blue)
        assert refused(bind, fd, green) == "EBUSY"
        assert refused(os.write, fd, b"x") == "EINVAL"
        for request in (0x7653, *OLD_REQUESTS):
            assert refused(fcntl.ioctl, fd, request, bytes(64)) == "ENOTTY"
        assert executor.poll() == 0


def test_the_log_says_why_a_file_was_refused_a_slice(blue: str, green: str) -> None:
    """The log names the slice that a file is bound to, not the slice that the call names."""
    with executor_file() as fd, bound(green):
        assert "vgpumgr-exec: BIND refused for uuid: -EINVAL\n" in said_of_binding(fd, "nonsense")
        assert "vgpumgr-exec: BIND refused for reserved: -EINVAL\n" in said_of_binding(fd, blue, reserved=1)
        assert f"slice {NOBODY}: BIND refused for uuid: -ENOENT\n" in said_of_binding(fd, NOBODY)
        assert f"slice {green}: BIND refused for executor: -EBUSY\n" in said_of_binding(fd, green)
        bind(fd, blue)
        said = said_of_binding(fd, green)
        assert f"slice {blue}: BIND refused for file: -EBUSY\n" in said
        assert green not in said


def test_the_log_says_that_another_engine_has_no_executors(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    with executor_file() as fd:
        assert f"slice {uuid}: BIND refused for engine: -EOPNOTSUPP\n" in said_of_binding(fd, uuid)


def test_an_executor_that_floods_the_log_silences_no_other(blue: str, green: str) -> None:
    with bound(blue) as flooding, bound(green) as calm:
        before = kernel_log()
        for one in (*[flooding] * 50, calm):
            assert refused(one.gate, 0, reserved=1) == "EINVAL"
    said = kernel_log().removeprefix(before)
    assert f"slice {green}: command refused for reserved: -EINVAL\n" in said
    assert said.count(f"slice {blue}: command refused") < 50


LEFT_BEHIND = """
import os, sys, time
from tests.rig.leasing import Child, bound
with bound(sys.argv[1]) as executor:
    if os.fork():
        os._exit(0)
    _, number, _ = executor.event()
    Child(executor.window(number)).start()
    time.sleep(1000)
"""


def test_an_executor_that_has_died_is_found_though_its_file_is_open(lending: Gpu, blue: str, green: str) -> None:
    """A child process that it left behind has the file and the engine, and does not answer for the gate."""
    with ExitStack() as stack:
        guest, neighbour = (stack.enter_context(function(uuid)) for uuid in (blue, green))
        steady = stack.enter_context(bound(green))
        command = [sys.executable, "-c", LEFT_BEHIND, blue]
        process = stack.enter_context(subprocess.Popen(command, cwd=CHECKOUT, start_new_session=True))
        assert process.wait() == 0
        stack.callback(os.killpg, process.pid, signal.SIGKILL)
        guest.open(0)
        neighbour.open(0)
        steady.event()
        poll(lambda: lending.slice_stats(blue).run_ns > 0)
        with child(steady, 0) as rival:
            answer_gate(steady)
            assert rival.start(timeout_s=20 * PATIENCE) == 1
            poll(lambda: guest.state(0) is State.LOST)
        with bound(blue):
            pass


def test_one_thread_of_an_executor_polls_at_a_time(blue: str) -> None:
    """A waiter is woken under the engine's lock. Another one may wait once the first is gone."""
    with bound(blue) as executor, function(blue) as guest:
        first, second = select.epoll(), select.poll()
        first.register(executor.fd, select.EPOLLIN)
        second.register(executor.fd, select.POLLIN)
        assert second.poll(20_000) == [(executor.fd, select.POLLERR)]
        assert first.poll(0) == []
        guest.open(0)
        assert first.poll(20 * PATIENCE) == [(executor.fd, select.EPOLLIN)]
        first.close()
        assert second.poll(0) == [(executor.fd, select.POLLIN)]
        executor.event()


def test_an_executor_that_waits_is_told_of_the_end(lending: Gpu, blue: str) -> None:
    with bound(blue) as executor, select.epoll() as waiter:
        waiter.register(executor.fd, select.EPOLLIN)
        assert waiter.poll(0) == []
        lending.control.set_slice(blue, tenant="green")
        assert waiter.poll(20 * PATIENCE) == [(executor.fd, select.EPOLLHUP)]


def test_one_thread_of_an_executor_reads_at_a_time(blue: str) -> None:
    with bound(blue) as executor, function(blue) as guest, ThreadPoolExecutor(2) as threads:
        os.set_blocking(executor.fd, True)
        reads = [threads.submit(refused, os.read, executor.fd, 16) for _ in range(2)]
        refusals = []
        for number, read in enumerate(as_completed(reads, timeout=20 * PATIENCE)):
            refusals.append(read.result())
            guest.open(number)
        assert refusals == ["EBUSY", ""]


def test_an_event_that_does_not_arrive_is_told_again(blue: str, green: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def fails_to_read() -> None:
        assert executor.poll(20 * PATIENCE)
        assert libc.read(executor.fd, ctypes.c_void_p(1), 16) == -1
        assert ctypes.get_errno() == errno.EFAULT

    with ExitStack() as stack:
        guest, neighbour = (stack.enter_context(function(uuid)) for uuid in (blue, green))
        executor, steady = (stack.enter_context(bound(uuid)) for uuid in (blue, green))
        guest.open(0)
        fails_to_read()
        assert executor.event() == (Event.OPENED, 0, 0)
        worker = stack.enter_context(child(executor, 0))
        guest.open(1)
        fails_to_read()
        guest.close(1)
        assert executor.poll() == 0
        neighbour.open(0)
        steady.event()
        rival = stack.enter_context(child(steady, 0))
        worker.start()
        rival.ready()
        fails_to_read()
        kind, _, sequence = executor.event()
        assert kind is Event.GATE_CLOSE
        executor.gate(sequence)
        assert rival.start() == 1


ANSWERS = {
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "EFAULT", "EINVAL", "ENODEV", "ENOENT", "ENOTCONN", "ENOTTY", "ENXIO")
}


def ask_anything(fd: int, uuid: str, random: Random) -> int:
    """One call with random contents: 0 or its errno."""
    window, flag = random.randrange(18), random.randrange(4) == 0
    good = {
        leasing.BIND: struct.pack("<40sIIQQ", random.choice((uuid.encode(), random.randbytes(36))), 0, flag, 0, 0),
        leasing.LOST: struct.pack("<II", window, flag),
        leasing.CLOSED: struct.pack("<II", window, flag),
        leasing.RING: struct.pack("<II", window, flag),
        leasing.GATE: struct.pack("<QQII", random.randrange(4), random.randrange(1000), random.randrange(3), flag),
    }
    request = random.choice([*good, *OLD_REQUESTS])
    content: bytes | int = good.get(request, b"").ljust(64, b"\0")
    match random.randrange(6):
        case 0:
            request ^= 1 << random.randrange(32)
        case 1:
            content = random.choice((0, 1, 4096, 2**31 - 4096))
        case 2:
            content = random.randbytes(64)
    try:
        match random.randrange(8):
            case 0:
                os.read(fd, random.choice((1, 16, 4096)))
            case 1:
                os.write(fd, random.randbytes(16))
            case _:
                fcntl.ioctl(fd, request, content)
    except OSError as error:
        return error.errno or 0
    return 0


def test_whatever_an_executor_asks_has_an_answer(blue: str, green: str) -> None:
    """It harms the windows of its own slice and nothing else, and the slice can be served again."""
    random = Random(7)
    said: Counter[int] = Counter()
    with function(blue) as guest, function(green) as neighbour, bound(green) as steady:
        neighbour.open(0)
        steady.event()
        with child(steady, 0) as worker:
            worker.start()
            for _ in range(60):
                with executor_file() as mad:
                    with suppress(OSError):
                        bind(mad, blue)
                    for _ in range(60):
                        for number in range(16):
                            if guest.state(number) is State.FREE:
                                guest.open(number)
                        said[ask_anything(mad, blue, random)] += 1
                        if random.randrange(8) == 0:
                            guest.close(random.randrange(16))
                assert worker.lease() == (1, Lease.LENT)
    assert set(said) - {0} <= ANSWERS, said
    assert min(said[number] for number in (0, errno.EINVAL, errno.EFAULT, errno.ENOTTY, errno.ENXIO)) > 10, said
    with function(blue) as guest, bound(blue) as executor:
        while guest.state(0) is not State.FREE:
            kind, number, _ = executor.event()  # of the state left by the executor before
            if kind is Event.CLOSED:
                executor.closed(number)
        guest.open(0)
        with child(executor, 0) as worker:
            assert worker.start() == 1
