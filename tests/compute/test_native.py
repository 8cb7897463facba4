# SPDX-License-Identifier: Apache-2.0
"""Native programs, from their launcher to the GPU: which are accepted, what ends them, and what they leave behind."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compute.broker_rig import REFUSED, tenant
from tests.compute.driver_rig import Gpu
from tests.compute.executor_rig import BUILT, LIMIT_S, wait_for
from tests.compute.native_rig import (
    MIB,
    NativeBroker,
    NativeProgram,
    enclosures,
    launch,
    make_native,
    native_tenant,
    run_native_broker,
    start,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a fence looks into a program, which takes root")


@pytest.fixture
def broker(gpu: Gpu) -> Iterator[NativeBroker]:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        run_native_broker(Path(folder), gpu, native_tenant("blue", weight=300), native_tenant("red")) as broker,
    ):
        yield broker


@pytest.fixture
def program(broker: NativeBroker, gpu: Gpu) -> Iterator[NativeProgram]:
    with start(broker, "blue", gpu) as program:
        yield program


def fences(broker: NativeBroker, name: str) -> list[int]:
    """Processes of a tenant's supervisor that are fences."""
    pid = broker.supervisor_pid(name)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in children if Path(f"/proc/{each}/comm").read_text() == "vgpu-fence\n"]


def test_a_program_computes_on_the_gpu_and_is_shown(broker: NativeBroker, program: NativeProgram, gpu: Gpu) -> None:
    program.work()
    wait_for(lambda: broker.native("blue")["working"] == 1, "the program to be known to work")
    shown = broker.shown("blue")
    assert [(each["native"], each["pid"]) for each in shown["processes"]] == [(True, program.pid)]
    assert shown["supervisor"]["enforced_by"] == "firmware"
    with gpu.observer() as observer:
        observer.pass_time(1_000_000)
        assert observer.progress_ns(0) > 0


def test_a_program_keeps_its_pid_its_streams_and_its_status(broker: NativeBroker) -> None:
    process = launch(broker, "blue", "/bin/sh", "-c", "echo $$; cat; exit 7")
    out, _ = process.communicate("to it\n", LIMIT_S)
    assert out == f"{process.pid}\nto it\n"
    assert process.returncode == 7
    wait_for(lambda: not broker.native("blue")["programs"], "the program to be forgotten")


def test_it_leaves_nothing(broker: NativeBroker, program: NativeProgram) -> None:
    program.work()
    (cgroup,) = enclosures(broker)
    assert (cgroup / "cgroup.procs").read_text() == f"{program.pid}\n"
    program.process.kill()
    program.wait_for_end()
    wait_for(lambda: not broker.native("blue")["programs"], "the program to be forgotten")
    assert not enclosures(broker)
    assert not cgroup.exists()
    assert not fences(broker, "blue")


def test_cgroups_of_a_dead_supervisor_with_the_same_pid_are_not_in_the_way(
    broker: NativeBroker, program: NativeProgram
) -> None:
    """Pids are reused, and a supervisor that is killed with its broker leaves cgroups."""
    (cgroup,) = enclosures(broker)
    name = "-".join(cgroup.name.split("-")[:2])
    left = [cgroup.with_name(f"{name}-{number}") for number in range(2, 6)]
    for each in left:
        each.mkdir()
    try:
        assert launch(broker, "blue", "/bin/true").wait(LIMIT_S) == 0
    finally:
        for each in left:
            each.rmdir()


def test_a_program_that_is_not_there(broker: NativeBroker) -> None:
    process = launch(broker, "blue", "/nonexistent")
    _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (127, "vgpumgr: /nonexistent: No such file or directory\n")


def test_what_outlives_its_first_process_is_the_program_still(broker: NativeBroker, program: NativeProgram) -> None:
    process = launch(broker, "blue", "/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 </dev/null & echo $!")
    out, _ = process.communicate(timeout=LIMIT_S)
    assert broker.native("blue")["programs"] == 2
    os.kill(int(out), signal.SIGKILL)
    wait_for(lambda: broker.native("blue")["programs"] == 1, "the program to be forgotten")


@pytest.mark.parametrize("who", ["fence", "supervisor", "broker"])
def test_a_program_whose_keeper_dies_is_killed(
    broker: NativeBroker, program: NativeProgram, who: str, gpu: Gpu
) -> None:
    program.work()
    bystander = start(broker, "red", gpu)
    keeper = {
        "fence": fences(broker, "blue")[0],
        "supervisor": broker.supervisor_pid("blue"),
        "broker": broker.process.pid,
    }[who]
    os.kill(keeper, signal.SIGKILL)
    assert program.wait_for_end() == -signal.SIGKILL
    with bystander:
        if who == "broker":
            assert bystander.wait_for_end() == -signal.SIGKILL
        else:
            bystander.work()
            wait_for(lambda: not broker.native("blue")["programs"], "the program to be forgotten")


def test_what_is_left_when_all_die_at_once_is_killed_by_the_next_broker(
    broker: NativeBroker, program: NativeProgram
) -> None:
    program.work()
    keepers = [broker.process.pid, broker.supervisor_pid("blue"), *fences(broker, "blue")]
    for pid in keepers:
        os.kill(pid, signal.SIGSTOP)
    for pid in keepers:
        os.kill(pid, signal.SIGKILL)
    broker.process.wait(LIMIT_S)
    # No process is left that could have killed the program.
    assert program.process.poll() is None
    (cgroup,) = enclosures(broker)
    broker.process = broker.start(json.dumps(broker.settings()).encode())
    assert program.wait_for_end() == -signal.SIGKILL
    wait_for(lambda: not cgroup.exists(), "its cgroup to be removed")


def test_a_killed_program_takes_all_that_it_started_with_it(broker: NativeBroker, program: NativeProgram) -> None:
    process = launch(broker, "blue", "/bin/sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!; cat")
    assert process.stdout
    orphan = int(process.stdout.readline())
    broker.set_tenants([native_tenant("red")])
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    assert program.wait_for_end() == -signal.SIGKILL
    wait_for(
        lambda: not Path(f"/proc/{orphan}/cmdline").exists() or not Path(f"/proc/{orphan}/cmdline").read_text(), "it"
    )
    process.communicate(timeout=LIMIT_S)


def refused(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=LIMIT_S)
    assert (out, process.returncode) == ("", 125)
    return err


def test_a_tenant_whose_programs_may_not_be_native(gpu: Gpu, tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        run_native_broker(
            Path(folder), gpu, native_tenant("blue"), native_tenant("red", max_processes=1), turns="gate"
        ) as broker,
    ):
        with start(broker, "red", gpu):
            assert "as many processes as max_processes permits" in refused(launch(broker, "red", "true"))
        program = broker.connect("blue").hello()
        answer = program.answer()
        assert answer.op == REFUSED
        assert "vgpumgr run --native" in answer.reason
        program.close()
        wait_for(lambda: not broker.native("red")["programs"], "the program to be forgotten")
        assert broker.shown("blue")["refused"]["native"] == 1


def test_nobody_at_the_socket() -> None:
    process = subprocess.run(
        [str(BUILT / "vgpu-native"), "--socket", "/nonexistent/blue.sock", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 125
    assert process.stderr == "vgpumgr: broker.unreachable: /nonexistent/blue.sock: No such file or directory\n"


def test_memory_is_counted_and_what_exceeds_it_is_out_of_memory(broker: NativeBroker, program: NativeProgram) -> None:
    assert program.do("begin") == "ok None"
    half = program.do(f"allocate {40 * MIB}")
    assert half.startswith("ok ")
    assert program.do(f"allocate {40 * MIB}") == "failed status 0x51"
    assert program.do(f"free {half.split()[1]}") == "ok None"
    assert program.do(f"allocate {60 * MIB}").startswith("ok ")
    # After the tenant's limit is raised, the program can allocate more memory.
    broker.set_tenants([native_tenant("blue", memory_bytes=200 * MIB), native_tenant("red")])
    assert program.do(f"allocate {120 * MIB}").startswith("ok ")


def test_memory_in_use_is_shown_while_a_program_runs_and_no_longer(
    broker: NativeBroker, program: NativeProgram
) -> None:
    def used() -> int:
        return int(broker.native("blue")["memory_used_bytes"])

    assert program.do("begin") == "ok None"
    handle = program.do(f"allocate {40 * MIB}").split()[1]
    wait_for(lambda: used() == 40 * MIB, "its memory to be shown")
    assert program.do(f"free {handle}") == "ok None"
    wait_for(lambda: used() == 0, "it to be given back")
    assert program.do(f"allocate {20 * MIB}").startswith("ok ")
    wait_for(lambda: used() == 20 * MIB, "its memory to be shown")
    os.kill(broker.supervisor_pid("blue"), signal.SIGKILL)
    program.wait_for_end()
    wait_for(lambda: used() == 0, "nothing to be left")


def test_a_tenant_that_is_not_native(broker: NativeBroker) -> None:
    broker.tenants = [native_tenant("blue"), tenant("red")]
    with pytest.raises(Exception, match="unless all tenants are native"):
        broker.control.set(broker.settings(), generation=0)


def test_a_machine_without_the_gpu(gpu: Gpu) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/var/tmp") as folder,
        run_native_broker(Path(folder), gpu, native_tenant("blue"), driver=False) as broker,
    ):
        assert "/dev/nvidia0 cannot be opened" in refused(launch(broker, "blue", "true"))


def test_a_broker_that_is_not_roots(tmp_path: Path) -> None:
    make_native()
    broker = NativeBroker(tmp_path, BUILT / "vgpu-broker", BUILT / "vgpu-supervisor", tenants=[native_tenant("blue")])
    broker.nvidia = 0
    document = os.memfd_create("settings", 0)
    os.write(document, json.dumps(broker.settings()).encode())
    os.lseek(document, 0, os.SEEK_SET)
    run = Path(tempfile.mkdtemp(dir="/var/tmp"))
    os.chown(run, 65534, 65534)
    command = [str(BUILT / "vgpu-broker"), "--directory", str(run), "--settings", str(document)]
    said = subprocess.run(command, user=65534, pass_fds=[document], capture_output=True, text=True, check=False)
    os.close(document)
    shutil.rmtree(run)
    assert said.returncode == 2
    assert "tenants.native: a broker that runs as root" in said.stderr
