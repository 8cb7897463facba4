# SPDX-License-Identifier: Apache-2.0
"""The log of runs and its report, and whom the load beside them may stall."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.steady.load import descendants, load
from tests.steady.record import append, of_outcomes, read, report

OUTCOMES = [
    {"lane": "unit", "result": "passed", "seconds": 3.0, "unsteady": [], "failed_tests": []},
    {
        "lane": "time",
        "result": "failed (1)",
        "seconds": 7.5,
        "unsteady": ["QEMU died"],
        "failed_tests": ["tests/a.py::b[one two]", "tests/a.py::c"],
    },
]


def test_what_a_run_left_is_kept_and_summed_up(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    assert report(read(log)) == "no runs yet"
    for seed in ("", "7"):
        append(of_outcomes(OUTCOMES, date="2026-11-28 05:00", commit="1234567", load_seed=seed), log)
    assert report(read(log)).splitlines() == [
        "unit: 2 of 2 passed, 1 beside load, 0 unsteady",
        "time: 0 of 2 passed, 1 beside load, 2 unsteady",
        "  2 of 2: tests/a.py::b[one two]",
        "  2 of 2: tests/a.py::c",
    ]


def test_only_processes_below_the_runner_are_stalled_and_all_of_them_go_on() -> None:
    script = "import subprocess, sys; subprocess.run(['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", script], start_new_session=True) as runner:
        try:
            until = time.monotonic() + 60
            while not (found := descendants(runner.pid)):
                assert time.monotonic() < until
            assert os.getpid() not in found
            with load(runner.pid, seed=1):
                while state(found[0]) != "T":
                    assert time.monotonic() < until
            assert state(found[0]) != "T"
            assert state(runner.pid) != "T"
        finally:
            os.killpg(runner.pid, 9)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
