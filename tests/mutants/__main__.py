# SPDX-License-Identifier: Apache-2.0
"""How many random defects do the lanes find? `python -m tests.mutants --seed 1 --count 8 8 7 7`.

Each mutant is tried in a copy of the checkout, against the tests of its area, stopped at the first failure. The result
is one line for each and, with --out, a CSV file.

The exit status is 0 unless a mutant could not be tried. A mutant that does not compile is replaced by the next one.
"""

import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.checkout import copy_sources
from tests.mutants.draw import AREAS, Mutant, draw

ROOT = Path(__file__).resolve().parents[2]
SPARE = 5
"""This many times more mutants are drawn than tried, because some do not compile."""
LIMIT_S = 3600.0
PYTEST = ("python", "-m", "pytest", "-q", "-x", "--no-header", "--tb=line")
_USER_MODE = ("tests/lab/lab", "run", "--kernel", "uml", "--bare", "--timeout", "1200")
_IN_LAB = ("--", "python3", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=line")
_ARBITER = tuple(f"tests/compute/test_arbiter{part}.py" for part in ("", "_parties", "_hostile"))
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "module": (
        (*_USER_MODE, "--virtual-time", *_IN_LAB, "-m", "not emulated", "tests/time"),
        (*_USER_MODE, *_IN_LAB, "-m", "not long and not emulated", "tests/kmod"),
        ("tests/lab/lab", "run", "--bare", "--icount", "--timeout", "1500", *_IN_LAB, "-m", "emulated", "tests/time"),
        ("tests/lab/lab", "run", "--bare", "--timeout", "1500", *_IN_LAB, "-m", "emulated and not long", "tests/kmod"),
    ),
    "scheduler": (
        (*PYTEST, "-m", "not long", "tests/sched", "tests/kfuzz", "tests/sim"),
        (*PYTEST, "-m", "not long", *_ARBITER),
    ),
    "agent": ((*PYTEST, "-m", "not long", "tests/agent", "tests/unit"),),
    "api": ((*PYTEST, "-m", "not long", "tests/api"),),
}


def main() -> int:
    """Run the tool; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, nargs=len(AREAS), metavar="N", default=[10, 5, 5, 10], help="of each area")
    parser.add_argument("--out", type=Path, help="append the results to this CSV file")
    parser.add_argument("--list", action="store_true", help="only print what was drawn")
    arguments = parser.parse_args()

    lost = 0
    for area, count in zip(AREAS, arguments.count, strict=True):
        drawn = draw(ROOT, area, count * SPARE, arguments.seed) if count else []
        if arguments.list:
            print(*(describe(mutant) for mutant in drawn[:count]), sep="\n")
            continue
        tried = 0
        for mutant in drawn:
            if tried == count:
                break
            began = time.monotonic()
            outcome = judge(mutant, COMMANDS[area])
            if outcome == "does not compile":
                continue
            tried += 1
            seconds = time.monotonic() - began
            print(f"{outcome}  {seconds:6.0f} s  {describe(mutant)}", flush=True)
            if arguments.out:
                with arguments.out.open("a", newline="") as stream:
                    csv.writer(stream).writerow(
                        [area, mutant.path, mutant.line, mutant.kind, mutant.new.strip(), outcome, f"{seconds:.0f}"]
                    )
        lost += count - tried
    return 1 if lost else 0


def describe(mutant: Mutant) -> str:
    """Return a one-line description."""
    return f"{mutant.area} {mutant.path}:{mutant.line} {mutant.kind}: {mutant.new.strip()}"


def judge(mutant: Mutant, commands: Sequence[tuple[str, ...]]) -> str:
    """Try a mutant and return `found: WHAT`, `missed`, or `does not compile`."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        copy = Path(place) / "checkout"
        copy_sources(ROOT, copy)
        mutant.apply(copy)
        environ = made_to_run(copy)
        if environ is None:
            return "does not compile"
        for command in commands:
            program = [str(ROOT / "build/venv/bin/python"), *command[1:]] if command[0] == "python" else list(command)
            try:
                done = subprocess.run(
                    program, cwd=copy, env=environ, capture_output=True, text=True, errors="replace", timeout=LIMIT_S
                )
            except subprocess.TimeoutExpired:
                return "found: hangs"
            output = done.stdout + done.stderr
            if done.returncode and "kernel modules for" in output and "failed; the end of" in output:
                return "does not compile"
            if done.returncode:
                failed = re.findall(r"^(?:FAILED|ERROR) tests/\S+|^--- kernel complaint\n.*", output, re.M)
                return f"found: {(failed or [f'exit status {done.returncode}'])[0][:200]}"
    return "missed"


def made_to_run(copy: Path) -> dict[str, str] | None:
    """Return an environment that runs the copy's own code with its compiled scheduler; None if it does not compile."""
    environ = {**os.environ, "PYTHONPATH": f"{copy}:{copy / 'api'}:{copy / 'agent'}"}
    python = ROOT / "build/venv/bin/python"
    built = subprocess.run(
        [python, "setup.py", "-q", "build_ext", "--inplace"], cwd=copy, env=environ, capture_output=True, check=False
    )
    return environ if built.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
