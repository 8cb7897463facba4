# SPDX-License-Identifier: Apache-2.0
"""When the agent restarts an executor, and which processes it follows."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID as UUID_

import pytest
from vgpumgr_agent.backends import Observed, ObservedExecutor, ObservedSlice
from vgpumgr_agent.executions import Ends, Executions, Standing
from vgpumgr_agent.reconcile import StartExecutor, Wanted, lacking, plan

from tests.agent.executors import WITHIN_S
from tests.agent.fakeapi import claim
from tests.agent.fakekernel import GPU
from tests.agent.host import VM, A, B
from tests.agent.test_reconcile import gpu, observed, seen

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
        (lent(seen(A)), {}),  # it disappears
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
    assert executions.due({A: ""}) == {A}  # the pauses started again from the shortest
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
    for _ in range(2):  # the observer may have been faster than the parent of the process
        ends.follow([child])
        assert told.wait(WITHIN_S)
        told.clear()
    os.waitpid(child, 0)
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    ends.follow([])
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before - 1
    stop.set()
