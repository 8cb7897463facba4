# SPDX-License-Identifier: Apache-2.0
"""Executors that the agent keeps for VMs on a host without systemd: watched, restarted, and ended with the slice."""

import os
import signal
import threading
from pathlib import Path

import pytest
from vgpumgr_agent.executions import Ends
from vgpumgr_agent.helper import execution, processes
from vgpumgr_agent.helper.client import HelperClient
from vgpumgr_agent.helper.processes import Processes
from vgpumgr_agent.reconcile import HaltExecutor, StartExecutor
from vgpumgr_agent.refused import Refused

from tests.agent import fakeexecutor
from tests.agent.executors import WITHIN_S, executor, kill, until
from tests.agent.fakeexecutor import alive, behave
from tests.agent.fakekernel import FakeKernel
from tests.agent.helper_requests import SLICE, UUID, refusal
from tests.agent.host import A, B, Host
from vgpumgr.wire.common import ExecutorState
from vgpumgr.wire.fleet import ReportedExecutor


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
    with pytest.raises(Refused, match="there is no such library") as refused:
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
