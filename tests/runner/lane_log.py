# SPDX-License-Identifier: Apache-2.0
"""Reads a lane's log: how pytest ended, what failed, what was slow, and which commands the lab repeated."""

import re
from dataclasses import dataclass

REMARK_LINES = 12
REMARK_WIDTH = 200
# pytest's last line; it has no colours, because the output is a pipe.
CLOSING_LINE = re.compile(
    r"^[=\s]*((?:no tests ran|\d+ (?:passed|failed|errors?|skipped|deselected)\b.*) in [\d.]+s)",
    re.M,
)
# Patterns for pytest's failed tests, for the lab's kernel complaints, and for pytest's position when a test took too
# long (innermost frame first). The lab may have to write behind an unfinished line of the command.
FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) .*", re.M)
COMPLAINT = re.compile(r"--- kernel complaint\n.*")
STUCK = re.compile(r"^Timeout \(.*\)!$(?:\n|.)*?^  File \".*?(tests/[^\"]+)\", line (\d+) in (\w+)", re.M)
# from tests/lab/labhost/run.py
UNSTEADY = re.compile(r"^lab: (?:\[ *[\d.]+ s\] )?unsteady: (.*?);", re.M)
# from pytest's --durations
DURATION = re.compile(r"^(\d+\.\d+)s (call|setup|teardown) +(\S.*)$", re.M)


@dataclass(frozen=True, kw_only=True)
class Slow:
    """One phase of a test that took long."""

    seconds: float
    phase: str
    test: str


def closing_lines(log: str) -> list[str]:
    """Returns how each pytest ended: its counts of tests."""
    return CLOSING_LINE.findall(log)


def remarks(log: str) -> tuple[str, ...]:
    """Returns why a lane failed: failed tests, kernel complaints, the place where a test took too long; else the log's
    end.
    """
    found = (
        *FAILED_TEST.findall(log),
        *(complaint.replace("\n", " ") for complaint in COMPLAINT.findall(log)),
        *(f"STUCK {file}:{line} in {name}" for file, line, name in STUCK.findall(log)),
    )
    return tuple(line[:REMARK_WIDTH] for line in found or log.splitlines()[-REMARK_LINES:])


def unsteady(log: str) -> tuple[str, ...]:
    """Returns the reason for each command that the lab repeated."""
    return tuple(UNSTEADY.findall(log))


def slow_tests(log: str) -> tuple[Slow, ...]:
    """Returns pytest's slowest durations."""
    return tuple(Slow(seconds=float(seconds), phase=phase, test=test) for seconds, phase, test in DURATION.findall(log))
