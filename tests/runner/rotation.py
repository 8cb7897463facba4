# SPDX-License-Identifier: Apache-2.0
"""Runs commands of long lanes, one at a time, until a time budget is spent.

A failed command is run once more. It fails the rotation only if it fails again. If it then passes, it is `unsteady`,
like a command that the lab repeated. A command that still runs when the budget is spent is ended, which is not a
failure.
"""

import contextlib
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.runner import lane_log
from tests.runner.output import Output
from tests.runner.processes import GRACE_S, Processes
from tests.runner.rotation_order import Step

MARGIN_S = 5
"""Reserved for the work after the last command has ended."""

SHORTEST_S = 30
"""No command starts with less time than this."""

# Results of a single run and of a command.
PASSED, UNSTEADY, NOT_FINISHED, STOPPED = "passed", "unsteady", "not finished", "stopped"
# The first is a result of a single run, the others are results of a command.
FAILED, FAILED_ONCE, FAILED_TWICE = "failed", "failed once", "failed twice"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The result of one command. `remarks`: what to look at, for each time that it failed or was repeated."""

    step: str
    result: str
    seconds: float
    remarks: tuple[str, ...] = ()


class Rotation:
    """Runs steps with their logs in `logs`, within `budget_s` from now on. `clock` returns seconds."""

    def __init__(
        self, processes: Processes, logs: Path, budget_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._processes = processes
        self._logs = logs
        self._output_lock = threading.Lock()
        # A command that does not react to the signal takes the whole grace period.
        self._end = clock() + budget_s - GRACE_S - MARGIN_S

    def run(self, steps: Sequence[Step], told_to_end: Callable[[], bool]) -> list[Turn]:
        """Returns results in running order. A command that does not fit into the remaining time is skipped."""
        over = threading.Event()
        watch = threading.Thread(target=self._stop_when, args=(told_to_end, over))
        watch.start()
        try:
            return [self._turn(step) for step in steps if not self._processes.stopped and self._fits(step)]
        finally:
            over.set()
            watch.join()

    def _stop_when(self, told_to_end: Callable[[], bool], over: threading.Event) -> None:
        while not over.wait(0.2):
            if told_to_end():
                self._processes.stop()
                return

    def _left_s(self) -> float:
        return self._end - self._clock()

    def _fits(self, step: Step) -> bool:
        left_s = self._left_s()
        return left_s >= SHORTEST_S and step.fits(left_s)

    def _turn(self, step: Step) -> Turn:
        started = time.monotonic()
        result, remarks = self._run(step, 1)
        if result == FAILED:
            result = FAILED_ONCE
            if self._fits(step):
                again, more = self._run(step, 2)
                remarks += more
                result = {PASSED: UNSTEADY, UNSTEADY: UNSTEADY, FAILED: FAILED_TWICE}.get(again, FAILED_ONCE)
        return Turn(step=step.name, result=result, seconds=time.monotonic() - started, remarks=remarks)

    def _run(self, step: Step, time_of: int) -> tuple[str, tuple[str, ...]]:
        """Returns the result of one run, and what to look at."""
        log = self._logs / f"rotation-{step.lane}-{step.number}{'-again' if time_of > 1 else ''}.log"
        with contextlib.closing(Output(log, self._output_lock, label=f"rotation {step.name}")) as output:
            left_s = self._left_s()
            output.say(f"$ {shlex.join(step.command)}")
            result = FAILED
            try:
                if self._processes.run(step.command, output, min(left_s, step.limit_s)) == 0:
                    result = PASSED
            except subprocess.TimeoutExpired:
                result = NOT_FINISHED if left_s <= step.limit_s else FAILED
            except OSError as error:
                output.say(f"{step.command[0]}: {error.strerror}")
            if self._processes.stopped:
                result = STOPPED
            output.say(f"---- {result}")
            text = output.read()
        unsteady = lane_log.unsteady(text)
        if result == PASSED and unsteady:
            result = UNSTEADY
        remarks = lane_log.remarks(text) if result == FAILED else ()
        return result, (*(f"unsteady: {reason}" for reason in unsteady), *remarks)


def failed(turns: Sequence[Turn]) -> list[Turn]:
    """Returns the commands that failed twice."""
    return [turn for turn in turns if turn.result == FAILED_TWICE]


def summary(turns: Sequence[Turn], steps: Sequence[Step]) -> str:
    """Returns a separate table without pytest's counts, because those at the end of the output belong to `make
    test`.
    """
    name = max((len(turn.step) for turn in turns), default=0)
    result = max((len(turn.result) for turn in turns), default=0)
    lines = ["", "rotation of the long lanes: command, result, seconds"]
    lines += [f"{turn.step:{name}}  {turn.result:{result}}  {turn.seconds:7.1f}" for turn in turns]
    lines.append(f"not started: {len(steps) - len(turns)} of {len(steps)}; logs: build/logs/rotation-LANE-NUMBER.log")
    lines += [f"{turn.step}: {remark}" for turn in turns for remark in turn.remarks]
    names = ", ".join(turn.step for turn in failed(turns))
    lines.append(f"rotation: failed twice: {names}" if names else "rotation: no command failed twice")
    return "\n".join(lines)
