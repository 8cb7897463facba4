# SPDX-License-Identifier: Apache-2.0
"""The gate on NVIDIA's driver: a child's work on the GPU stops and continues together with the child.

Time on the fake GPU passes only when the observer advances it, so a group's run time is exact.
"""

import fcntl
import os
import signal
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compute.driver_rig import (
    DISABLE,
    NO_SUCH,
    OK,
    SET_TIMESLICE,
    DriverChild,
    Gpu,
    run_driver_slice,
    run_gpu,
)
from tests.compute.executor_rig import (
    DONE,
    EXECUTOR,
    FAILED,
    FREEZE,
    GATE,
    LIMIT_S,
    Slice,
    is_alive,
    kill,
    make_product,
    run_slice,
    wait_for,
    wait_until_gone,
)
from tests.gpu.fakerm.client import FakeClient
from tests.gpu.fakerm.gpu import Behaviour

MS = 1_000_000
# Each turn begins with a switch of this duration.
SWITCH_NS = 100_000
INFO = 0xA06C0106


@pytest.fixture
def observer(gpu: Gpu) -> Iterator[FakeClient]:
    with gpu.observer() as client:
        yield client


@pytest.fixture
def tenant(tmp_path: Path, gpu: Gpu, driver_child: Path) -> Iterator[Slice]:
    with run_driver_slice(tmp_path, gpu, driver_child) as slice_:
        yield slice_


def runs(observer: FakeClient, *, group: int = 0, ns: int = 10 * MS) -> int:
    """Return how long a group runs within `ns`."""
    before = observer.progress_ns(group)
    observer.pass_time(ns)
    return observer.progress_ns(group) - before


def disablings(gpu: Gpu) -> list[tuple[bool, set[int]]]:
    """Return the calls that disabled or enabled channels, with their channels. Ends the driver."""
    found = []
    for entry in gpu.fake.log():
        if entry.get("cmd") == DISABLE:
            parameters = bytes.fromhex(entry["params"])
            (count,) = struct.unpack_from("=I", parameters, 4)
            found.append((bool(parameters[0]), set(struct.unpack_from(f"={count}I", parameters, 280))))
    return found


def relay_of(tenant: Slice) -> int:
    """Return the relay's process of the only child."""
    (relay,) = [pid for pid in tenant.processes() if Path(f"/proc/{pid}/comm").read_text() == "vgpu-relay\n"]
    return relay


@pytest.mark.parametrize("gate", ["auto", "signal"])
def test_what_a_child_has_on_the_gpu_stops_in_the_middle_of_a_kernel(
    tmp_path: Path, gpu: Gpu, observer: FakeClient, driver_child: Path, gate: str
) -> None:
    with run_driver_slice(tmp_path, gpu, driver_child, "--gate", gate) as tenant:
        tenant.start()
        assert runs(observer) == 10 * MS - SWITCH_NS
        for _ in range(3):
            assert tenant.freeze().op == DONE
            assert runs(observer, ns=1000 * MS) == 0
            assert tenant.thaw().op == DONE
            assert runs(observer) == 10 * MS


def test_the_gate_s_time_and_strength_are_told(tenant: Slice) -> None:
    tenant.start()
    closed = tenant.freeze()
    assert (closed.op, closed.enforced) == (DONE, GATE)
    opened = tenant.thaw()
    assert (opened.op, opened.enforced) == (DONE, GATE)
    assert opened.gate_ns > 0


@pytest.mark.parametrize(
    ("library", "enforced"), [("/usr/lib/libpocl.so.2", GATE), ("/usr/lib/libOther.so.1", EXECUTOR)]
)
def test_without_a_gpu_of_its_own_only_what_runs_in_children_is_stopped(
    tmp_path: Path, library: str, enforced: int
) -> None:
    make_product()
    with run_slice(tmp_path, "--backend", "opencl", "--library", library) as slice_:
        assert slice_.thaw().enforced == enforced


def test_groups_made_later_are_stopped_and_freed_ones_are_forgotten(tenant: Slice, gpu: Gpu) -> None:
    child = DriverChild(tenant.start().window)
    first = child.context.channel
    later = child.channel(child.group())
    more = [child.channel(child.group()) for _ in range(2)]
    copies = child.channel(child.group(9))
    tenant.freeze()
    tenant.thaw()
    assert child.free(later).word(12) == OK
    tenant.freeze()
    tenant.thaw()
    all_of_them = {first, later, *more, copies}
    assert disablings(gpu) == [
        (True, all_of_them),
        (False, all_of_them),
        (True, all_of_them - {later}),
        (False, all_of_them - {later}),
    ]


def test_a_list_is_no_longer_than_the_driver_takes(tenant: Slice, gpu: Gpu) -> None:
    child = DriverChild(tenant.start().window)
    group = child.group()
    channels = {child.channel(group) for _ in range(100)}
    tenant.freeze()
    closed = disablings(gpu)
    assert [len(some) for _, some in closed] == [64, 37]
    assert closed[0][1] | closed[1][1] == channels | {child.context.channel}


def test_all_children_of_a_tenant_are_stopped(tenant: Slice, observer: FakeClient) -> None:
    for _ in range(3):
        tenant.start()
    tenant.freeze()
    for group in range(3):
        assert runs(observer, group=group) == 0
    tenant.thaw()
    assert sum(runs(observer, group=group, ns=90 * MS) for group in range(3)) > 0


def test_a_tenant_that_is_stopped_leaves_the_gpu_to_its_neighbour(
    tenant: Slice, observer: FakeClient, gpu: Gpu
) -> None:
    tenant.start()
    with FakeClient(gpu.fake.directory) as neighbour:
        neighbour.submit(neighbour.begin(gpu.version), 10**12)
        alone = 1000 * MS
        tenant.freeze()
        observer.pass_time(10 * MS)
        assert runs(observer, group=1, ns=alone) == alone
        tenant.thaw()
        assert runs(observer, group=1, ns=alone) == pytest.approx(alone / 2, rel=0.1)


def test_one_call_at_a_time_over_all_slices(tmp_path: Path, driver_child: Path) -> None:
    """Two simultaneous calls would leave both groups stuck, so the gates of two supervisors wait for each other."""
    with (
        run_gpu(disable_s=0.02) as gpu,
        gpu.observer() as observer,
        run_driver_slice(tmp_path, gpu, driver_child) as blue,
        run_driver_slice(tmp_path, gpu, driver_child) as red,
    ):
        blue.start()
        red.start()
        for _ in range(5):
            for ask in ("freeze", "thaw"):
                threads = [threading.Thread(target=getattr(slice_, ask)) for slice_ in (blue, red)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(LIMIT_S)
        for group in range(2):
            assert runs(observer, group=group, ns=100 * MS) > 0


def test_a_lock_that_somebody_keeps_is_waited_for_and_then_the_child_is_killed(
    tmp_path: Path, gpu: Gpu, driver_child: Path
) -> None:
    with run_driver_slice(tmp_path, gpu, driver_child, "--gate-limit-ms", "300") as tenant:
        child = tenant.start()
        with (tmp_path / "gate.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sequence = tenant.send(FREEZE)
            exited = tenant.wait_for_exit(child.number)
            assert exited.reason == "it did not stop when the gate closed"
        assert tenant.answer(sequence).op == DONE


def test_a_gate_that_cannot_be_opened_says_so_and_stays_closed(
    tenant: Slice, tmp_path: Path, observer: FakeClient
) -> None:
    tenant.start()
    tenant.freeze()
    with (tmp_path / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = tenant.thaw()
        assert (refused.op, refused.reason) == (FAILED, "the gate cannot be opened")
        assert runs(observer) == 0
    assert tenant.thaw().op == DONE
    assert runs(observer) > 0


def test_where_channels_cannot_be_disabled_timeslices_stand_in(tmp_path: Path, driver_child: Path) -> None:
    with run_gpu(refuse_disable=True) as gpu, run_driver_slice(tmp_path, gpu, driver_child) as tenant:
        child = DriverChild(tenant.start().window)
        for _ in range(2):
            assert tenant.freeze().op == DONE
            # A timeslice is only a weight: it does not stop a tenant whose neighbour is idle.
            assert tenant.thaw().enforced == EXECUTOR
        assert "event=gate uses timeslices instead: driver: status 0x56" in tenant.log.read_text()
        log: list[dict[str, Any]] = gpu.fake.log()
    calls = [entry for entry in log if entry.get("cmd") in (DISABLE, SET_TIMESLICE)]
    assert [entry["cmd"] for entry in calls] == [DISABLE, *[SET_TIMESLICE] * 4]
    assert [int.from_bytes(bytes.fromhex(entry["params"]), "little") for entry in calls[1:]] == [1, 20000, 1, 20000]
    assert {entry["object"] for entry in calls[1:]} == {child.context.group}


def test_what_was_disabled_before_the_driver_refused_goes_on(tmp_path: Path, driver_child: Path) -> None:
    """The driver disables the first client's channels and refuses those of the second."""
    with (
        run_gpu(refuse_later_disable=True) as gpu,
        gpu.observer() as observer,
        run_driver_slice(tmp_path, gpu, driver_child) as tenant,
    ):
        child = DriverChild(tenant.start().window)
        second = child.second_context()
        assert tenant.freeze().op == DONE
        assert tenant.thaw().enforced == EXECUTOR
        assert runs(observer) > 0
        assert tenant.freeze().op == DONE
        assert tenant.thaw().op == DONE
        log = gpu.fake.log()
    calls = [entry for entry in log if entry.get("cmd") in (DISABLE, SET_TIMESLICE)]
    first = (child.context.group, second.group)
    assert [(entry["cmd"], entry["object"], entry["status"]) for entry in calls] == [
        (DISABLE, child.context.subdevice, OK),
        (DISABLE, second.subdevice, NO_SUCH),
        *[(SET_TIMESLICE, group, OK) for group in first],
        (DISABLE, child.context.subdevice, OK),
        *[(SET_TIMESLICE, group, OK) for group in first * 3],
    ]
    disabling = [bytes.fromhex(entry["params"])[0] for entry in calls if entry["cmd"] == DISABLE]
    assert disabling == [1, 1, 0]


COMPUTE = 0xCBC0


def test_kernels_of_a_child_that_never_asks_are_made_preemptible(tmp_path: Path, driver_child: Path) -> None:
    with (
        run_gpu(behaviour=Behaviour(asks=True)) as gpu,
        gpu.observer() as observer,
        run_driver_slice(tmp_path, gpu, driver_child) as tenant,
    ):
        child = DriverChild(tenant.start().window)
        assert child.alloc(child.context.channel, COMPUTE, bytes(16)).word(40) == OK
        assert runs(observer) > 0
        assert tenant.freeze().op == DONE
        assert runs(observer) == 0
        assert tenant.thaw().enforced == GATE


def test_a_driver_that_does_not_make_kernels_preemptible_leaves_no_gate(tmp_path: Path, driver_child: Path) -> None:
    with (
        run_gpu(behaviour=Behaviour(asks=True), refuse_cilp=True) as gpu,
        gpu.observer() as observer,
        run_driver_slice(tmp_path, gpu, driver_child) as tenant,
    ):
        started = tenant.start()
        child = DriverChild(started.window)
        assert child.alloc(child.context.channel, COMPUTE, bytes(16)).word(40) == OK
        assert runs(observer) > 0
        assert tenant.freeze().enforced == EXECUTOR
        assert runs(observer) > 0
        assert tenant.thaw().enforced == EXECUTOR
        assert tenant.log.read_text().count("its kernels may run to their end") == 1
        # The next child has no such restriction.
        tenant.kill(started.number)
        tenant.wait_for_exit(started.number)
        tenant.start()
        assert tenant.freeze().enforced == GATE


def test_a_child_whose_channels_cannot_be_stopped_is_killed(tenant: Slice, observer: FakeClient) -> None:
    """The child has freed the subdevice. Without it, the driver accepts no list of channels."""
    first = tenant.start()
    hostile_child = tenant.start()
    hostile = DriverChild(hostile_child.window)
    assert hostile.free(hostile.context.subdevice).word(12) == OK
    sequence = tenant.send(FREEZE)
    exited = tenant.wait_for_exit(hostile_child.number)
    assert exited.reason == "its work on the GPU could not be stopped"
    assert tenant.answer(sequence).op == DONE
    assert runs(observer, group=1) == 0
    # The other child is stopped and lives.
    assert runs(observer) == 0
    tenant.thaw()
    assert runs(observer) > 0
    assert first.window.state == 1
    assert "its channels cannot be closed: no subdevice of client" in tenant.log.read_text()


def test_a_call_that_is_under_way_is_made_once_and_the_gate_waits_for_it(tmp_path: Path, driver_child: Path) -> None:
    """A thread that was frozen during its call would make the call a second time."""
    with run_gpu(info_s=0.3) as gpu, run_driver_slice(tmp_path, gpu, driver_child) as tenant:
        child = DriverChild(tenant.start().window)
        answers = []
        asking = threading.Thread(target=lambda: answers.append(child.control(child.context.group, INFO, bytes(4))))
        asking.start()
        # The relay waits for the fake driver in recvfrom().
        relay = Path(f"/proc/{relay_of(tenant)}/syscall")
        wait_for(lambda: relay.read_text().startswith("45 "), "the call")
        assert tenant.freeze().op == DONE
        tenant.thaw()
        asking.join(LIMIT_S)
        assert [(answer.result, answer.word(28)) for answer in answers] == [(0, OK)]
        assert [entry["cmd"] for entry in gpu.fake.log() if entry["call"] == "control"].count(INFO) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone has something to give up")
def test_a_relay_has_no_privilege_but_to_look_into_its_child(tenant: Slice) -> None:
    tenant.start()
    status = Path(f"/proc/{relay_of(tenant)}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["65534"] * 4
    assert fields["Groups"].strip() == ""
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 1 << 19
    assert fields["NoNewPrivs"] == "1"
    # The relay's only capability is valid in the child's user namespace alone.
    namespaces = [Path(f"/proc/{pid}/ns/user").readlink() for pid in (relay_of(tenant), tenant.pid_of(1), os.getpid())]
    assert namespaces[0] == namespaces[1] != namespaces[2]
    descriptors = sorted(int(path.name) for path in Path(f"/proc/{relay_of(tenant)}/fd").iterdir())
    # Standard files; the child's calls, process and memory; and the GPU, without which the driver makes no device.
    assert descriptors == [0, 1, 2, 3, 4, 5, 6]
    assert "cannot open" not in tenant.log.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write into a relay")
def test_a_table_without_an_end_is_not_believed(tenant: Slice) -> None:
    """An attacker who controls a relay can write the memory that it shares with the supervisor."""
    child = tenant.start()
    relay = relay_of(tenant)
    maps = Path(f"/proc/{relay}/maps").read_text().splitlines()
    (start,) = [int(line.split("-")[0], 16) for line in maps if line.endswith("/dev/zero (deleted)")]
    with Path(f"/proc/{relay}/mem").open("r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(struct.pack("=I", 0x7FFFFFFF))
    sequence = tenant.send(FREEZE)
    assert tenant.wait_for_exit(child.number).reason == "its work on the GPU could not be stopped"
    assert tenant.answer(sequence).op == DONE
    assert "its channels cannot be closed: objects 0x7fffffff" in tenant.log.read_text()


def test_a_child_does_not_outlive_its_relay(tenant: Slice) -> None:
    child = tenant.start()
    kill(relay_of(tenant))
    assert tenant.wait_for_exit(child.number).reason == "its relay has ended"


def test_a_relay_ends_with_its_child_and_with_its_supervisor(tenant: Slice, observer: FakeClient) -> None:
    child = tenant.start()
    relay = relay_of(tenant)
    tenant.kill(child.number)
    exited = tenant.wait_for_exit(child.number)
    assert exited.reason == "the arbiter killed it"
    assert not is_alive(relay)
    assert runs(observer) == 0
    child = tenant.start()
    relay = relay_of(tenant)
    os.kill(tenant.process.pid, signal.SIGKILL)
    wait_until_gone(relay)
    wait_until_gone(tenant.pid_of(child.number))
    wait_for(lambda: runs(observer, group=1) == 0, "the end of what it had on the GPU")


def test_a_child_that_is_killed_while_it_is_stopped_is_gone_from_the_gpu(tenant: Slice, observer: FakeClient) -> None:
    child = tenant.start()
    tenant.freeze()
    tenant.kill(child.number)
    tenant.wait_for_exit(child.number)
    tenant.thaw()
    assert runs(observer) == 0
    tenant.start()
    assert runs(observer, group=1) > 0


def with_module(version: str) -> tuple[str, ...]:
    """Simulates a machine whose kernel has NVIDIA's module."""
    script = f'mount -t tmpfs none /sys/module && mkdir /sys/module/nvidia && echo {version} > "$0" && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, "/sys/module/nvidia/version")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can pretend that there is a module")
@pytest.mark.parametrize("version", ["590.10", "570.124.04", "5801.1", "rubbish"])
def test_a_supervisor_does_not_start_on_a_driver_that_is_not_known(tmp_path: Path, version: str) -> None:
    make_product()
    lock = ("--gate-lock", str(tmp_path / "gate.lock"))
    with run_slice(tmp_path, "--nvidia", "0", *lock, machine=with_module(version)) as slice_:
        assert slice_.process.wait(LIMIT_S) == 1
        said = f"--nvidia: the gate is not known to work on driver {version}, only on 580\n"
        assert slice_.log.read_text().endswith(said)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can pretend that there is a module")
def test_it_starts_on_one_that_is(tmp_path: Path) -> None:
    make_product()
    lock = ("--gate-lock", str(tmp_path / "gate.lock"))
    with run_slice(tmp_path, "--nvidia", "0", *lock, machine=with_module("580.159.04")) as slice_:
        assert slice_.thaw().enforced == GATE


def test_a_supervisor_does_not_start_without_a_lock(tmp_path: Path) -> None:
    make_product()
    with run_slice(tmp_path, "--nvidia", "0", "--gate-lock", str(tmp_path / "no" / "lock")) as slice_:
        assert slice_.process.wait(LIMIT_S) == 1
        said = "--nvidia: there is no lock for the gate: No such file or directory\n"
        assert slice_.log.read_text().endswith(said)


@pytest.mark.parametrize("number", ["-1", "32", "x", ""])
def test_no_gpu_has_such_a_number(tmp_path: Path, number: str) -> None:
    make_product()
    with run_slice(tmp_path, "--nvidia", number) as slice_:
        assert slice_.process.wait(LIMIT_S) == 2
        assert f"--nvidia: '{number}' is not a valid value" in slice_.log.read_text()
