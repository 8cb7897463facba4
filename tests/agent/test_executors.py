# SPDX-License-Identifier: Apache-2.0
"""Executors of a host without systemd: the helper starts and ends them, and they run before a VM opens its slice."""

import errno
import json
import os
from pathlib import Path

import pytest
from vgpumgr_agent.helper import execution
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.processes import Processes

from tests.agent import fakeexecutor
from tests.agent.executors import kill, until
from tests.agent.fakeapi import claim
from tests.agent.fakeexecutor import alive, behave
from tests.agent.fakekernel import GPU, FakeKernel
from tests.agent.helper_requests import GROUP, SLICE, UUID, refusal, remove
from tests.agent.host import VM, A, Host


def test_prepare_permits_only_when_the_executor_is_ready(helper: HelperClient, lending: FakeKernel) -> None:
    helper.call("configure", **GROUP)
    assert helper.call("prepare", **SLICE) == {"created": True}
    (pid,) = alive(lending.root, UUID)
    memory = {"memory_used_bytes": 0, "memory_bytes": 4096}
    assert helper.call("observe")["executors"] == [
        {"uuid": UUID, "state": "running", "pid": pid, "reason": "", **memory}
    ]
    assert lending.permit_s(UUID) == 120
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    assert command[command.index("--slice") : -1] == [
        *("--slice", UUID, "--library", "/usr/lib/libpocl.so.2"),
        *("--compile-cache-bytes", str(64 << 20), "--gate-limit-ms", "1000"),
    ]
    assert os.getsid(pid) == pid


def test_prepare_again_keeps_the_executor_that_runs(helper: HelperClient, lending: FakeKernel) -> None:
    helper.call("prepare", **SLICE)
    before = alive(lending.root, UUID)
    helper.call("prepare", **SLICE)
    assert alive(lending.root, UUID) == before


def test_another_tenant_or_library_takes_another_executor(helper: HelperClient, lending: FakeKernel) -> None:
    helper.call("prepare", **SLICE)
    (first,) = alive(lending.root, UUID)
    helper.call("prepare", **{**SLICE, "tenant": "green"})
    (second,) = alive(lending.root, UUID)
    fakeexecutor.install(lending.root, more="gate_limit_ms = 7")
    helper.call("prepare", **{**SLICE, "tenant": "green"})
    (third,) = alive(lending.root, UUID)
    assert len({first, second, third}) == 3


def test_without_an_executor_nothing_is_made_and_the_reason_is_its_own(
    helper: HelperClient, lending: FakeKernel, executors: Processes
) -> None:
    behave(lending.root, "the module is of another version")
    with pytest.raises(Exception, match=r"executor\.failed: .* does not run: the module is of another version$"):
        helper.call("prepare", **SLICE)
    assert (lending.state()["slices"], executors.all(), alive(lending.root, UUID)) == ({}, [], [])


def test_one_that_is_never_ready_is_ended(
    helper: HelperClient, lending: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "READY_S", 0.3)
    behave(lending.root, "hangs")
    assert refusal(helper, "prepare", **SLICE) == "executor.failed"
    assert (lending.state()["slices"], alive(lending.root, UUID)) == ({}, [])


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (f'[gpus."{GPU}"]\nengine = "lease"', "executor.failed", "names no library"),
        ('[executor]\nlibrary = "/lib/x y"', "settings.invalid", r"executor\.library: must be an absolute path"),
        ("[executor", "settings.invalid", "not valid TOML"),
    ],
)
def test_settings_that_say_too_little_or_nonsense_are_named(
    helper: HelperClient, lending: FakeKernel, text: str, code: str, said: str
) -> None:
    helper.call("configure", **GROUP)
    lending.paths.agent_settings.write_text(text)
    with pytest.raises(Exception, match=f"{code}: .*{said}"):
        helper.call("prepare", **SLICE)
    assert lending.state()["slices"] == {}


def test_settings_that_others_may_write_start_nothing(helper: HelperClient, lending: FakeKernel) -> None:
    helper.call("configure", **GROUP)
    lending.paths.agent_settings.chmod(0o664)
    assert refusal(helper, "prepare", **SLICE) == "settings.invalid"
    assert alive(lending.root, UUID) == []


def test_removing_a_slice_ends_its_executor_first(
    helper: HelperClient, lending: FakeKernel, executors: Processes
) -> None:
    helper.call("prepare", **SLICE)
    lending.fail["remove"] = [errno.EAGAIN]
    assert refusal(helper, "remove", uuid=UUID, vm_gone=False, withdraw=True) == "control.refused"
    assert (alive(lending.root, UUID), executors.all()) == ([], [])
    assert remove(helper, withdraw=True) == "absent"


def test_a_slice_in_use_keeps_its_executor(helper: HelperClient, lending: FakeKernel) -> None:
    helper.call("prepare", **SLICE)
    lending.open(UUID)
    assert refusal(helper, "remove", uuid=UUID, vm_gone=False, withdraw=True) == "slice.open"
    assert refusal(helper, "halt", uuid=UUID) == "executor.needed"
    assert len(alive(lending.root, UUID)) == 1


def test_the_next_helper_finds_what_runs_and_can_end_it(helper: HelperClient, lending: FakeKernel) -> None:
    helper.call("prepare", **SLICE)
    (pid,) = alive(lending.root, UUID)
    heir = fakeexecutor.processes(lending.root)
    (found,) = heir.all()
    assert (found.uuid, found.state, found.pid) == (UUID, "running", pid)
    heir.stop(UUID)
    assert (heir.all(), alive(lending.root, UUID)) == ([], [])


def test_one_that_was_not_ready_when_its_helper_died_is_started_anew(
    lending: FakeKernel, executors: Processes, helper: HelperClient
) -> None:
    behave(lending.root, "hangs")
    helper.call("configure", **GROUP)
    lending.do_write(f"sys/bus/pci/devices/{GPU}/mdev_supported_types/vgpumgr-mem16m/create", UUID)
    helper.call("adopt", uuid=UUID)
    assert helper.call("execute", uuid=UUID) == {"started": True}
    number = fakeexecutor.directory(lending.root) / UUID / "pid"
    until(lambda: number.exists() and number.read_text())
    (before,) = alive(lending.root, UUID)
    (found,) = fakeexecutor.processes(lending.root).all()
    assert (found.state, found.reason) == ("failed", "the helper ended before it was ready")
    executors._started.clear()
    behave(lending.root)
    assert helper.call("execute", uuid=UUID) == {"started": True}
    until(lambda: executors.all()[0].state == "running")
    assert before not in alive(lending.root, UUID)


def test_a_number_that_another_process_has_now_is_nobodys(lending: FakeKernel, executors: Processes) -> None:
    directory = fakeexecutor.directory(lending.root) / UUID
    directory.mkdir(parents=True)
    (directory / "ready").touch()
    (directory / "pid").write_text(f"{os.getpid()}\n")
    assert executors.all()[0].state == "failed"
    executors.stop(UUID)
    assert executors.all() == []


def test_an_executor_is_in_a_cgroup_of_its_tenant_with_its_limits(helper: HelperClient, lending: FakeKernel) -> None:
    mount = lending.root / "sys/fs/cgroup"
    cgroup = mount / "vgpumgr/blue" / UUID
    cgroup.mkdir(parents=True)
    files = [cgroup / name for name in ("memory.max", "pids.max", "cpu.max", "cgroup.kill")]
    for path in (mount / "cgroup.controllers", *files):
        path.touch()
    fakeexecutor.install(lending.root, more="memory_max_bytes = 4096\ntasks_max = 0")
    helper.call("prepare", **SLICE)
    assert [int((cgroup / "cgroup.procs").read_text())] == alive(lending.root, UUID)
    assert [path.read_text() for path in files[:3]] == ["4096", "max", "max 1000000"]


def test_a_slice_has_the_lower_of_its_own_limits_and_its_hosts_also_after_a_restart(
    computing: Host, executors: Processes
) -> None:
    def limits() -> list[int]:
        started = json.loads((executors._directory / str(A) / "launch").read_text())["settings"]
        return [started[name] for name in ("memory_max_bytes", "tasks_max", "cpu_max_permille")]

    fakeexecutor.install(computing.kernel.root, more="memory_max_bytes = 4096\ntasks_max = 9")
    own = {"executor_memory_max_bytes": 8192, "executor_tasks_max": 7, "executor_cpu_max_permille": 500}
    computing.api.set(slices=[claim(A, vm=VM, **own)])
    computing.learn()
    computing.start(A)
    assert limits() == [4096, 7, 500]
    computing.kernel.open(str(A))
    kill(computing)
    computing.reconcile()
    until(lambda: len(alive(computing.kernel.root, A)) == 1)
    assert limits() == [4096, 7, 500]


@pytest.mark.parametrize("operation", ["execute", "halt"])
def test_executors_of_others_slices_are_not_touched(helper: HelperClient, lending: FakeKernel, operation: str) -> None:
    lending.do_write(f"sys/bus/pci/devices/{GPU}/mdev_supported_types/vgpumgr-mem16m/create", UUID)
    assert refusal(helper, operation, uuid=UUID) in ("record.missing", "executor.needed")


# ---- the engine


def test_a_listed_gpu_gets_its_engine_before_anything_is_on_it(helper: HelperClient, lending: FakeKernel) -> None:
    lending.list_gpus(GPU)
    assert helper.call("bind", gpu=GPU) == {"changed": True}
    assert [entry[1] for entry in lending.log] == ["engine", "attach"]
    assert helper.call("observe")["gpus"][0]["engine"] == "lease"


def test_a_gpu_that_comes_late_gets_its_engine_too(helper: HelperClient, lending: FakeKernel) -> None:
    lending.list_gpus(GPU)
    lending.hand_to(GPU, None)
    assert helper.call("bind", gpu=GPU) == {"changed": True}
    assert helper.call("observe")["gpus"][0]["engine"] == "lease"


def test_an_engine_in_use_stays_and_no_vm_starts_on_it(helper: HelperClient, kernel: FakeKernel) -> None:
    kernel.list_gpus(GPU)
    helper.call("configure", **GROUP)
    fakeexecutor.install(kernel.root)
    assert helper.call("configure", **{**GROUP, "weight": 200}) == {"changed": True}
    assert refusal(helper, "prepare", **SLICE) == "gpu.engine"
    assert refusal(helper, "bind", gpu=GPU) == "gpu.engine"
    assert helper.call("observe")["gpus"][0]["engine"] == "soft"
    assert kernel.state()["slices"] == {}


def test_on_another_engine_a_slice_has_no_executor(helper: HelperClient, kernel: FakeKernel) -> None:
    fakeexecutor.install(kernel.root, engine="soft")
    helper.call("prepare", **SLICE)
    assert alive(kernel.root, UUID) == []
    assert helper.call("observe")["executors"] == []
