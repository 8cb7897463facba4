# SPDX-License-Identifier: Apache-2.0
"""An OpenCL kernel with inline assembly, on PoCL, through broker, supervisor and child, cannot leave the sandbox."""

import errno
import json
import sys
from pathlib import Path

import pytest

from tests.compute.test_run import Host, made

PROGRAM = Path(__file__).resolve().parent / "programs" / "escaping.py"

__all__ = ["made"]


@pytest.mark.usefixtures("made")
def test_a_kernel_s_system_calls_are_those_of_its_sandbox(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        ran = host.run("blue", sys.executable, str(PROGRAM))
    assert ran.returncode == 0, ran.stderr
    results = json.loads(ran.stdout)
    # Process id 1 shows that the call was made, and by the child: it is the first process of its PID namespace.
    assert results.pop("getpid") == 1
    assert results.pop("open passwd") == results.pop("openat passwd") == -errno.ENOENT
    assert set(results.values()) == {-errno.EPERM}, results
