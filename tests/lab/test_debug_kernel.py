# SPDX-License-Identifier: Apache-2.0
"""The debug kernel notices defects, and the lab fails a run for them: without this its silence proves nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

LAB = [sys.executable, str(Path(__file__).resolve().parent / "lab")]
EXIT_SPLAT = 70
# What vgpu_defects.ko does, and what the kernel says of it. After KASAN's word lockdep is silent: it comes last.
COMPLAINTS = {
    "inversion": "possible circular locking dependency detected",
    "sleep": "sleeping function called from invalid context",
    "leak": "new suspected memory leaks",
    "shift": "UBSAN: shift-out-of-bounds",
    "use-after-free": "KASAN: slab-use-after-free in defect_use_after_free",
}


@pytest.mark.long
def test_each_kind_of_defect_is_found_and_fails_the_run() -> None:
    command = f"for what in {' '.join(COMPLAINTS)}; do insmod /lab/vgpu_defects.ko what=$what; done 2>/dev/null; true"
    done = subprocess.run(
        [*LAB, "run", "--minimal", "--debug-kernel", "--timeout", "1500", "--", command],
        capture_output=True,
        text=True,
        timeout=5400,  # on a new machine it builds that kernel first
    )
    missed = [what for what, complaint in COMPLAINTS.items() if complaint not in done.stderr]
    assert missed == [], done.stderr
    assert done.returncode == EXIT_SPLAT, done.stderr
