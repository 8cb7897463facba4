# SPDX-License-Identifier: Apache-2.0
"""pyopencl's own tests, and the outcome of each by name.

The tests are only in pyopencl's source distribution. pip fetches the installed version of it once.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

KEPT = Path(__file__).resolve().parents[3] / "build" / "compute" / "pyopencl"


def sources() -> Path:
    """Return the directory of the tests. Raises CalledProcessError if pip cannot fetch them."""
    name = f"pyopencl-{version('pyopencl')}"
    unpacked = KEPT / name / "test"
    if not unpacked.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        wanted = ("--no-deps", "--no-binary", "pyopencl", f"pyopencl=={version('pyopencl')}")
        subprocess.run((sys.executable, "-m", "pip", "download", "--quiet", *wanted, "--dest", KEPT), check=True)
        # Python 3.11.2 lacks tarfile's filter against names that lead outside.
        subprocess.run(("tar", "--extract", "--gzip", "--file", f"{name}.tar.gz"), cwd=KEPT, check=True)
    return unpacked


def outcomes(prefix: Sequence[str] | None, report: Path, file: str, chosen: str | None = None) -> dict[str, str]:
    """Run a file of the suite behind `prefix` and return each test's outcome: passed, failed or skipped.

    `chosen` is an expression for pytest's -k. The run writes its results to `report`; a run that crashes writes none.
    """
    directory = sources()
    command = [*(prefix or ()), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--junit-xml={report}", str(directory / file)]
    if chosen:
        command += ["-k", chosen]
    report.unlink(missing_ok=True)
    subprocess.run(command, cwd=directory, check=False, capture_output=True)
    return read(report) if report.exists() else {}


def read(report: Path) -> dict[str, str]:
    """Return each test's outcome from a JUnit report."""
    found = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found
