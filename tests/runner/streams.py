# SPDX-License-Identifier: Apache-2.0
"""Runs lanes in three parallel streams: lanes that keep two processors busy, lanes that mostly wait, and all others.

A stream without lanes of its own takes lanes of the others, so that no processor is idle. Only one lane that keeps two
processors busy runs at a time, and never in the stream for waiting lanes.
"""

import contextlib
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from tests.lanes import Lane
from tests.runner import lane_log
from tests.runner.output import Output
from tests.runner.processes import Processes


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A command that ran, and its duration. `number`: its number in the lane, from 1."""

    lane: str
    number: int
    command: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one lane; skipped if none of its tests could run. `closing`: pytest's counts of tests.

    `remarks`: what to look at after a failure. `unsteady`: the reason for each command that the lab repeated.
    """

    lane: str
    result: str
    seconds: float = 0
    closing: str = ""
    remarks: tuple[str, ...] = ()
    unsteady: tuple[str, ...] = ()
    slow_tests: tuple[lane_log.Slow, ...] = ()
    commands: tuple[Ran, ...] = ()

    @property
    def failed(self) -> bool:
        return self.result not in ("passed", "skipped")


STREAMS = ("heavy", "light", "waits")


def stream_of(lane: Lane) -> str:
    """Returns the preferred stream of a lane."""
    return "heavy" if lane.heavy else "waits" if lane.waits else "light"


class Waiting:
    """The lanes that no stream has taken; safe to use from several threads."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lock = threading.Lock()
        self._lanes = list(lanes)
        self._heavy_one_runs = False

    def take(self, stream: str) -> Lane | None:
        """Return the first lane of the stream, or another lane that it may run now; None if there is none."""
        with self._lock:
            ready = [lane for lane in self._lanes if not (lane.heavy and self._heavy_one_runs)]
            own = [lane for lane in ready if stream_of(lane) == stream]
            others = [lane for lane in ready if stream != "waits" or not lane.heavy]
            lane = next(iter(own + others), None)
            if lane is None:
                return None
            self._lanes.remove(lane)
            self._heavy_one_runs = self._heavy_one_runs or lane.heavy
            return lane

    def done(self, lane: Lane) -> None:
        """Records that a taken lane has ended."""
        if lane.heavy:
            with self._lock:
                self._heavy_one_runs = False


class Streams:
    """Runs lanes with their logs in `logs`, with a thread for each stream."""

    def __init__(self, processes: Processes, logs: Path) -> None:
        self._processes = processes
        self._logs = logs
        self._output_lock = threading.Lock()

    def run(self, lanes: Sequence[Lane], told_to_end: Callable[[], bool]) -> list[Outcome]:
        """Returns the outcomes in the order in which lanes ended; lanes that did not run come last. `told_to_end` is
        called every second.
        """
        outcomes: list[Outcome] = []
        waiting = Waiting(lanes)
        with ThreadPoolExecutor(max_workers=len(STREAMS)) as pool:
            running = [pool.submit(self._run_stream, waiting, name, outcomes, len(lanes) > 1) for name in STREAMS]
            while True:
                done, not_done = wait(running, timeout=1, return_when=FIRST_EXCEPTION)
                if not not_done or told_to_end() or any(stream.exception() for stream in done):
                    break
            self._processes.stop()
        for stream in running:
            stream.result()
        ran = {outcome.lane for outcome in outcomes}
        return outcomes + [Outcome(lane=lane.name, result="not run") for lane in lanes if lane.name not in ran]

    def _run_stream(self, waiting: "Waiting", stream: str, outcomes: list[Outcome], labelled: bool) -> None:
        while not self._processes.stopped and (lane := waiting.take(stream)):
            output = Output(self._logs / f"{lane.name}.log", self._output_lock, label=lane.name if labelled else "")
            with contextlib.closing(output):
                outcomes.append(self._run_lane(lane, output))
            waiting.done(lane)

    def _run_lane(self, lane: Lane, output: Output) -> Outcome:
        """Runs all commands, also after a failure, until the lane's time is up."""
        started = time.monotonic()
        output.say(f"\n==== {lane.name} (limit {lane.limit_s} s)")
        faults: list[str] = []
        ran: list[Ran] = []
        for number, command in enumerate(lane.commands, 1):
            output.say(f"$ {shlex.join(command)}")
            began = time.monotonic()
            try:
                status = self._processes.run(command, output, started + lane.limit_s - began)
            except subprocess.TimeoutExpired:
                faults.append("time limit")
                output.say(f"{lane.name}: stopped after {lane.limit_s} s")
                break
            except OSError as error:
                faults.append("not started")
                output.say(f"{command[0]}: {error.strerror}")
                continue
            finally:
                ran.append(
                    Ran(lane=lane.name, number=number, command=command, seconds=time.monotonic() - began),
                )
            if self._processes.stopped:
                faults.append("stopped")
                break
            if status != 0:
                faults.append(f"failed ({status})")
        log = output.read()
        closing = lane_log.closing_lines(log)
        nothing_ran = bool(closing) and not any("passed" in line for line in closing)
        outcome = Outcome(
            lane=lane.name,
            result=", ".join(dict.fromkeys(faults)) or ("skipped" if nothing_ran else "passed"),
            seconds=time.monotonic() - started,
            closing="; ".join(closing),
            remarks=lane_log.remarks(log),
            unsteady=lane_log.unsteady(log),
            slow_tests=lane_log.slow_tests(log),
            commands=tuple(ran),
        )
        output.say(f"---- {lane.name}: {outcome.result} after {outcome.seconds:.0f} s")
        return outcome
