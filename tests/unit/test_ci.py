# SPDX-License-Identifier: Apache-2.0
"""A CI run: `make test`, and the rotation of long lanes in the remaining time."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.unit.test_run import wait_until

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "run"
TABLE = "unit  passed  3.0  7 passed in 2.00s\n"
MINUTE = 60

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose `make test` and rotation run the commands of the variables TEST and ROTATION."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci" / "run")
    (tmp_path / "build" / "logs").mkdir(parents=True)
    (tmp_path / "build" / "logs" / "summary.txt").write_text(TABLE)
    (tmp_path / "Makefile").write_text('.PHONY: test\ntest:\n\t@sh -c "$$TEST"\n')
    python = tmp_path / "build" / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "rotation: $*"\nsh -c "$ROTATION"\n')
    python.chmod(0o755)
    return tmp_path


def start(tree: Path, *, test: str = "true", rotation: str = "true", seconds: int = 0) -> "subprocess.Popen[str]":
    """Start a CI run for which these seconds seem to have passed already."""
    # These tests run in `make test`, whose variables would make the inner make print its directory.
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    environ |= {"TEST": test, "ROTATION": rotation, "SECONDS": str(seconds)}
    return subprocess.Popen([tree / ".ci" / "run"], env=environ, stdout=subprocess.PIPE, text=True)


def result(process: "subprocess.Popen[str]") -> tuple[int, str]:
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_the_rotation_gets_the_time_until_minute_75_and_the_table_of_make_test_comes_last(tree: Path) -> None:
    status, output = result(start(tree, test="echo tested", seconds=30 * MINUTE))
    assert status == 0
    first, second, last = output.splitlines(keepends=True)
    assert (first, last) == ("tested\n", TABLE)
    command, _, budget_s = second.rpartition(" ")
    assert command == "rotation: tests/run --rotation --budget-s"
    assert 44 * MINUTE < int(budget_s) <= 45 * MINUTE


def test_without_ten_minutes_left_there_is_no_rotation(tree: Path) -> None:
    assert result(start(tree, test="echo tested", seconds=65 * MINUTE + 1)) == (0, "tested\n")


def test_a_failed_test_is_the_result_at_once(tree: Path) -> None:
    status, output = result(start(tree, test="exit 3"))
    assert status != 0
    assert "rotation" not in output


def test_a_command_that_failed_twice_is_the_result(tree: Path) -> None:
    status, output = result(start(tree, rotation="exit 1"))
    assert (status, output.splitlines(keepends=True)[-1]) == (1, TABLE)


@pytest.mark.parametrize("limit", ["exit 124", "exit 137"])
def test_a_rotation_that_had_to_be_ended_is_no_failure(tree: Path, limit: str) -> None:
    status, output = result(start(tree, rotation=limit))
    assert status == 0
    assert "rotation: not finished" in output


@pytest.mark.parametrize("part", ["test", "rotation"])
def test_what_runs_is_told_to_end_when_the_run_is(tree: Path, part: str) -> None:
    begun, cleaned = tree / "begun", tree / "cleaned"
    waits = f"trap 'touch {cleaned}; exit 1' TERM; touch {begun}; while :; do sleep 0.05; done"
    process = start(tree, **{part: waits})
    try:
        wait_until(begun.exists)
        process.send_signal(signal.SIGTERM)
        status, _ = result(process)
    finally:
        process.kill()
    assert status != 0
    wait_until(cleaned.exists)
