# SPDX-License-Identifier: Apache-2.0
"""The engine `exec`: processes that are lent the engine for one item at a time."""

import errno
import fcntl
import multiprocessing
import os
import select
import signal
import struct
import subprocess
from collections import Counter
from contextlib import ExitStack, suppress
from random import Random

import pytest

from tests.kmod.executor.slices import Slice
from tests.rig import executor as rig
from tests.rig.executor import PIPE_BYTES, Executor, executor, program
from tests.rig.gpu import ADDRESS, Gpu, poll
from tests.rig.kernel import PATIENCE, kernel_log
from tests.rig.priority import changes
from tests.rig.ring import ENTRIES, LAUNCH, NOP, REG_COMPLETED, REG_CONTROL, REG_ERROR, REG_FEATURES, descriptor
from tests.rig.vfio import opened

SHORT_US = 20_000
REG_OPS = 0x08
RESET = 2


def refused(number: int) -> str:
    return os.strerror(number)


def test_an_item_is_executed_by_a_process(blue: Slice) -> None:
    assert blue.device.register(REG_OPS) == 1 << NOP | 1 << LAUNCH
    with executor(blue.uuid) as one:
        assert not one.ready() & select.POLLPRI
        with pytest.raises(OSError, match=refused(errno.EAGAIN)):
            one.take()
        number = blue.launch(1, 2, 3, 4)
        grant = one.granted()
        assert (grant.args, grant.revoked) == ((1, 2, 3, 4), False)
        assert one.take() == grant
        assert not one.ready() & select.POLLPRI
        assert not blue.is_done(number)
        one.complete(grant.number, result=1 << 63)
        completion = blue.done(number)
        assert (completion.status, completion.result, completion.seq) == (rig.OK, 1 << 63, number + 1)
        assert 0 < completion.run_ns <= blue.run_ns()

        number = blue.launch()
        one.complete(one.granted().number, status=rig.FAILED, result=7)
        assert (blue.done(number).status, blue.done(number).result) == (rig.FAILED, 7)
        assert blue.done(blue.launch(op=NOP)).status == rig.OK


@pytest.mark.emulated
def test_the_engine_sleeps_in_realtime_for_who_takes_long(blue: Slice) -> None:
    """It must not wait for another task's turn to end when it is given back, or when it takes itself back."""
    times = 12
    with program(blue.uuid, "sum"):
        with changes("exec") as of_launches:
            for _ in range(times):
                blue.done(blue.launch(1_000_000))
        with changes("exec") as of_nothing:
            blue.done(blue.launch(op=NOP))
    assert of_launches.count("executed") == times
    assert "brief" not in of_launches
    assert of_nothing[:2] == ["brief", "executed"]


def test_work_waits_for_a_process_and_nobody_waits_for_the_work(blue: Slice, green: Slice) -> None:
    """Without an executor a slice takes no engine time, whatever it has queued."""
    waiting = [blue.launch(number) for number in range(8)]
    with program(green.uuid, "sum"):
        assert green.done(green.launch(1000, 1)).result == 1001
        assert blue.run_ns() == 0
        assert not blue.is_done(waiting[0])
    last = green.launch(1000)
    with program(blue.uuid, "sum"):
        assert [blue.done(number).result for number in waiting] == list(range(8))
    assert not green.is_done(last)
    with executor(green.uuid) as one:
        assert one.granted().args[0] == 1000


def test_whoever_holds_on_to_the_engine_loses_it(grants: Gpu, blue: Slice, green: Slice) -> None:
    """The item ends, the others go on, and the slice gets nothing more until its executor says that it has stopped."""
    grants.set_max_chunk_us(SHORT_US)
    with executor(blue.uuid) as one, program(green.uuid, "sum"):
        first, second = blue.launch(), blue.launch()
        grant = one.granted()
        assert blue.done(first).status == rig.ITEM_REVOKED
        assert blue.done(first).run_ns >= SHORT_US * 1000
        assert blue.run_ns() >= SHORT_US * 1000
        assert one.ready() & select.POLLPRI
        revoked = one.take()
        assert (revoked.number, revoked.revoked) == (grant.number, True)

        charged = blue.run_ns()
        assert green.done(green.launch()).status in (rig.OK, rig.ITEM_REVOKED)
        assert not blue.is_done(second)
        assert blue.run_ns() == charged

        with pytest.raises(OSError, match=refused(errno.ECANCELED)):
            one.complete(grant.number)
        assert one.granted().number == grant.number + 1


def test_a_process_that_does_not_even_look_loses_the_engine(grants: Gpu, blue: Slice) -> None:
    grants.set_max_chunk_us(SHORT_US)
    with executor(blue.uuid) as one:
        number = blue.launch()
        assert blue.done(number).status == rig.ITEM_REVOKED
        grant = one.granted()
        assert grant.revoked
        with pytest.raises(OSError, match=refused(errno.ECANCELED)):
            one.complete(grant.number)
        assert not one.ready() & select.POLLPRI


def test_a_process_that_is_killed_loses_its_item_only(blue: Slice, green: Slice) -> None:
    with program(blue.uuid, "stuck") as stuck:
        first, second = blue.launch(), blue.launch(5, 6)
        assert stuck.line() == "taken 1"
        stuck.process.kill()
        assert blue.done(first).status == rig.LOST
        with program(green.uuid, "sum"):
            assert green.done(green.launch(8)).result == 8
        assert not blue.is_done(second)
        with program(blue.uuid, "sum"):
            assert blue.done(second).result == 11


def test_a_process_that_is_stopped_holds_nobody_up(grants: Gpu, blue: Slice, green: Slice) -> None:
    """Neither a reset with its grant out, nor closing, nor removing; and it finds that it is no longer wanted."""
    with program(blue.uuid, "stuck") as stuck:
        blue.launch()
        assert stuck.line() == "taken 1"
        stuck.process.send_signal(signal.SIGSTOP)
        blue.device.set_register(REG_CONTROL, RESET)
        with program(green.uuid, "sum"):
            assert green.done(green.launch(4)).result == 4
        blue.enable()
        with program(blue.uuid, "sum"):
            assert blue.done(blue.launch(9)).result == 9
        stuck.process.send_signal(signal.SIGCONT)
        assert stuck.process.wait(timeout=60) == 0


def test_an_executor_that_has_seen_nothing_waits_for_the_next_guest(grants: Gpu) -> None:
    """One that came before the ring was enabled stays through resets and closing; what it has served it served last."""
    with ExitStack() as stack, executor() as one:
        grants.tenant("blue", weight=100, timeslice_us=1000)
        uuid = grants.slice("blue")
        one.attach(uuid)
        for _ in range(2):
            with opened(uuid) as device:
                device.set_register(REG_CONTROL, RESET)
                device.reset()
        assert not one.ready() & select.POLLHUP
        blue = Slice(grants, stack, "blue", uuid)
        number = blue.launch()
        one.complete(one.granted().number, result=5)
        assert blue.done(number).result == 5
        blue.device.set_register(REG_CONTROL, RESET)
        assert one.ready() & select.POLLHUP


def test_an_executor_serves_one_tenant(grants: Gpu) -> None:
    """It may be there before the slice has a tenant, and goes with it."""
    for tenant in ("blue", "green"):
        grants.tenant(tenant, weight=100, timeslice_us=1000)
    uuid = grants.slice(None)
    with executor(uuid) as one:
        grants.control.set_slice(uuid, tenant="blue")
        grants.control.set_slice(uuid, tenant="blue", weight=2)
        assert not one.ready() & select.POLLHUP
        grants.control.set_slice(uuid, tenant="green")
        assert one.ready() & select.POLLHUP
    with executor(uuid) as other:
        assert not other.ready() & select.POLLHUP


def test_a_slice_is_removed_with_its_grant_out(grants: Gpu) -> None:
    with ExitStack() as stack, executor() as one:
        blue = Slice(grants, stack, "blue")
        one.attach(blue.uuid)
        blue.launch()
        grant = one.granted()
        stack.close()
        assert one.ready() & select.POLLHUP
        grants.sysfs.remove(blue.uuid)
        for call in (
            one.take,
            lambda: one.complete(grant.number),
            lambda: os.read(one.fd, 1),
            lambda: os.write(one.fd, b"x"),
        ):
            with pytest.raises(OSError, match=refused(errno.ENODEV)):
                call()
        assert blue.uuid not in grants.slices()


def test_a_function_is_unbound_with_executors_attached(grants: Gpu) -> None:
    """Who is attached keeps the module loaded, and nothing else."""
    grants.tenant("blue", weight=100, timeslice_us=1000)
    with executor(grants.slice("blue")) as one:
        grants.sysfs.unbind(ADDRESS)
        assert one.ready() & select.POLLHUP
        assert subprocess.run(["rmmod", "vgpumgr"], capture_output=True, check=False).returncode
        grants.sysfs.bind(ADDRESS)
    grants.sysfs.write_gpu(ADDRESS, "engine", "exec")


def test_what_an_executor_may_not_do(grants: Gpu, blue: Slice, green: Slice) -> None:
    assert rig.DEVICE.stat().st_mode & 0o777 == 0o600
    with executor() as one:
        for call in (one.take, lambda: one.complete(1), lambda: os.read(one.fd, 1), lambda: os.write(one.fd, b"x")):
            with pytest.raises(OSError, match=refused(errno.ENOTCONN)):
                call()
        assert one.ready() == 0
        for name, fault in (("", errno.EINVAL), (blue.uuid[:-1], errno.EINVAL), (blue.uuid + "0", errno.EINVAL)):
            with pytest.raises(OSError, match=refused(fault)):
                one.attach(name)
        with pytest.raises(OSError, match=refused(errno.ENOENT)):
            one.attach("00000000-0000-4000-8000-000000000000")
        with executor(blue.uuid), pytest.raises(OSError, match=refused(errno.EBUSY)):
            one.attach(blue.uuid)
        one.attach(blue.uuid)
        with pytest.raises(OSError, match=refused(errno.EBUSY)):
            one.attach(green.uuid)
        with pytest.raises(OSError, match=refused(errno.ENOTTY)):
            fcntl.ioctl(one.fd, 0x7653, bytes(48))

        number = blue.launch()
        poll(lambda: bool(one.ready() & select.POLLPRI))
        with pytest.raises(OSError, match=refused(errno.EINVAL)):
            one.complete(1)  # not taken
        with pytest.raises(OSError, match=refused(errno.EFAULT)):
            fcntl.ioctl(one.fd, rig.TAKE, 1)
        assert one.ready() & select.POLLPRI
        with pytest.raises(OSError, match=refused(errno.EINVAL)):
            one.complete(1)  # still not
        grant = one.take()
        for change in ({"number": grant.number + 1}, {"status": rig.ITEM_REVOKED}, {"reserved": 1}):
            with pytest.raises(OSError, match=refused(errno.EINVAL)):
                one.complete(**{"number": grant.number, **change})
        assert not blue.is_done(number)
        one.complete(grant.number)
        assert blue.done(number).status == rig.OK
        with pytest.raises(OSError, match=refused(errno.EINVAL)):
            one.complete(grant.number)  # again


def answer_all(one: Executor, answers: "multiprocessing.Queue[Counter[int]]") -> None:
    """Take and complete until the slice lets go; how often each errno came, 0 for what was completed."""
    said: Counter[int] = Counter()
    while not said[errno.ENODEV]:
        try:
            grant = one.take()
            one.complete(grant.number, result=sum(grant.args))
            said[0] += 1
        except OSError as error:
            said[error.errno or 0] += 1
    answers.put(said)


def test_of_many_who_share_an_executor_one_completes_each_grant(blue: Slice) -> None:
    """Whatever moment each of them sees, it sees all of a grant."""
    fork = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[Counter[int]] = fork.Queue()
    with executor(blue.uuid) as one:
        processes = [fork.Process(target=answer_all, args=(one, answers), daemon=True) for _ in range(3)]
        for process in processes:
            process.start()
        for _ in range(20):
            first = blue.guest.tail
            numbers = range(first, first + ENTRIES)
            blue.guest.submit(blue.device, *[descriptor(LAUNCH, args=[number] * 4) for number in numbers])
            for number in numbers:
                completion = blue.done(number)
                assert (completion.status, completion.result) == (rig.OK, 4 * number)
        blue.device.set_register(REG_CONTROL, RESET)
        said = sum((answers.get(timeout=60 * PATIENCE) for _ in processes), Counter())
        for process in processes:
            process.join(timeout=60 * PATIENCE)
    assert said[0] == 20 * ENTRIES
    assert said[errno.ENODEV] == len(processes)
    assert set(said) <= {0, errno.EAGAIN, errno.EINVAL, errno.ENODEV}, said


def attach_in_vain(one: Executor, uuid: str) -> str:
    """What the log says of it."""
    before = kernel_log()
    with pytest.raises(OSError, match=r"\[Errno"):
        one.attach(uuid)
    return kernel_log().removeprefix(before)


ANSWERS = {
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "ECANCELED", "EFAULT", "EINVAL", "ENODEV", "ENOENT", "ENOTTY", "EPIPE")
}


def ask_anything(one: Executor, uuid: str, random: Random) -> int:
    """One call with anything in it: 0 or its errno. A grant's number is guessed well."""
    number = random.randrange(1, 100)
    good = {
        rig.ATTACH: random.choice((uuid.encode(), random.randbytes(36))).ljust(40, b"\0"),
        rig.TAKE: b"",
        rig.COMPLETE: struct.pack("<QQII", number, 0, random.choice((0, 0, 1, 2, 3, 2**32 - 1)), random.randrange(2)),
    }
    request = random.choice(list(good))
    content: bytes | int = good[request].ljust(64, b"\0")
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
                os.read(one.fd, random.choice((1, 4096, PIPE_BYTES + 1)))
            case 1:
                os.write(one.fd, random.randbytes(random.choice((1, 4096, PIPE_BYTES + 1))))
            case _:
                fcntl.ioctl(one.fd, request, content)
    except OSError as error:
        return error.errno or 0
    return 0


def test_whatever_an_executor_asks_has_an_answer(blue: Slice, green: Slice) -> None:
    """It harms its own slice's items and nobody else, and the slice can be served again."""
    random = Random(7)
    said: Counter[int] = Counter()
    with program(green.uuid, "sum"):
        for _ in range(60):
            last = green.launch(1000, 1)
            with executor() as mad:
                with suppress(OSError):
                    mad.attach(blue.uuid)
                for _ in range(60):
                    if blue.guest.tail - blue.device.register(REG_COMPLETED) < 4:
                        blue.launch(1000, 2)
                    said[ask_anything(mad, blue.uuid, random)] += 1
            assert green.done(last).status == rig.OK
    assert set(said) - {0} <= ANSWERS, said
    assert min(said[0], said[errno.EINVAL], said[errno.EFAULT], said[errno.ENOTTY], said[errno.EAGAIN]) > 10, said
    assert blue.device.register(REG_ERROR) == 0
    with program(blue.uuid, "sum"):
        assert blue.done(blue.launch(1000, 3)).result == 1003


def test_the_log_says_what_of_an_attachment_was_refused(grants: Gpu, blue: Slice, green: Slice) -> None:
    """A file that is attached already is told of by the slice that it is attached to, not by one that it names."""
    with executor() as one, executor(green.uuid):
        said = attach_in_vain(one, "nonsense")
        assert "vgpumgr-exec: ATTACH refused for uuid: -EINVAL\n" in said
        nobody = "00000000-0000-4000-8000-000000000000"
        assert f"slice {nobody}: ATTACH refused for uuid: -ENOENT\n" in attach_in_vain(one, nobody)
        assert f"slice {green.uuid}: ATTACH refused for executor: -EBUSY\n" in attach_in_vain(one, green.uuid)
        one.attach(blue.uuid)
        said = attach_in_vain(one, green.uuid)
        assert f"slice {blue.uuid}: ATTACH refused for file: -EBUSY\n" in said
        assert green.uuid not in said


def test_an_executor_that_floods_the_log_silences_no_other(grants: Gpu, blue: Slice, green: Slice) -> None:
    with executor(blue.uuid) as flooding, executor(green.uuid) as calm:
        before = kernel_log()
        for one in (*[flooding] * 50, calm):
            with pytest.raises(OSError, match=refused(errno.EINVAL)):
                one.complete(1, reserved=1)
    said = kernel_log().removeprefix(before)
    assert f"slice {green.uuid}: COMPLETE refused for reserved: -EINVAL\n" in said
    assert said.count(f"slice {blue.uuid}: COMPLETE refused") < 50


def test_other_engines_have_no_executors(gpu: Gpu) -> None:
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice("blue")
    before = kernel_log()
    with executor() as one, pytest.raises(OSError, match=refused(errno.EOPNOTSUPP)):
        one.attach(uuid)
    assert f"slice {uuid}: ATTACH refused for engine: -EOPNOTSUPP\n" in kernel_log().removeprefix(before)
    with opened(uuid) as device:
        assert device.register(REG_FEATURES) == 0
        assert not device.register(REG_OPS) >> LAUNCH & 1


def test_queues_are_full_of_items_that_wait(blue: Slice) -> None:
    """As many as the ring holds, then one executor after the other, each killed with one."""
    for number in range(ENTRIES):
        blue.launch(number)
    for number in range(3):
        with executor(blue.uuid) as one:
            assert one.granted().args[0] == number
        assert blue.done(number).status == rig.LOST
    with program(blue.uuid, "sum"):
        assert blue.done(ENTRIES - 1).result == ENTRIES - 1
