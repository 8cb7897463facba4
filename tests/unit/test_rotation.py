# SPDX-License-Identifier: Apache-2.0
"""Which commands of long lanes CI runs in the time that `make test` leaves, and what happens to failing ones."""

import signal
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.lanes import LANES, Lane
from tests.runner import rotation
from tests.runner.processes import Processes
from tests.runner.rotation import Rotation, Turn, failed, summary
from tests.runner.rotation_order import Step, order
from tests.unit.test_run import runner, wait_until

DAY = date(2026, 11, 28)


def lane(name: str, *commands: str, **options: object) -> Lane:
    words = tuple(("sh", "-c", command) for command in commands)
    return Lane(**{"name": name, "commands": words, "limit_s": 300, "long": True, **options})  # type: ignore[arg-type]


def names(steps: tuple[Step, ...]) -> list[str]:
    return [step.name for step in steps]


def test_each_day_begins_with_the_command_after_yesterdays_and_has_them_all() -> None:
    lanes = [lane("a", "1", "2"), lane("short", "x", long=False), lane("b", "1"), lane("c", "1", rotates=False)]
    days = [names(order(lanes, DAY + timedelta(days=n))) for n in range(4)]
    first = days[0]
    assert sorted(first) == ["a 1", "a 2", "b 1"]
    assert days[1:] == [[*first[1:], first[0]], [*first[2:], *first[:2]], first]
    assert order([], DAY) == ()


def test_what_rotates_are_the_commands_of_all_long_lanes_but_two() -> None:
    steps = order(LANES, DAY)
    chosen = {step.lane for step in steps}
    assert {lane.name for lane in LANES if lane.long} - chosen == {"gpu", "bench-api-long"}
    assert len(steps) == sum(len(lane.commands) for lane in LANES if lane.name in chosen)


def test_the_command_line_lists_the_order_of_a_day(tmp_path: Path) -> None:
    described = {"name": "a", "limit_s": 9, "long": True, "commands": ["1", "2", "3"]}
    lists = ("--rotation", "--list", "--date")
    orders = []
    for day in ("2026-11-28", "2026-11-29"):
        with runner(tmp_path, described, words=(*lists, day)) as process:
            orders.append(process.communicate(timeout=60)[0].splitlines())
    assert sorted(orders[0]) == ["a 1", "a 2", "a 3"]
    assert orders[1] == [*orders[0][1:], orders[0][0]]


@pytest.fixture
def rotate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Turn]]:
    """Runs the commands of one lane with these options, without time reserved for ending them."""
    for name in ("GRACE_S", "MARGIN_S", "SHORTEST_S"):
        monkeypatch.setattr(rotation, name, 0)

    def run(
        *commands: str, budget_s: float = 60, clock: Callable[[], float] = time.monotonic, **options: object
    ) -> list[Turn]:
        # start with the first command
        steps = sorted(order([lane("a", *commands, **options)], DAY), key=lambda step: step.number)
        return Rotation(Processes(tmp_path), tmp_path / "logs", budget_s, clock=clock).run(steps, lambda: False)

    return run


def results(turns: list[Turn]) -> list[tuple[str, str]]:
    return [(turn.step, turn.result) for turn in turns]


def test_a_command_that_fails_runs_once_more_and_fails_the_rotation_only_if_it_fails_again(
    rotate: Callable[..., list[Turn]], tmp_path: Path
) -> None:
    fails_once = "echo FAILED a.py::test_x; mkdir once && exit 3 || true"
    turns = rotate("echo >>passes", fails_once, "echo >>fails; echo FAILED a.py::test_y; exit 1", "absent-command")
    assert results(turns) == [
        ("a 1", "passed"),
        ("a 2", "unsteady"),
        ("a 3", "failed twice"),
        ("a 4", "failed twice"),
    ]
    assert turns[1].remarks == ("FAILED a.py::test_x",)
    assert turns[2].remarks == ("FAILED a.py::test_y",) * 2
    assert ((tmp_path / "passes").read_text(), (tmp_path / "fails").read_text()) == ("\n", "\n\n")
    assert [turn.step for turn in failed(turns)] == ["a 3", "a 4"]


def test_a_command_that_the_lab_ran_once_more_is_unsteady(rotate: Callable[..., list[Turn]]) -> None:
    said = "lab: [  3.1 s] unsteady: QEMU was killed by SIGSEGV; the command is run once more in a fresh lab host"
    (turn,) = rotate(f"echo '{said}'")
    assert (turn.result, turn.remarks) == ("unsteady", ("unsteady: QEMU was killed by SIGSEGV",))


def test_a_command_that_the_budgets_end_cuts_off_has_not_failed_and_none_follows(
    rotate: Callable[..., list[Turn]], tmp_path: Path
) -> None:
    turns = rotate("sleep 80", "touch later", budget_s=3)
    assert results(turns) == [("a 1", "not finished")]
    assert not failed(turns)
    assert not (tmp_path / "later").exists()


def test_a_command_that_has_no_time_to_run_again_has_failed_once(
    rotate: Callable[..., list[Turn]], tmp_path: Path
) -> None:
    clock = tmp_path / "clock"
    clock.write_text("0")
    turns = rotate(f"echo 55 >{clock}; exit 3", usual_s=(10,), clock=lambda: float(clock.read_text()))
    assert results(turns) == [("a 1", "failed once")]
    assert not failed(turns)


def test_a_command_has_failed_at_its_lanes_limit(rotate: Callable[..., list[Turn]]) -> None:
    assert results(rotate("sleep 80", limit_s=0.5)) == [("a 1", "failed twice")]


def test_a_command_that_usually_takes_longer_than_is_left_is_not_started(rotate: Callable[..., list[Turn]]) -> None:
    turns = rotate("true", "true", "true", usual_s=(61, 10, None))
    assert results(turns) == [("a 2", "passed"), ("a 3", "passed")]


def test_the_table_ends_with_a_line_that_pytest_does_not_write() -> None:
    steps = order([lane("a", "1", "2", "3")], DAY)
    twice = Turn(step="a 1", result="failed twice", seconds=3, remarks=("FAILED a.py::test_x",) * 2)
    passed = Turn(step="a 2", result="passed", seconds=61.5)
    lines = summary([twice, passed], steps).splitlines()
    assert lines[2:] == [
        "a 1  failed twice      3.0",
        "a 2  passed           61.5",
        "not started: 1 of 3; logs: build/logs/rotation-LANE-NUMBER.log",
        "a 1: FAILED a.py::test_x",
        "a 1: FAILED a.py::test_x",
        "rotation: failed twice: a 1",
    ]
    assert summary([passed], steps).endswith("\nrotation: no command failed twice")
    assert summary([], steps).endswith("\nrotation: no command failed twice")


@pytest.mark.parametrize(("command", "status"), [("true", 0), ("exit 1", 1)])
def test_the_exit_status_says_whether_a_command_failed_twice(tmp_path: Path, command: str, status: int) -> None:
    described = {"name": "a", "limit_s": 90, "long": True, "commands": f"echo 1 passed in 3.0s; {command}"}
    with runner(tmp_path, described, words=("--rotation", "--budget-s", "90")) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert "rotation a 1 | 1 passed in 3.0s\n" in output
    assert "\n1 passed" not in output, "what the rotation ran must not look like the end of `make test`"


def test_a_rotation_that_is_told_to_end_lets_its_command_clean_up(tmp_path: Path) -> None:
    cleans = "trap 'echo cleaned; exit 1' TERM; echo begun; while :; do sleep 0.05; done"
    described = {"name": "a", "limit_s": 90, "long": True, "commands": cleans}
    log = tmp_path / "build" / "logs" / "rotation-a-1.log"
    with runner(tmp_path, described, words=("--rotation", "--budget-s", "90")) as process:
        wait_until(lambda: log.exists() and "begun" in log.read_text().splitlines())
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "rotation a 1 | cleaned\n" in output
    assert "\na 1  stopped " in output
