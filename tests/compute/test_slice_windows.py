# SPDX-License-Identifier: Apache-2.0
"""vgpu-executor between module and supervisor: each message about a window, and the resulting messages."""

import subprocess
from pathlib import Path

import pytest

from tests.compute.executor_rig import COMPUTE, ROOT, build

ENDED = "the program has ended and its child was removed"


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    executor = COMPUTE / "executor"
    return build(
        tmp_path_factory.mktemp("slice") / "windows",
        ROOT / "tests" / "compute" / "c" / "slice_windows.c",
        executor / "slice" / "windows.c",
        executor / "header.c",
        executor / "rate.c",
    )


def play(player: Path, *lines: str, kept: int = 0) -> list[str]:
    """Return the messages that the player prints. `kept`: windows with a child at the end, each with a descriptor."""
    played = subprocess.run([player], input="\n".join(lines), capture_output=True, text=True, check=True)
    told = played.stdout.splitlines()
    assert told.pop() == f"{kept} descriptors"
    return told


def test_a_window_has_a_child_until_the_guest_closes_it(player: Path) -> None:
    told = play(player, "opened 1", "started 101", "closed 1", "exited 1", "opened 1", "started 102", kept=1)
    assert told == ["start 1 sequence 101", f"kill 1: {ENDED}", "closed 1", "start 2 sequence 102"]


def test_the_module_hears_of_a_closed_window_only_when_nothing_is_left_of_its_child(player: Path) -> None:
    assert play(player, "opened 0", "closed 0", "started 101", kept=1) == ["start 1 sequence 101", f"kill 1: {ENDED}"]


def test_a_child_that_ends_by_itself_is_a_lost_window_and_then_a_closed_one(player: Path) -> None:
    told = play(player, "opened 2", "started 101", "exited 1", "closed 2")
    # The supervisor has already written the reason into the window.
    assert told == ["start 1 sequence 101", "lost 2", "closed 2"]


def test_a_window_that_closes_without_a_child_is_free_at_once(player: Path) -> None:
    assert play(player, "closed 1") == ["closed 1"]


def test_a_child_that_does_not_start_is_told_in_the_window(player: Path) -> None:
    told = play(player, "opened 0", "failed 101", "closed 0")
    assert told == ["start 1 sequence 101", "lost 0: the child did not start: no namespace", "closed 0"]


def test_a_child_that_does_not_start_in_a_window_that_closes_is_none(player: Path) -> None:
    told = play(player, "opened 0", "closed 0", "failed 101", "exited 1")
    assert told == ["start 1 sequence 101", f"kill 1: {ENDED}", "closed 0"]


def test_a_window_in_which_something_is_gets_no_child(player: Path) -> None:
    told = play(player, "used 0", "opened 0", "closed 0")
    assert told == ["lost 0: its window cannot be used: its header is not empty", "closed 0"]


def test_a_window_that_was_closed_meanwhile_is_left_alone(player: Path) -> None:
    assert play(player, "missing 0", "opened 0", "closed 0") == ["closed 0"]


def test_a_supervisor_that_takes_no_child_is_told_in_the_window(player: Path) -> None:
    assert play(player, "deaf", "opened 0") == ["lost 0: the host's supervisor did not accept the child"]


def test_a_window_that_is_opened_twice_is_an_error_in_the_log_alone(player: Path) -> None:
    told = play(player, "opened 0", "opened 0", kept=1)
    assert told == ["start 1 sequence 101", "window=0 event=module.senseless it was opened twice"]


def test_new_processes_come_at_a_bounded_rate(player: Path) -> None:
    life = ["opened 0", "closed 0"]
    # The burst is twice the number of windows.
    lines = [line for number in range(1, 7) for line in (*life, f"exited {number}")]
    told = play(player, *lines, *life, "at 1099999999", *life, "at 1100000000", "opened 0", kept=1)
    refused = "lost 0: too many programs have started recently; retry in 1 s"
    assert told[-5:] == [refused, "closed 0", refused, "closed 0", "start 7 sequence 107"]


def test_a_dead_supervisor_loses_the_windows_and_leaves_those_that_close(player: Path) -> None:
    told = play(player, "opened 0", "started 101", "opened 1", "opened 2", "closed 2", "died", kept=1)
    assert told[-2:] == ["lost 0: its supervisor died", "lost 1: its supervisor died"]


def test_at_the_end_each_child_is_killed_once(player: Path) -> None:
    told = play(player, "opened 0", "started 101", "opened 1", "closed 1", "kill", kept=2)
    assert told[-2:] == [f"kill 2: {ENDED}", "kill 1: the end"]


def test_the_supervisor_must_answer_and_must_end_what_it_is_to_kill(player: Path) -> None:
    told = play(
        player,
        "patience",
        "opened 0",
        "patience",
        "started 101",
        "patience",
        "closed 0",
        "patience",
        "exited 1",
        "patience",
    )
    never = f"patience {-1 - 10**9}"
    waits = "patience 5000000000"
    assert [line for line in told if line.startswith("patience")] == [never, waits, never, waits, never]


def test_what_the_module_does_not_take_it_is_told_again_ever_later(player: Path) -> None:
    told = play(player, "opened 1", "started 101", "closed 1", "held 3", "exited 1", "retry", "at 1001000000", "retry",
                "at 1003000000", "retry", "at 1007000000", "retry", "opened 1", kept=1)  # fmt: skip
    tries = ["held", "due in 1000 us", "held", "due in 2000 us", "held", "due in 4000 us"]
    assert told[2:] == [*tries, "closed 1", "nothing is due", "start 2 sequence 102"]


def test_a_lost_window_that_closes_while_its_memory_is_held_is_told_as_closed(player: Path) -> None:
    told = play(player, "opened 1", "started 101", "held 2", "exited 1", "closed 1", "died", "kill", "at 2000000000",
                "retry")  # fmt: skip
    assert told[1:] == ["held", "held", "closed 1", "nothing is due"]


def test_a_refused_window_is_told_again_as_well(player: Path) -> None:
    told = play(player, "deaf", "held 1", "opened 1", "at 2000000000", "retry")
    assert told[0] == "held"
    assert told[1].startswith("lost 1")
    assert told[2] == "nothing is due"
