# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.gpu.evidence --output FILE` measures the GPU of this machine and changes no setting of it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.gpu.evidence.device import on_device
from vgpumgr.errors import ProbeRefusedError
from vgpumgr.gpu.duel import RigError
from vgpumgr.gpu.shares import Effort


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.evidence", description=__doc__, allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", help="UUID of the GPU, as nvidia-smi -L shows it; otherwise the first")
    parser.add_argument("--repeats", type=int, default=5, help="of each run; default %(default)s")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each run; default %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the order of runs; default %(default)s")
    arguments = parser.parse_args()

    def keep(document: dict[str, Any]) -> None:
        arguments.output.write_text(json.dumps(document, indent=1) + "\n")

    def tell(line: str) -> None:
        print(line, file=sys.stderr)

    try:
        effort = Effort(repeats=arguments.repeats, seconds=arguments.seconds, seed=arguments.seed)
        with arguments.output.open("a"):
            pass  # check this before hours of measuring
        document = on_device(arguments.device, effort=effort, told=tell, kept=keep)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except RigError as error:
        print(f"not measured: {error.code}: {error.detail}", file=sys.stderr)
        return 1
    except ProbeRefusedError as error:
        print(f"not measured: {error.code}: {error}", file=sys.stderr)
        return 1
    keep(document)
    for name, test in document["tests"].items():
        print(f"{name:7} {test['verdict']:12} {test['reason']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
