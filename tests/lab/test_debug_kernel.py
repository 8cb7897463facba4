# SPDX-License-Identifier: Apache-2.0
"""The debug kernels notice defects, and the lab fails a run for them: without this, their silence proves nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.defects import COMPLAINTS, each_defect

LAB = [sys.executable, str(Path(__file__).resolve().parent / "lab")]
EXIT_SPLAT = 70


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["debug", "uml-debug"])
def test_each_kind_of_defect_is_found_and_fails_the_run(kernel: str) -> None:
    done = subprocess.run(
        [*LAB, "run", "--minimal", "--kernel", kernel, "--timeout", "1500", "--", each_defect("/lab/vgpu_defects.ko")],
        capture_output=True,
        text=True,
        timeout=5400,  # on a new machine it builds that kernel first
    )
    missed = [what for what, complaint in COMPLAINTS.items() if complaint not in done.stderr]
    assert missed == [], done.stderr
    assert done.returncode == EXIT_SPLAT, done.stderr
