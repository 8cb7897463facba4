# SPDX-License-Identifier: Apache-2.0
"""Every benchmark of the scheduler: tables on standard output, and build/bench/sched.json.

    python -m tests.bench.sched [--only NAME ...] [--quick] [--strict]

The output ends with all targets, met or missed. A missed target is a failure only with --strict.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tests.bench.sched
from tests.bench.sched.result import show, verdict

ROOT = Path(__file__).resolve().parents[3]
OUTPUT = ROOT / "build" / "bench" / "sched.json"
FORMAT = "vgpumgr.bench-sched/1"


def experiments() -> dict[str, Callable[..., dict[str, Any]]]:
    """Return every module of this package that is an experiment, by name."""
    importlib.import_module("tests.sim.conftest")  # builds the engine if its sources are newer
    found = {}
    for module in pkgutil.iter_modules(tests.bench.sched.__path__):
        if module.name != "__main__":
            measure = getattr(importlib.import_module(f"{tests.bench.sched.__name__}.{module.name}"), "measure", None)
            if measure:
                found[module.name] = measure
    return found


def machine() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        named = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = named[0] if named else model
    return {
        "processor": model,
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "compiler": _said_by("cc", "--version").partition("\n")[0],
    }


def _said_by(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT).stdout.strip()


def empty_document(*, quick: bool) -> dict[str, Any]:
    """Return the parts of the stored result that exist before any measurement."""
    return {
        "format": FORMAT,
        "quick": quick,
        "commit": _said_by("git", "describe", "--always", "--dirty"),
        "machine": machine(),
        "experiments": {},
    }


def run(names: list[str], *, quick: bool) -> dict[str, Any]:
    """Run the experiments, print each table when it is ready, and return everything that is kept."""
    known = experiments()
    document = empty_document(quick=quick)
    for name in names:
        started = time.monotonic()
        result = known[name](quick=quick)
        result["seconds"] = round(time.monotonic() - started, 1)
        document["experiments"][name] = result
        show(result)
        print(f"  {result['seconds']} s\n", flush=True)
    return document


def missed(document: dict[str, Any]) -> int:
    """Print all targets of all experiments; return how many are missed."""
    count = 0
    print("targets" + (" (quick: the figures mean nothing)" if document["quick"] else ""))
    for name, result in document["experiments"].items():
        for one in result["targets"]:
            print(f"  {name:10} {verdict(one)}")
            count += not one["met"]
    return count


def main(arguments: list[str]) -> int:
    names = list(experiments())
    parser = argparse.ArgumentParser(prog="make bench-sched", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="only see that all of it runs")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the JSON file")
    options = parser.parse_args(arguments)

    document = run(options.only or names, quick=options.quick)
    count = missed(document)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{count} missed; all figures: {options.output}")
    return 1 if options.strict and count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
