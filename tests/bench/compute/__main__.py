# SPDX-License-Identifier: Apache-2.0
"""Real compute beside the same programs run directly: tables, and build/bench/compute.json.

    python -m tests.bench.compute [--only NAME ...] [--quick] [--strict]

The output ends with all targets, met or missed. A missed target is a failure only with --strict.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

from tests.bench.compute import calls, fence, gaps, programs, sharing, starts
from tests.bench.compute.site import ROOT
from tests.bench.sched.__main__ import empty_document, missed
from tests.bench.sched.result import show

OUTPUT = ROOT / "build" / "bench" / "compute.json"
EXPERIMENTS = {
    "calls": calls.measure,
    "programs": programs.measure,
    "starts": starts.measure,
    "sharing": sharing.measure,
    "gaps": gaps.measure,
    "fence": fence.measure,
}


def main(arguments: list[str]) -> int:
    """Run the experiments, print and store the results, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make bench-compute", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--quick", action="store_true", help="only see that all of it runs")
    parser.add_argument("--strict", action="store_true", help="fail if a target is missed")
    options = parser.parse_args(arguments)

    subprocess.run(("make", "-s", "-C", str(ROOT / "compute")), check=True)
    document = empty_document(quick=options.quick)
    for name in options.only or EXPERIMENTS:
        began_s = time.monotonic()
        result = EXPERIMENTS[name](quick=options.quick)
        result["seconds"] = round(time.monotonic() - began_s, 1)
        document["experiments"][name] = result
        show(result)
        print(f"  {result['seconds']} s\n", flush=True)
    count = missed(document)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\n{count} missed; all figures: {OUTPUT.relative_to(ROOT)}")
    return 1 if options.strict and count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
