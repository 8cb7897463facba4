# SPDX-License-Identifier: Apache-2.0
"""Runs lanes again and again, beside other work if asked to, and keeps what became of each in log.csv."""

import argparse
import json
import random
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from tests.steady.load import load
from tests.steady.record import append, of_outcomes, read, report

ROOT = Path(__file__).resolve().parents[2]
OUTCOMES = ROOT / "build" / "logs" / "outcomes.json"


def main() -> int:
    """Run the tool; the exit status is 0 if every run passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=__doc__)
    parser.add_argument("lanes", nargs="*", metavar="LANE", help="default: those of `make test`")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--load", action="store_true", help="busy cores and stalled processes beside the tests")
    parser.add_argument("--seed", type=int, help="of the load of the first run; each later one has the next")
    parser.add_argument("--report", action="store_true", help="only say what the log knows")
    arguments = parser.parse_args()
    if arguments.report:
        print(report(read()))
        return 0

    seed = random.randrange(1 << 31) if arguments.seed is None else arguments.seed
    failed = False
    for number in range(arguments.times):
        load_seed = str(seed + number) if arguments.load else ""
        print(f"run {number + 1} of {arguments.times}, load seed {load_seed or 'none'}", flush=True)
        OUTCOMES.unlink(missing_ok=True)
        with (
            subprocess.Popen([sys.executable, "tests/run", *arguments.lanes], cwd=ROOT) as runner,
            load(runner.pid, seed + number) if arguments.load else nullcontext(),
        ):
            failed = runner.wait() != 0 or failed
        append(
            of_outcomes(
                json.loads(OUTCOMES.read_text()),
                date=f"{datetime.now(UTC):%F %H:%M}",
                commit=head(),
                load_seed=load_seed,
            )
        )
    print(report(read()))
    return 1 if failed else 0


def head() -> str:
    """The commit that is tested; with a + if there is more than that."""
    words = ["git", "-c", "safe.directory=*", "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"]
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
