# SPDX-License-Identifier: Apache-2.0
"""Is each file of the module's tests that runs in User-mode Linux seen to fail? `python -m tests.mutants.module`.

One module is built, in a copy of the checkout, with all defects of `tests.mutants.planted`: its parameter says which of
them is present. First all the files must pass with none of them; then each must fail with its own. A line says which
test found the defect.

The exit status is 0 if all this is so.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.checkout import copy_sources
from tests.mutants.planted import DEFECTS, Defect

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900
PRESENT = "present"
"""A file of the copy that selects the defect with which the module is loaded."""
SWITCH = "extern unsigned int vgpu_defect;\n"
PARAMETER = "unsigned int vgpu_defect;\nmodule_param_named(defect, vgpu_defect, uint, 0444);\n"


def main() -> int:
    """Run the tool; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.module", description=__doc__)
    parser.add_argument("--only", metavar="FILE", action="append", help="this file of tests; may be repeated")
    chosen = parser.parse_args().only
    unknown = set(chosen or ()) - {defect.tests for defect in DEFECTS}
    if unknown:
        parser.error(f"no defect is planted for {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        copy = Path(place) / "checkout"
        copy_sources(ROOT, copy)
        plant(copy, DEFECTS)
        wanted = [(number, defect) for number, defect in enumerate(DEFECTS, 1) if not chosen or defect.tests in chosen]
        if not passes(copy, [defect for _, defect in wanted]):
            return 1
        found = [finds(copy, number, defect) for number, defect in wanted]
    return 0 if all(found) else 1


def plant(copy: Path, defects: Sequence[Defect]) -> None:
    """Put all defects into the module. Each has a number, counted from 1; 0 selects none of them."""
    sources = copy / "kmod"
    for number, defect in enumerate(defects, 1):
        file = sources / defect.source
        text = file.read_text()
        if text.count(defect.old) != 1:
            raise ValueError(f"{defect.tests}: `old` does not occur once in {defect.source}")
        both = f"{{ if (vgpu_defect == {number}) {{ {defect.new} }} else {{ {defect.old} }} }}"
        file.write_text(text.replace(defect.old, both))
    for source in {defect.source for defect in defects}:
        file = sources / source
        file.write_text(SWITCH + file.read_text())
    file = sources / "main.c"
    file.write_text(f"{file.read_text()}\n{SWITCH}{PARAMETER}")
    loads = copy / "tests/lab/inside/lab-insmod"
    before, insmod, after = loads.read_text().partition("insmod /lab/vgpumgr.ko")
    if not insmod:
        raise ValueError(f"{loads} does not load the module")
    loads.write_text(f"{before}{insmod} defect=$(cat /checkout/{PRESENT}){after}")


def run(copy: Path, number: int, files: Sequence[str], *words: str) -> "subprocess.CompletedProcess[str]":
    """Run these test files on the module with a defect; in virtual time if the first one is in tests/time."""
    (copy / PRESENT).write_text(f"{number}\n")
    virtual = ["--virtual-time"] if files[0].startswith("tests/time/") else []
    machine = ["tests/lab/lab", "run", "--kernel", "uml", "--bare", *virtual, "--timeout", str(LIMIT_S)]
    tests = ["python3", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line", "--no-header"]
    command = [*machine, "--", *tests, "-m", "not long and not emulated", *words, *files]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, errors="replace", check=False)


def passes(copy: Path, defects: Sequence[Defect]) -> bool:
    """Return whether the files pass without any defect; print the output if they do not."""
    for folder in ("tests/kmod/", "tests/time/"):
        files = [defect.tests for defect in defects if defect.tests.startswith(folder)]
        done = run(copy, 0, files) if files else None
        if done and done.returncode:
            print(f"{folder} fails without any defect:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
            return False
    return True


def finds(copy: Path, number: int, defect: Defect) -> bool:
    """Return whether the file fails with its defect; print the test that found it."""
    began = time.monotonic()
    done = run(copy, number, [defect.tests])
    failed = re.findall(rf"^(?:FAILED|ERROR) {re.escape(defect.tests)}::(\S+)", done.stdout, re.M)
    if failed:
        outcome = f"found by {failed[0]}"
    elif done.returncode:
        outcome = f"NOT FOUND by a test; exit status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    else:
        outcome = "NOT FOUND"
    print(f"{defect.tests}  {time.monotonic() - began:.0f} s  {defect.wrong}: {outcome}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
