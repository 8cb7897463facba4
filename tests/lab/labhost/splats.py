# SPDX-License-Identifier: Apache-2.0
"""Finds the kernel's complaints in its log."""

import re
from collections.abc import Iterable

# Only lines of the kernel itself: lines that user space writes to the log start with the program's name.
_COMPLAINT = re.compile(
    r"^\[\s*\d+\.\d+\](?:\[\s*[TC]\d+\])? (?:"
    r"(?:\[ )?BUG: |WARNING: |Oops|KASAN|UBSAN: |KCSAN: |kernel BUG at |INFO: task |INFO: possible recursive locking|"
    r"INFO: trying to register non-static key|kmemleak: \d+ new suspected memory leaks|"
    r".*(?:Oops: |BUG: KASAN|BUG: soft lockup|possible circular locking|sleeping function called|general protection|"
    r"unreferenced object|refcount_t: |list_(?:add|del) corruption|Kernel panic|self-detected stall|detected stalls)"
    r")"
)
_LINES_AFTER = 25
_BREAKPOINT = re.compile(
    r"Oops: int3: .*?^\[[^\n]* Code: [^\n]*\b([0-9a-f]{2}) <[0-9a-f]{2}>", re.MULTILINE | re.DOTALL
)


def complaints(log: str) -> list[str]:
    """Return each complaint with the lines that follow it, up to the next or a few dozen."""
    lines = log.splitlines()
    starts = [number for number, line in enumerate(lines) if _COMPLAINT.match(line)]
    return ["\n".join(lines[start:end]) for start, end in _extents(starts, len(lines))]


def _extents(starts: list[int], total: int) -> Iterable[tuple[int, int]]:
    """A complaint that begins within the lines of another is part of that one."""
    end = 0
    for start in starts:
        if start >= end:
            end = min(start + _LINES_AFTER, total)
            yield start, end


def stale_breakpoint(log: str) -> bool:
    """Whether the kernel stopped at a breakpoint that is no longer in its text.

    The kernel writes breakpoints while it changes its text (static keys), and removes them when no processor can be at
    them any more. A real machine never meets one later. QEMU's emulated processors rarely do: one processor translates
    the text while another writes to it without knowing yet of the translation.
    """
    found = _BREAKPOINT.search(log)
    return found is not None and found[1] != "cc"
