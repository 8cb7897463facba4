# SPDX-License-Identifier: Apache-2.0
"""The tests of supervisor, child, gate and sandbox again, with address and undefined-behaviour sanitizers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
# A sanitizer needs more memory than some tests allow, and catches crashes itself. It looks for leaks in a process of
# its own, which the sandbox refuses. The fake driver is loaded before the sanitizer's runtime.
WITHOUT = "not memory and not crash and not sanitized and not kernel and not model and not order"


@pytest.mark.long
def test_no_sanitizer_finds_anything() -> None:
    files = sorted(
        path
        for pattern in (
            "test_supervisor*.py",
            "test_child_*.py",
            "test_gate.py",
            "test_nvidia_*.py",
            "test_sandbox*.py",
        )
        for path in FOLDER.glob(pattern)
        if path != Path(__file__).resolve()
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", WITHOUT, "-m", "not long", *map(str, files)],
        cwd=FOLDER.parents[1],
        env={**os.environ, "COMPUTE_SANITIZED": "1", "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout
