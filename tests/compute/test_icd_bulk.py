# SPDX-License-Identifier: Apache-2.0
"""The allocator of the bulk area alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.compute.icd_rig import BUILT, ROOT, compile_c, make


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_parts_do_not_overlap_and_become_whole_again(tmp_path: Path, seed: int) -> None:
    make(BUILT / "generated" / "stamp")
    transport = ROOT / "compute/guest/transport"
    sources = (ROOT / "tests/compute/c/bulk_random.c", transport / "bulk.c", transport / "fork.c")
    program = compile_c(tmp_path / "bulk", *map(str, sources), "-fsanitize=address,undefined")
    done = subprocess.run([program, str(seed), "60000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0  # the area was full at times
