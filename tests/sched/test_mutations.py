# SPDX-License-Identifier: Apache-2.0
"""Seeded faults: each breaks one rule in a copy of the core, and the tests of the normal lane must fail."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sched.faults import latency, leases, queue, runs
from tests.sched.faults.fault import Fault
from vgpumgr.sched._build import CORE, ROOT

COPIED = ("pyproject.toml", "tests/conftest.py", "tests/sched", "vgpumgr", CORE)
# Tests failed, or the core crashed. Other exit statuses mean that nothing was tested.
NOTICED = (1, -signal.SIGSEGV, -signal.SIGABRT)
TESTS = (
    "tests/sched/test_calls.py",
    "tests/sched/test_bands.py",
    "tests/sched/test_holds.py",
    "tests/sched/test_ghosts.py",
    "tests/sched/test_fuzz.py",
    "tests/sched/test_attacks.py",
    "tests/sched/test_stories.py",
    "tests/sched/test_entitlement.py",
    "tests/sched/test_leases.py",
    "tests/sched/test_sleepers.py",
    "tests/sched/test_lease_stories.py",
)

FAULTS = [*queue.FAULTS, *runs.FAULTS, *latency.FAULTS, *leases.FAULTS]
QUICK = {"every wakeup renews the budget"}


def copy_with(fault: Fault, target: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            ignore = shutil.ignore_patterns("*.so", "*.o", "__pycache__", ".*")
            shutil.copytree(source, target / name, ignore=ignore)
        else:
            shutil.copyfile(source, target / name)
    path = target / CORE / fault.file
    text = path.read_text()
    for old, new in fault.edits:
        assert text.count(old) == 1, f"cannot seed {fault.name!r}: the source has changed"
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(
            fault,
            id=fault.name.replace(" ", "-"),
            marks=[] if fault.name in QUICK else [pytest.mark.long],
        )
        for fault in FAULTS
    ],
)
def test_the_tests_notice(fault: Fault, tmp_path: Path) -> None:
    copy_with(fault, tmp_path)
    done = run_tests(tmp_path)
    assert done.returncode in NOTICED, done.stdout + done.stderr


@pytest.mark.long
def test_they_have_nothing_to_say_about_a_faultless_copy(tmp_path: Path) -> None:
    copy_with(Fault("none", "tree.c", ()), tmp_path)
    done = run_tests(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def run_tests(copy: Path) -> subprocess.CompletedProcess[str]:
    tests = [
        *(sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long"),
        "--hypothesis-profile=mutation",
        *TESTS,
    ]
    env = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(tests, cwd=copy, env=env, capture_output=True, text=True, timeout=900)
