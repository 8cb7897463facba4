# SPDX-License-Identifier: Apache-2.0
"""What the runner of lanes says of a lane that failed."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

RUN = Path(__file__).resolve().parents[1] / "run"

TESTS = """
import time


def waits():
    time.sleep(2)


def test_that_waits():
    waits()


def test_that_fails():
    assert 1 == 2
"""


@pytest.fixture(scope="module")
def run() -> ModuleType:
    loader = SourceFileLoader("tests_run", str(RUN))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module


def test_it_names_tests_that_failed_and_where_one_took_too_long(run: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "tests" / "test_it.py"
    file.parent.mkdir()
    file.write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-c", "/dev/null", "-o", "faulthandler_timeout=0.3", file],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert run.remarks(done.stdout) == (
        "FAILED tests/test_it.py::test_that_fails - assert 1 == 2",
        "STUCK tests/test_it.py:6 in waits",
    )


def test_it_names_what_the_kernel_of_a_lab_host_complained_of(run: ModuleType) -> None:
    log = "..\n--- kernel complaint\nBUG: KASAN: use-after-free in vgpu_x\nRead of size 8\nlab: exit status 123\n"
    assert run.remarks(log) == ("--- kernel complaint BUG: KASAN: use-after-free in vgpu_x",)


def test_it_ends_with_the_logs_end_if_nothing_says_why(run: ModuleType) -> None:
    log = "".join(f"line {number}\n" for number in range(100))
    assert run.remarks(log)[-2:] == ("line 98", "line 99")
    assert len(run.remarks(log)) < 20
