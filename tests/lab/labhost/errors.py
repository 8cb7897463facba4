# SPDX-License-Identifier: Apache-2.0
"""Errors and exit statuses of the lab tool.

LabError            the tool cannot do what was asked; the message says what to change
  BuildError        a build step failed; names the log
"""

from pathlib import Path

EXIT_SPLAT = 70
"""The kernel of the lab host complained while COMMAND ran."""

EXIT_TIMEOUT = 124
"""The hard time limit passed (as in timeout(1))."""

EXIT_LAB_FAILED = 125
"""The lab itself failed: it could not be built or booted, or the host died without a report."""


class LabError(Exception):
    """An error that a person can act on; printed without a traceback."""


class BuildError(LabError):
    """A build step failed."""

    def __init__(self, step: str, log: Path, tail: str) -> None:
        super().__init__(f"{step} failed; the end of {log}:\n{tail}")
