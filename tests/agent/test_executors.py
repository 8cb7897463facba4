# SPDX-License-Identifier: Apache-2.0
"""Executors of a host without systemd: there before a VM opens its slice, watched, and gone with the slice."""

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID as UUID_

import pytest
from vgpumgr_agent.backends import Observed, ObservedExecutor, ObservedSlice
from vgpumgr_agent.executions import Ends, Executions, Standing
from vgpumgr_agent.helper import execution, processes
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.processes import Processes
from vgpumgr_agent.hookproto import HookRefusedError
from vgpumgr_agent.reconcile import HaltExecutor, StartExecutor, Wanted, lacking, plan

from tests.agent import fakeexecutor
from tests.agent.fakeapi import claim, group
from tests.agent.fakeexecutor import alive, behave
from tests.agent.fakekernel import GPU, FakeKernel
from tests.agent.host import VM, A, B, Host
from tests.agent.test_helper import GROUP, SLICE, UUID, refusal, remove
from tests.agent.test_reconcile import gpu, observed, seen
from vgpumgr.wire.common import ExecutorState
from vgpumgr.wire.fleet import ReportedExecutor

WITHIN_S = 30.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def lending(kernel: FakeKernel) -> FakeKernel:
    """A host that is set to have executors."""
    fakeexecutor.install(kernel.root)
    return kernel


@pytest.fixture
def computing(lending: FakeKernel, host: Host) -> Host:
    """An agent that claims for a VM on the GPU that lends."""
    host.api.set(groups=[group("blue", 600)], slices=[claim(A, vm=VM), claim(B, vm=VM)])
    host.learn()
    return host


def executor(host: Host) -> ReportedExecutor:
    """What was reported of the first slice's."""
    return {each.id: each for each in host.api.last().slices}[A].executor


def kill(host: Host, uuid: object = A) -> None:
    """Kill the process, and see it gone."""
    (pid,) = alive(host.kernel.root, uuid)
    os.kill(pid, signal.SIGKILL)
    until(lambda: alive(host.kernel.root, uuid) == [])


# ---- the helper


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
        ('[executor]\nlibrary = "/lib/x y"', "settings.invalid", r"executor\.library: a whole path"),
        ("[executor", "settings.invalid", "not TOML"),
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


# ---- the agent


def test_a_vm_starts_with_an_executor_per_slice_and_they_go_with_it(computing: Host) -> None:
    root = computing.kernel.root
    computing.start(A, B)
    assert (len(alive(root, A)), len(alive(root, B))) == (1, 1)
    computing.reconcile()
    assert executor(computing) == ReportedExecutor(state=ExecutorState.RUNNING, memory_bytes=4096)
    computing.release(A, B)
    computing.reconcile()
    assert (alive(root, A), alive(root, B), computing.slices()) == ([], [], set())
    assert executor(computing) == ReportedExecutor()
    assert not list(fakeexecutor.directory(root).iterdir())


def test_a_vm_whose_executor_does_not_run_does_not_start_and_is_told_why(computing: Host) -> None:
    behave(computing.kernel.root, "there is no such library")
    with pytest.raises(HookRefusedError, match="there is no such library") as refused:
        computing.start(A, B)
    assert refused.value.code == "executor.failed"
    computing.reconcile()
    assert computing.slices() == set()
    said = {each.id: each for each in computing.api.last().slices}[A]
    why = f"the executor of slice {A} does not run: there is no such library"
    assert said.error == f"a VM did not start: executor.failed: {why}"


def test_one_that_is_killed_is_started_again_and_counted(computing: Host) -> None:
    computing.start(A)
    computing.kernel.open(str(A))
    kill(computing)
    computing.reconcile()
    until(lambda: alive(computing.kernel.root, A))
    until(lambda: (computing.reconcile(), executor(computing).state)[1] == ExecutorState.RUNNING)
    assert (executor(computing).restarts, executor(computing).reason) == (1, "it was killed by SIGKILL")
    assert {each.id: each for each in computing.api.last().slices}[A].error == ""


def test_one_that_ends_again_and_again_is_started_less_and_less_often(computing: Host) -> None:
    computing.start(A)
    computing.kernel.open(str(A))
    behave(computing.kernel.root, "no")
    kill(computing)
    starts, began_s = [], computing.clock.stamp.boottime_s
    for _ in range(120):
        before = executor_starts(computing)
        computing.reconcile()
        if executor_starts(computing) > before:
            starts.append(computing.clock.stamp.boottime_s - began_s)
            until(lambda: executor_failed(computing))
            computing.reconcile()
        assert computing.agent._executions.look_again_s(computing.agent._executors) > 0
        computing.clock.go(1)
    assert starts == [0, 1, 3, 7, 15, 31, 63]
    assert (executor(computing).state, executor(computing).reason) == (ExecutorState.FAILED, "no")
    assert {each.id: each for each in computing.api.last().slices}[A].error == "its executor does not run: no"
    behave(computing.kernel.root)
    computing.clock.go(60)
    computing.reconcile()
    until(lambda: (computing.reconcile(), executor(computing).state)[1] == ExecutorState.RUNNING)


def executor_starts(host: Host) -> int:
    return host.agent._executions._restarts.get(A, 0)


def executor_failed(host: Host) -> bool:
    return [each["state"] for each in host.helper.call("observe")["executors"]] == ["failed"]


def test_after_a_restart_the_agent_finds_the_executors_that_run(computing: Host) -> None:
    computing.start(A)
    computing.kernel.open(str(A))
    before = alive(computing.kernel.root, A)
    computing.restart()
    computing.reconcile()
    assert alive(computing.kernel.root, A) == before
    assert executor(computing) == ReportedExecutor(state=ExecutorState.RUNNING, memory_bytes=4096)


def test_an_executor_whose_slice_went_by_itself_is_ended(computing: Host, executors: Processes) -> None:
    computing.start(A)
    computing.kernel.do_write(f"sys/bus/mdev/devices/{A}/remove", "1")
    (computing.directory / "records" / f"{A}.json").unlink()
    computing.reconcile()
    assert (alive(computing.kernel.root, A), executors.all()) == ([], [])


def test_the_agent_looks_at_once_when_an_executor_ends(computing: Host) -> None:
    computing.start(A)
    computing.kernel.open(str(A))
    computing.reconcile()
    told, stop = threading.Event(), threading.Event()
    ends = Ends(told.set)
    threading.Thread(target=ends.watch, args=(stop,), daemon=True).start()
    ends.follow([found.pid for found in computing.agent._backend.observe().executors.values()])
    assert not told.is_set()
    kill(computing)
    assert told.wait(WITHIN_S)
    stop.set()


def test_a_process_that_ended_before_it_was_followed_is_told_of_or_left_out() -> None:
    told, stop = threading.Event(), threading.Event()
    ends = Ends(told.set)
    threading.Thread(target=ends.watch, args=(stop,), daemon=True).start()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    ends.follow([child])
    assert told.wait(WITHIN_S)
    os.waitpid(child, 0)
    ends.follow([])
    ends.follow([child])
    stop.set()


def test_one_that_is_starting_is_looked_at_soon(computing: Host) -> None:
    computing.start(A)
    computing.kernel.open(str(A))
    behave(computing.kernel.root, "hangs")
    kill(computing)
    computing.reconcile()
    assert executor(computing).state == ExecutorState.STARTING
    assert computing.agent._executions.look_again_s(computing.agent._executors) == 1


def test_one_that_hangs_while_starting_has_failed_in_the_end(computing: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    computing.start(A)
    computing.kernel.open(str(A))
    behave(computing.kernel.root, "hangs")
    kill(computing)
    computing.reconcile()
    monkeypatch.setattr(processes, "READY_WITHIN_S", 0)
    computing.reconcile()
    assert (executor(computing).state, executor(computing).reason) == (
        ExecutorState.FAILED, "it was not ready in time"
    )  # fmt: skip


def test_what_programs_have_of_the_accelerators_memory_is_told(computing: Host, tmp_path: Path) -> None:
    shown = tmp_path / "agent.prom"
    computing.agent._config = computing.agent._config.model_copy(update={"metrics_file": shown})
    computing.start(A)
    computing.kernel.open(str(A))
    computing.reconcile()
    assert (executor(computing).memory_used_bytes, executor(computing).memory_bytes) == (0, 4096)
    [pid] = alive(computing.kernel.root, A)
    os.kill(pid, signal.SIGUSR1)
    until(lambda: (computing.reconcile(), executor(computing).memory_used_bytes)[1] == 1234)
    for line in (f'used_bytes{{slice="{A}"}} 1234.0', f'bytes{{slice="{A}"}} 4096.0'):
        assert f"vgpumgr_slice_accelerator_memory_{line}\n" in shown.read_text()


def test_the_pause_before_the_next_start_is_told(computing: Host) -> None:
    computing.start(A)
    computing.kernel.open(str(A))
    behave(computing.kernel.root, "no")
    kill(computing)
    pauses = []
    for _ in range(3):
        computing.clock.go(60)
        computing.reconcile()
        until(lambda: executor_failed(computing))
        computing.reconcile()
        pauses.append(executor(computing).pause_s)
    assert pauses == [1, 2, 4]


def test_metrics_say_whether_an_executor_runs_and_how_often_it_was_started_again(
    computing: Host, tmp_path: Path
) -> None:
    shown = tmp_path / "agent.prom"
    computing.agent._config = computing.agent._config.model_copy(update={"metrics_file": shown})
    computing.reconcile()
    assert "vgpumgr_slice_executor_up{" not in shown.read_text()
    computing.start(A)
    computing.kernel.open(str(A))
    behave(computing.kernel.root, "no")
    kill(computing)
    computing.reconcile()
    until(lambda: executor_failed(computing))
    computing.reconcile()
    for line in (f'executor_up{{slice="{A}"}} 0.0', f'executor_restarts_total{{slice="{A}"}} 1.0'):
        assert f"vgpumgr_slice_{line}\n" in shown.read_text()
    behave(computing.kernel.root)
    computing.clock.go(1)
    computing.reconcile()
    until(lambda: (computing.reconcile(), executor(computing).state)[1] == ExecutorState.RUNNING)
    assert f'vgpumgr_slice_executor_up{{slice="{A}"}} 1.0\n' in shown.read_text()


def test_a_device_that_was_there_is_left_without_an_executor_that_hangs(
    helper: HelperClient, lending: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper.call("prepare", **SLICE)
    monkeypatch.setattr(execution, "READY_S", 0.3)
    behave(lending.root, "hangs")
    assert refusal(helper, "prepare", **{**SLICE, "tenant": "green"}) == "executor.failed"
    assert (set(lending.slices), alive(lending.root, UUID)) == ({UUID}, [])


def test_a_host_that_cannot_be_looked_at_is_not_looked_at_without_pause(computing: Host) -> None:
    computing.start(A)
    computing.kernel.open(str(A))
    behave(computing.kernel.root, "no")
    kill(computing)
    computing.reconcile()
    until(lambda: executor_failed(computing))
    computing.reconcile()
    computing.kernel.unload()
    computing.clock.go(99)
    computing.reconcile()
    assert computing.agent._executions.look_again_s(computing.agent._executors) == float("inf")


def test_a_slice_that_was_made_meanwhile_keeps_its_executor(computing: Host) -> None:
    computing.start(A)
    outcome = computing.agent._actions.run([HaltExecutor(A), StartExecutor(B)])
    assert (outcome.done, outcome.refusals, outcome.slices) == (0, [], {})
    assert len(alive(computing.kernel.root, A)) == 1


# ---- when one is started again


RUNS = ObservedExecutor(state="running", pid=7)
ENDED = ObservedExecutor(state="failed", reason="why")


def lent(*slices: ObservedSlice, **changes: Any) -> Observed:
    return observed(*slices, gpus={GPU: replace(gpu(), engine="lease")}, **changes)


@pytest.mark.parametrize(
    ("there", "found"),
    [
        (lent(seen(A, open=True)), {A: ""}),
        (lent(seen(A, open=True), executors={A: ENDED}), {A: "why"}),
        (lent(seen(A, open=True), executors={A: RUNS}), {}),
        (lent(seen(A, open=True), executors={A: ObservedExecutor(state="starting")}), {}),
        (lent(seen(A, permit_s=9)), {A: ""}),
        (lent(seen(A)), {}),  # it goes
        (lent(seen(A, open=True), removing=frozenset({A})), {}),
        (lent(seen(A, open=True, recorded=False)), {}),
        (observed(seen(A, open=True)), {}),
    ],
)
def test_what_stays_and_is_ours_gets_its_executor_back(there: Observed, found: dict[UUID_, str]) -> None:
    wanted = Wanted(slices=(claim(A, vm=VM),))
    assert lacking(wanted, there) == found
    everything = frozenset({A, B})
    started = [action for action in plan(wanted, there, executed=everything) if isinstance(action, StartExecutor)]
    assert started == [StartExecutor(uuid) for uuid in found]


def test_one_that_lived_long_is_started_at_once_and_what_is_gone_is_forgotten() -> None:
    now_s = 0.0
    executions = Executions(lambda: now_s)
    assert executions.due({A: "one", B: ""}) == {A, B}
    executions.restarted(A)
    now_s = 1
    assert executions.due({A: "two"}) == {A}
    now_s = 2
    assert executions.due({A: ""}) == frozenset()
    now_s = 400
    assert executions.due({A: ""}) == {A}
    now_s = 401
    assert executions.due({A: ""}) == {A}  # the pauses began anew
    there = lent(seen(A, open=True), seen(B, open=True), executors={B: RUNS})
    assert executions.standings(there) == {
        A: Standing(state="failed", restarts=1, reason="two", pause_s=2), B: Standing(state="running"),
    }  # fmt: skip
    executions.keep_only({B})
    assert executions.standings(there)[A] == Standing(state="failed")
    assert executions.due({A: ""}) == {A}


def test_processes_are_followed_again_and_let_go() -> None:
    told, stop = threading.Event(), threading.Event()
    ends = Ends(told.set)
    threading.Thread(target=ends.watch, args=(stop,), daemon=True).start()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    for _ in range(2):  # whoever looked may have been faster than its parent
        ends.follow([child])
        assert told.wait(WITHIN_S)
        told.clear()
    os.waitpid(child, 0)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    ends.follow([])
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before - 1
    stop.set()
