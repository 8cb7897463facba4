# SPDX-License-Identifier: Apache-2.0
"""The log of runs, one line for each lane of each run, and what it says of how steady a lane is."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

LOG = Path(__file__).with_name("log.csv")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One lane, once. `load_seed`: of the load beside it, empty without load. Several tests are separated by blanks."""

    date: str
    commit: str
    lane: str
    result: str
    seconds: str
    unsteady: str
    load_seed: str
    failed_tests: str


def append(runs: Iterable[Run], log: Path = LOG) -> None:
    """Add lines; the first line of a new log names the fields."""
    begins = not log.exists()
    with log.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(Run)], lineterminator="\n")
        if begins:
            writer.writeheader()
        writer.writerows(asdict(run) for run in runs)


def read(log: Path = LOG) -> list[Run]:
    """All lines; none if there is no log."""
    if not log.exists():
        return []
    with log.open(newline="", encoding="utf-8") as stream:
        return [Run(**row) for row in csv.DictReader(stream)]


def of_outcomes(outcomes: Sequence[Mapping[str, object]], *, date: str, commit: str, load_seed: str) -> Iterable[Run]:
    """What tests/run left in build/logs/outcomes.json, as lines."""
    for outcome in outcomes:
        unsteady, failed = outcome["unsteady"], outcome["failed_tests"]
        assert isinstance(unsteady, list)
        assert isinstance(failed, list)
        yield Run(
            date=date,
            commit=commit,
            lane=str(outcome["lane"]),
            result=str(outcome["result"]),
            seconds=str(outcome["seconds"]),
            unsteady=str(len(unsteady)),
            load_seed=load_seed,
            failed_tests=" ".join(str(test) for test in failed),
        )


def report(runs: Sequence[Run]) -> str:
    """For each lane how many runs passed, and each test that failed with its rate."""
    lines = []
    for lane in dict.fromkeys(run.lane for run in runs):
        own = [run for run in runs if run.lane == lane]
        passed = sum(run.result == "passed" for run in own)
        unsteady = sum(int(run.unsteady) for run in own)
        loaded = sum(bool(run.load_seed) for run in own)
        lines.append(f"{lane}: {passed} of {len(own)} passed, {loaded} beside load, {unsteady} unsteady")
        failures = Counter(test for run in own for test in _names(run.failed_tests))
        lines += [f"  {count} of {len(own)}: {test}" for test, count in failures.most_common()]
    return "\n".join(lines) or "no runs yet"


def _names(tests: str) -> list[str]:
    """Names of tests, which may have blanks in their parameters."""
    return re.split(r" (?=tests/)", tests) if tests else []
