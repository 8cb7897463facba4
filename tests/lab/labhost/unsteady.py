# SPDX-License-Identifier: Apache-2.0
"""Separates failures that only the lab can have caused from failures that the product may have caused.

Only the former are run again. A kernel complaint, a status that the command reported and an expired time limit may all
come from the product.
"""

import re
from pathlib import Path

from labhost import splats
from labhost.errors import EXIT_LAB_FAILED

_KILLED = re.compile(r"^QEMU was killed by (SIG\w+)$", re.MULTILINE)


def end_of_qemu(status: int, name: str) -> str:
    """The line at the end of QEMU's log. `name` is that of the signal, if the status, in the form of Popen, is below
    0."""
    return f"QEMU was killed by {name}" if status < 0 else f"QEMU ended with exit status {status}"


def fault(status: int, directory: Path) -> str | None:
    """The reason why a failed run with this status and these logs is the lab's fault; None if the product may have
    caused it."""
    if status == 0:
        return None
    serial_logs = [log.read_text(errors="replace") for log in directory.rglob("serial.log")]
    if any(splats.stale_breakpoint(log) for log in serial_logs):
        return "the emulator executed a breakpoint that the kernel had taken away"
    reported = _text(directory / "report").startswith("status ")
    if status != EXIT_LAB_FAILED or reported or any(splats.complaints(log) for log in serial_logs):
        return None
    end = _text(directory / "qemu.log")
    if killed := _KILLED.search(end):
        return f"QEMU was killed by {killed[1]}"
    if "Triple fault" in _text(directory / "reset.log"):
        return "a processor had a triple fault"
    if "\nQEMU ended with exit status 0\n" in f"\n{end}":
        return "the lab host powered off before the command's end"
    return None


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""
