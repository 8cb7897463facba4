# SPDX-License-Identifier: Apache-2.0
"""What the runner of lanes reads from a lane's log, and the table that it makes from it."""

import re
from dataclasses import replace

import pytest
from labhost.progress import say

from tests.runner import lane_log
from tests.runner.lane_log import Slow
from tests.runner.streams import Outcome, Ran
from tests.runner.summary import summary


def test_it_names_what_the_kernel_of_a_lab_host_complained_of() -> None:
    complaint = "--- kernel complaint\nBUG: KASAN: use-after-free in vgpu_x\nRead of size 8\nlab: exit status 123\n"
    for log in (f"..\n{complaint}", f"..{complaint}"):
        assert lane_log.remarks(log) == ("--- kernel complaint BUG: KASAN: use-after-free in vgpu_x",)


def test_it_ends_with_the_logs_end_if_nothing_says_why() -> None:
    log = "".join(f"line {number}\n" for number in range(100))
    assert lane_log.remarks(log)[-2:] == ("line 98", "line 99")
    assert len(lane_log.remarks(log)) < 20


def test_what_the_lab_ran_once_more_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    say("unsteady: a processor had a triple fault; the command is run once more in a fresh lab host")
    said = capsys.readouterr().err
    assert lane_log.unsteady(f"..\n{said}..\n{said}") == ("a processor had a triple fault",) * 2
    assert lane_log.unsteady(f"E   {said}") == (), "a test's own output is not the lab's"


PASSED = Outcome(lane="unit", result="passed", seconds=65.2, closing="7 passed in 64.00s")


def test_the_table_counts_unsteady_runs_only_if_there_are_any() -> None:
    steady = summary([PASSED])
    assert "unsteady" not in steady
    lines = summary([PASSED, replace(PASSED, lane="kmod", unsteady=("QEMU was killed by SIGSEGV",))]).splitlines()
    assert lines[1:4] == [
        "lane  result  seconds  unsteady",
        "unit  passed     65.2         0  7 passed in 64.00s",
        "kmod  passed     65.2         1  7 passed in 64.00s",
    ]
    assert "kmod: unsteady: QEMU was killed by SIGSEGV" in lines


def test_the_longest_commands_and_tests_of_all_lanes_come_below_the_table_longest_first() -> None:
    def lane(name: str, *seconds: float) -> Outcome:
        return Outcome(
            lane=name,
            result="passed",
            commands=tuple(
                Ran(lane=name, number=n, command=("run", "x" * 200, f"that {n}"), seconds=s)
                for n, s in enumerate(seconds, 1)
            ),
            slow_tests=tuple(Slow(seconds=s, phase="setup" if s == 40 else "call", test=f"test_{s}") for s in seconds),
        )

    text = summary([lane("a", 10, 30, *range(50, 60)), lane("b", 40, 20, 21, 61)])
    commands, tests = text.split("slowest commands, seconds:\n")[1].split("slowest tests, seconds:\n")
    assert re.findall(r"^ +([\d.]+)  (\w \d+): run .*that \d+'$", commands, re.M) == [
        ("61.0", "b 4"),
        *((f"{seconds}.0", f"a {seconds - 47}") for seconds in range(59, 52, -1)),
    ]
    assert max(len(line) for line in commands.splitlines()) < 140
    assert len(tests.splitlines()) == 10
    assert tests.splitlines()[0] == "   61.0  b: test_61"
    assert "slowest commands" not in summary([lane("a", 20, 3)]), "it takes more than 20 s to be slow"
    assert "   40.0  b: test_40 (setup)" in summary([lane("b", 40, 1)])


def test_the_slowest_are_between_the_table_and_what_failed() -> None:
    failed = replace(
        PASSED,
        result="failed (1)",
        remarks=("FAILED a.py::test_x",),
        slow_tests=(Slow(seconds=3, phase="call", test="a.py::test_x"),),
    )
    assert summary([failed]).splitlines()[-3:] == [
        "slowest tests, seconds:",
        "    3.0  unit: a.py::test_x",
        "unit: FAILED a.py::test_x",
    ]
