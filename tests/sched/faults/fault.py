# SPDX-License-Identifier: Apache-2.0
"""The definition of a seeded fault."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`edits`: texts of a file of kmod/sched, each of which occurs there once, and their replacements."""

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]


def fault(name: str, file: str, old: str, new: str, *more: tuple[str, str]) -> Fault:
    return Fault(name, file, ((old, new), *more))
