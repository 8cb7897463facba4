# SPDX-License-Identifier: Apache-2.0
"""The shape of a benchmark's result, and how it is printed.

A module of this package that has `measure(*, quick: bool = False)` is an experiment. It returns:

    name, model (of the engine), seeds, baselines
    hashes: `digest` of the workload and of the schedule (or of whatever was decided)
    figures: table -> row -> value, `interval`, or a mapping of these by column
    targets: every `target`, met or missed; no target is ever left out or loosened
    losing: sentences that say where others do better, and what a figure does not show
    command: the command that measures it, unless it is `make bench-sched`

`quick` measures less, in the same shape, for a test; its figures mean nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Student's t, two-sided 95 %, by degrees of freedom; beyond the table the normal value is close enough.
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)


def interval(values: Sequence[float], *, digits: int = 3) -> dict[str, Any]:
    """Mean with its 95 % interval over seeds, and the worst and best seed."""
    mean = statistics.fmean(values)
    half = 0.0
    if len(values) > 1:
        t = T_95[len(values) - 2] if len(values) - 2 < len(T_95) else 1.96
        half = t * statistics.stdev(values) / math.sqrt(len(values))
    rounded = {"mean": mean, "low": mean - half, "high": mean + half, "least": min(values), "most": max(values)}
    return {"n": len(values), **{key: round(value, digits) for key, value in rounded.items()}}


def target(what: str, wanted: str, value: float, *, met: bool) -> dict[str, Any]:
    return {"what": what, "wanted": wanted, "value": round(value, 6), "met": bool(met)}


def digest(*parts: Any) -> str:
    """Return 16 hex digits that change with any of the parts: arrays, or values with a complete repr."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return total.hexdigest()[:16]


def show(result: dict[str, Any]) -> None:
    """Print a table for people on standard output."""
    print(f"{result['name']}\n  model: {result['model']}\n  seeds: {result['seeds']}")
    print(f"  baselines: {', '.join(result['baselines'])}")
    print(f"  hashes: {', '.join(f'{what} {value}' for what, value in result['hashes'].items())}\n")
    for table, rows in result["figures"].items():
        lines = table_lines(table, rows)
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        for line in lines:
            print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
        print()
    for one in result["targets"]:
        print(f"  {verdict(one)}")
    for loss in result["losing"]:
        print(f"  losing: {loss}")


def verdict(one: dict[str, Any]) -> str:
    return f"[{'met' if one['met'] else 'NOT MET':7}] {one['what']}: {one['value']:g} (wanted {one['wanted']})"


def table_lines(table: str, rows: dict[str, Any]) -> list[list[str]]:
    """Return cells as text, the headings first; a missing value is an empty cell."""
    plain = {row: figure if _has_columns(figure) else {"": figure} for row, figure in rows.items()}
    columns = list(dict.fromkeys(column for figures in plain.values() for column in figures))
    return [[table, *columns]] + [
        [row, *(cell(figures[column]) if column in figures else "" for column in columns)]
        for row, figures in plain.items()
    ]


def _has_columns(figure: Any) -> bool:
    return isinstance(figure, dict) and "low" not in figure


def cell(figure: Any) -> str:
    """Format an interval as mean, half width, and the range of seeds."""
    if isinstance(figure, dict):
        half = (figure["high"] - figure["low"]) / 2
        return f"{figure['mean']:g} ±{half:.2g} [{figure['least']:g}..{figure['most']:g}]"
    return f"{figure:g}" if isinstance(figure, float) and abs(figure) > 1e6 else f"{figure}"


def main(measure: Callable[..., dict[str, Any]]) -> None:
    """Run as a program: print the table, or with --json the stored result."""
    result = measure(quick="--quick" in sys.argv[1:])
    if "--json" in sys.argv[1:]:
        json.dump(result, sys.stdout, indent=1)
        print()
    else:
        show(result)
