# SPDX-License-Identifier: Apache-2.0
"""The cost of a fence for a native program, compared with the same program without one, on the fake of NVIDIA's driver.

The fake answers from another process, in the time that a real driver needs for a slow call. So the cost that a fence
adds to a call is also given in microseconds. A call that the fence answers alone shows its cost without any driver.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.sched.result import digest, target
from tests.compute.driver_rig import Gpu, run_gpu
from tests.compute.fence_rig import PROGRAM, C, make_hostile, make_keeper, run_fenced
from tests.compute.native_rig import NativeProgram

TURNS, QUESTIONS = 7, 2000
OTHER_RATIO, PROCESSOR_US = 2.0, 30.0
# the number of refused calls in c/fence_hostile.c
REFUSED = 20000


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Measure calls and starts, with and without a fence in turns; medians over turns."""
    turns, questions = (1, 50) if quick else (TURNS, QUESTIONS)
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, run_gpu() as gpu:
        keeper, hostile = make_keeper(Path(folder)), make_hostile(Path(folder))

        def note(name: str, value: float) -> None:
            took.setdefault(name, []).append(value)

        for _ in range(turns):
            note("question, fenced", ask(lambda: run_fenced(keeper, gpu), questions))
            note("question, direct", ask(lambda: run_direct(gpu), questions))
            command = (str(hostile), "costs", str(gpu.fake.directory / "socket"))
            with run_fenced(keeper, gpu, *command) as running:
                costs(running.process, "fenced", note)
                note("processor", processor_s(running.fence_pid) / REFUSED * 1e6)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                costs(process, "direct", note)
            began_s = time.perf_counter()
            with run_fenced(keeper, gpu, str(hostile), "privileges") as running:
                assert running.process.stdout
                running.process.stdout.readline()
                note("start, fenced", (time.perf_counter() - began_s) * 1e6)
            began_s = time.perf_counter()
            subprocess.run(["env", "-u", "LD_PRELOAD", hostile, "privileges"], capture_output=True, check=True)
            note("start, direct", (time.perf_counter() - began_s) * 1e6)
    return result({name: statistics.median(values) for name, values in took.items()})


@contextmanager
def run_direct(gpu: Gpu) -> Any:
    """Run the program that takes commands, with the fake's driver and without a fence."""
    command = (sys.executable, "-S", str(PROGRAM), str(gpu.fake.directory / "socket"), gpu.version)
    environment = os.environ | gpu.environment
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, env=environment, text=True, **pipes)  # type: ignore[call-overload]
    with NativeProgram(process).wait_until_ready() as program:
        yield program


def ask(run: Callable[[], Any], questions: int) -> float:
    """Return the time of a question to the driver, in microseconds."""
    with run() as running:
        program = getattr(running, "program", running)
        assert program.do("begin") == "ok None"
        return float(program.do(f"ask_often {questions}").split()[1])


def costs(process: subprocess.Popen[str], way: str, note: Callable[[str, float], None]) -> None:
    """Return the time of calls that no driver answers, in microseconds."""
    assert process.stdout
    for _ in range(2):
        name, value = process.stdout.readline().split()
        note(f"{name}, {way}", int(value) / 1000)


def processor_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def result(took: dict[str, float]) -> dict[str, Any]:
    """Return the result in the form of tests/bench/sched/result.py."""
    rows = {
        "a question that the driver answers": "question",
        "a call that is none of a driver's": "other",
        "a call that the fence answers alone": "refused",
        "a start, to the first line": "start",
    }
    table = {}
    for row, name in rows.items():
        fenced, direct = took[f"{name}, fenced"], took[f"{name}, direct"]
        table[row] = {"fenced": round(fenced, 2), "direct": round(direct, 2), "ratio": round(fenced / direct, 2)}
    other, processor = table["a call that is none of a driver's"]["ratio"], took["processor"]
    return {
        "name": "A native program with its fence",
        "command": "make bench-compute",
        "model": "the fake of NVIDIA's driver, a process in Python",
        "seeds": [],
        "baselines": ["the same program without a fence"],
        "hashes": {path.name: digest(path.read_text()) for path in (PROGRAM, C / "fence_hostile.c")},
        "figures": {
            "us": table,
            "the fence's processor time": {"a call that it answers alone, us": round(processor, 2)},
        },
        "targets": [
            target(
                "a call that is none of a driver's, of direct", f"<= {OTHER_RATIO}", other, met=other <= OTHER_RATIO
            ),
            target("processor time of a call, us", f"<= {PROCESSOR_US}", processor, met=processor <= PROCESSOR_US),
        ],
        "losing": [
            "programs that make many short calls to the driver pay for two changes of process in each",
            "a call takes longer on a machine whose processors are busy, because the fence waits for one",
        ],
    }
