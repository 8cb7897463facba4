# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.gpu.evidence --output FILE` measures the GPU of this machine and changes no setting of it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.gpu.evidence.document import measure
from vgpumgr.gpu.duel import Rig, RigError
from vgpumgr.gpu.shares import Effort


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.evidence", description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", help="UUID of the GPU, as nvidia-smi -L shows it; otherwise the first")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each run")
    parser.add_argument("--seed", type=int, default=1, help="of the order of runs")
    arguments = parser.parse_args()
    try:
        effort = Effort(repeats=arguments.repeats, seconds=arguments.seconds, seed=arguments.seed)
        document = measure(Rig(device=arguments.device), effort=effort, told=lambda line: print(line, file=sys.stderr))
    except ValueError as error:
        parser.error(str(error))
    except RigError as error:
        print(f"not measured: {error.code}: {error.detail}", file=sys.stderr)
        return 1
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    for name, test in document["tests"].items():
        print(f"{name:7} {test['verdict']:12} {test['reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
