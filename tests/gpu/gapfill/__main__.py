# SPDX-License-Identifier: Apache-2.0
"""Gap fill through the launch gate: on the virtual clock always, on a real GPU where there is one.

    python -m tests.gpu.gapfill [--json] [--quick] [--live [--seconds S] [--repeats N] | --virtual]

Without a GPU, or PyTorch, the live part is skipped and says why; with --live that is exit status 1. So is a GPU that
another uses, in any case. What is printed are ratios against the named baselines; a target that is missed is printed as
that, and is exit status 8.
"""

import argparse
import json
import math
import sys
from typing import Any

from tests.bench.sched.result import show
from tests.gpu.gapfill import live, pairs
from vgpumgr.errors import ProbeRefusedError

LEAST_SECONDS = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.gapfill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one document instead of tables")
    parser.add_argument("--quick", action="store_true", help="less of everything; its figures mean nothing")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--live", action="store_true", help="only on the GPU")
    which.add_argument("--virtual", action="store_true", help="only on the virtual clock")
    parser.add_argument("--seconds", type=float, help=f"of each way of sharing on the GPU; usually {live.SECONDS:g}")
    parser.add_argument("--repeats", type=int, help=f"of each on the GPU; usually {live.REPEATS}")
    arguments = parser.parse_args()
    if arguments.virtual and (arguments.seconds is not None or arguments.repeats is not None):
        parser.error("--seconds, --repeats: of the GPU, not of the virtual clock")
    if arguments.seconds is not None and not LEAST_SECONDS <= arguments.seconds < math.inf:
        parser.error(f"--seconds: {arguments.seconds:g}, at least {LEAST_SECONDS:g}")
    if arguments.repeats is not None and arguments.repeats < 1:
        parser.error(f"--repeats: {arguments.repeats}, at least 1")

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    results: list[dict[str, Any]] = []
    skipped = refused = None
    if not arguments.live:
        results.append(pairs.measure(quick=arguments.quick))
    if not arguments.virtual:
        skipped = live.why_not()
        if skipped is None:
            try:
                found = live.measure(
                    quick=arguments.quick, seconds=arguments.seconds, repeats=arguments.repeats, told=tell
                )
                results.append(found)
            except ProbeRefusedError as error:
                refused = str(error)
    if arguments.json:
        json.dump({"results": results, "live_skipped": skipped or refused}, sys.stdout, indent=1)
        print()
    else:
        for result in results:
            show(result)
        if skipped is not None:
            print(f"on a real GPU: skipped, {skipped}")
        if refused is not None:
            print(f"on a real GPU: refused, {refused}")
    if refused is not None or (arguments.live and skipped is not None):
        return 1
    return 0 if all(target["met"] for result in results for target in result["targets"]) else 8


if __name__ == "__main__":
    sys.exit(main())
