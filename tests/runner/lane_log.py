# SPDX-License-Identifier: Apache-2.0
"""What a lane's log says: how pytest ended, what failed, what was slow, and what the lab had to run once more."""

import re
from dataclasses import dataclass

REMARK_LINES = 12
REMARK_WIDTH = 200
# How pytest ends; not coloured, because its output is a pipe.
CLOSING_LINE = re.compile(
    r"^[=\s]*((?:no tests ran|\d+ (?:passed|failed|errors?|skipped|deselected)\b.*) in [\d.]+s)",
    re.M,
)
# What pytest says of tests that failed, what the lab says of its kernel, and what pytest says of where it was when a
# test took too long: innermost frame first. The lab may have to write behind an unfinished line of the command's.
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) .*", re.M)
COMPLAINT = re.compile(r"--- kernel complaint\n.*")
STUCK = re.compile(r"^Timeout \(.*\)!$(?:\n|.)*?^  File \".*?(tests/[^\"]+)\", line (\d+) in (\w+)", re.M)
# Of tests/lab/labhost/run.py.
UNSTEADY = re.compile(r"^lab: (?:\[ *[\d.]+ s\] )?unsteady: (.*?);", re.M)
# pytest's --durations
DURATION = re.compile(r"^(\d+\.\d+)s (call|setup|teardown) +(\S.*)$", re.M)


@dataclass(frozen=True, kw_only=True)
class Slow:
    """One phase of a test that took long."""

    seconds: float
    phase: str
    test: str


def closing_lines(log: str) -> list[str]:
    """How each pytest ended: its counts of tests."""
    return CLOSING_LINE.findall(log)


def remarks(log: str) -> tuple[str, ...]:
    """Why a lane failed: tests that failed, the kernel's complaints, where a test took too long; else the log's end."""
    found = (
        *FAILED_TEST.findall(log),
        *(complaint.replace("\n", " ") for complaint in COMPLAINT.findall(log)),
        *(f"STUCK {file}:{line} in {name}" for file, line, name in STUCK.findall(log)),
    )
    return tuple(line[:REMARK_WIDTH] for line in found or log.splitlines()[-REMARK_LINES:])


def unsteady(log: str) -> tuple[str, ...]:
    """Why the lab ran a command once more, for each time that it did."""
    return tuple(UNSTEADY.findall(log))


def slow_tests(log: str) -> tuple[Slow, ...]:
    """What pytest calls its slowest durations."""
    return tuple(Slow(seconds=float(seconds), phase=phase, test=test) for seconds, phase, test in DURATION.findall(log))
