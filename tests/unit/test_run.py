# SPDX-License-Identifier: Apache-2.0
"""Which lanes the runner runs side by side, and its reports about lanes that failed or were stopped."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.lanes import DURATIONS
from tests.runner import lane_log

RUN = Path(__file__).resolve().parents[1] / "run"

TESTS = """
import time


def waits():
    time.sleep(5)


def test_that_waits():
    waits()


def test_that_fails():
    assert 1 == 2
"""


def load() -> ModuleType:
    loader = SourceFileLoader("tests_run", str(RUN))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_it_names_tests_that_failed_and_where_one_took_too_long(tmp_path: Path) -> None:
    file = tmp_path / "tests" / "test_it.py"
    file.parent.mkdir()
    file.write_text(TESTS)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-ra",
            *DURATIONS,
            "-c",
            "/dev/null",
            "--rootdir=.",
            "-o",
            "faulthandler_timeout=2",
            file,
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert lane_log.remarks(done.stdout) == (
        "FAILED tests/test_it.py::test_that_fails - assert 1 == 2",
        "STUCK tests/test_it.py:6 in waits",
    )
    (slow,) = lane_log.slow_tests(done.stdout)
    assert (slow.phase, slow.test) == ("call", "tests/test_it.py::test_that_waits")


# The runner is a separate process, because signals end it. Each command of its lanes is a shell command.
RUNNER = """
import json
import sys
from pathlib import Path

from tests.lanes import Lane
from tests.unit.test_run import load

root, described, *words = sys.argv[1:]
lanes = [
    Lane(**lane | {"commands": tuple(("sh", "-c", command) for command in lane["commands"])})
    for lane in json.loads(described)
]
sys.exit(load().main(words, root=Path(root), lanes=lanes))
"""


@contextmanager
def runner(directory: Path, *lanes: dict[str, object], words: Sequence[str] = ()) -> "Iterator[subprocess.Popen[str]]":
    """Run these lanes with commands in `directory`; a lane has one command or a list."""
    described = [lane | {"commands": [c] if isinstance(c := lane["commands"], str) else c} for lane in lanes]
    with subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(directory), json.dumps(described), *words],
        cwd=RUN.parents[1],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def results(output: str) -> dict[str, str]:
    """Return each lane's entry in the table, in the table's order."""
    table = re.search(r"^lane +result +seconds(?: +unsteady)?\n(.*?)\nlogs: ", output, re.M | re.S)
    assert table, output
    return {line.split()[0]: " ".join(re.split(r" +\d+\.\d", line)[0].split()[1:]) for line in table[1].splitlines()}


def test_what_python_compiles_is_kept_below_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module.py").touch()
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    command = f"PYTHONPATH={tmp_path} {sys.executable} -c 'import module'"
    with runner(tmp_path, {"name": "lane", "limit_s": 30, "commands": command}) as process:
        output, _ = process.communicate(timeout=60)
    assert results(output) == {"lane": "passed"}
    [compiled] = tmp_path.rglob("module.*.pyc")
    assert compiled.is_relative_to(tmp_path / "build" / "pycache")


def test_a_light_lane_runs_beside_a_heavy_one(tmp_path: Path) -> None:
    meet = "touch {0}; until [ -e {1} ]; do sleep 0.05; done; echo {0} met {1}"
    lanes = (
        {"name": "heavy", "limit_s": 30, "heavy": True, "commands": meet.format("this", "that")},
        {"name": "light", "limit_s": 30, "commands": meet.format("that", "this")},
    )
    with runner(tmp_path, *lanes) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert {"heavy | this met that", "light | that met this"} <= set(output.splitlines())
    assert "\nthat met this\n" in (tmp_path / "build" / "logs" / "light.log").read_text()


def test_a_stream_without_lanes_of_its_own_takes_one_of_the_other(tmp_path: Path) -> None:
    meet = "touch {0}; until [ -e {1} ]; do sleep 0.05; done"
    lanes = (
        {"name": "heavy", "limit_s": 30, "heavy": True, "commands": "true"},
        {"name": "this", "limit_s": 30, "commands": meet.format("this", "that")},
        {"name": "that", "limit_s": 30, "commands": meet.format("that", "this")},
    )
    with runner(tmp_path, *lanes) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


def test_where_none_waits_two_light_lanes_run_beside_a_heavy_one(tmp_path: Path) -> None:
    meet = "touch {0}; until [ -e {1} ] && [ -e {2} ]; do sleep 0.05; done"
    lanes = (
        {"name": "heavy", "limit_s": 30, "heavy": True, "commands": meet.format("this", "that", "other")},
        {"name": "light", "limit_s": 30, "commands": meet.format("that", "this", "other")},
        {"name": "other", "limit_s": 30, "commands": meet.format("other", "this", "that")},
    )
    with runner(tmp_path, *lanes) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


def test_a_lane_that_waits_runs_beside_two_others(tmp_path: Path) -> None:
    meet = "touch {0}; until [ -e {1} ] && [ -e {2} ]; do sleep 0.05; done"
    lanes = (
        {"name": "heavy", "limit_s": 30, "heavy": True, "commands": meet.format("this", "that", "other")},
        {"name": "light", "limit_s": 30, "commands": meet.format("that", "this", "other")},
        {"name": "waits", "limit_s": 30, "waits": True, "commands": meet.format("other", "this", "that")},
    )
    with runner(tmp_path, *lanes) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output


def test_of_heavy_lanes_one_runs_at_a_time_and_all_after_a_failure(tmp_path: Path) -> None:
    alone = "mkdir alone && sleep 0.2 && rmdir alone && exit {}"
    lanes = (
        {"name": "one", "limit_s": 30, "heavy": True, "commands": alone.format(3)},
        {"name": "two", "limit_s": 30, "heavy": True, "commands": alone.format(0)},
    )
    with runner(tmp_path, *lanes) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert results(output) == {"one": "failed (3)", "two": "passed"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_run_that_is_ended_lets_its_lanes_clean_up_and_says_what_ran(tmp_path: Path, number: signal.Signals) -> None:
    """This also holds for repeated signals, as make and people at terminals send them."""
    cleans = """
        clean() {{ trap 'exit 1' TERM; echo cleaning; for _ in {}; do sleep 0.1; done; echo cleaned; exit 1; }}
        trap clean TERM; printf begun; while :; do sleep 0.05; done
    """
    lanes = (
        {"name": "over", "limit_s": 30, "commands": "true"},
        {"name": "fast", "limit_s": 90, "commands": cleans.format("1"), "heavy": True},
        {"name": "slow", "limit_s": 90, "commands": cleans.format("1 2 3 4 5 6 7 8 9 10")},
        {"name": "later", "limit_s": 30, "commands": "touch later", "heavy": True},
    )
    with runner(tmp_path, *lanes) as process:
        logs = [tmp_path / "build" / "logs" / f"{name}.log" for name in ("slow", "fast")]
        wait_until(lambda: all(path.exists() and path.read_text().endswith("begun") for path in logs))
        process.send_signal(number)
        wait_until(lambda: all("cleaning" in path.read_text() for path in logs))
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert {"fast | cleaned", "slow | cleaned"} <= set(output.splitlines())
    assert results(output) == {"over": "passed", "fast": "stopped", "slow": "stopped", "later": "not run"}
    assert not (tmp_path / "later").exists()


def test_a_lane_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with runner(tmp_path, {"name": "slow", "limit_s": 0.5, "commands": "sleep 80"}) as process:
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "slow: stopped after 0.5 s" in output
    assert results(output) == {"slow": "time limit"}


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
