# SPDX-License-Identifier: Apache-2.0
"""The cost of a lease for the module does not grow. It counts instructions of the module's files, the same on every
run.

The count covers the work of each call under the engine's lock. The kernel's part of it (locks, timers, waking a child)
is not counted: `lending.c` plays the kernel.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.bench.sched.decisions import counted
from tests.kfuzz.build import HERE, KMOD, headers

DRIVER = Path(__file__).with_name("lending.c")
LEASES = 2000
# Per lease and by the number of slices, about a tenth above the values measured when the limits were set.
CEILINGS = {
    # the timer, which visits all slices shortly before the end, and at the end
    ("turns", "call_timer"): {2: 3450, 8: 4850, 32: 7500},
    # a yield that hands the engine to the next slice
    ("turns", "call_yield"): {2: 3250, 8: 4050, 32: 4950},
    # a request that gives an end to a lease without one
    ("asks", "call_ready"): {2: 3050, 8: 3100, 32: 3450},
    # a yield without further work, which hands the engine to a waiting slice
    ("asks", "call_yield"): {2: 2850, 8: 3000, 32: 3350},
}
CASES = [(mode, function, slices) for (mode, function), of in CEILINGS.items() for slices in of]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Uses the module's own files, optimized like the kernel."""
    folder = tmp_path_factory.mktemp("lending")
    headers(folder / "include", KMOD)
    program = folder / "lending"
    include = ["-I", str(folder / "include"), "-I", str(HERE), "-I", str(KMOD), "-include", str(HERE / "kernel.h")]
    options = ["-std=gnu11", "-O2", "-Wall", "-Wno-unused-function", "-D_GNU_SOURCE", "-DVGPU_COMPAT_H", *include]
    sources = [DRIVER, KMOD / "engine/lending.c", *sorted((KMOD / "sched").glob("*.c"))]
    subprocess.run([os.environ.get("CC", "cc"), *options, "-o", str(program), *map(str, sources)], check=True)
    return program


@pytest.mark.parametrize(("mode", "function", "slices"), CASES)
def test_a_lease_takes_no_more_instructions(driver: Path, mode: str, function: str, slices: int) -> None:
    per_lease = counted(function, driver, mode, str(slices), str(LEASES)) / LEASES
    assert 0 < per_lease <= CEILINGS[mode, function][slices]
