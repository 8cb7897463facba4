# SPDX-License-Identifier: Apache-2.0
"""Invented results of tests, in the form that the experiments return."""

from collections.abc import Sequence
from typing import Any


def setting(a: int, b: int, mean: float, half: float = 0.004, outcome: str = "honoured") -> dict[str, Any]:
    return {
        "timeslice_us": {"A": a, "B": b},
        "expected": a / (a + b),
        "share": {"mean": mean, "low": mean - half, "high": mean + half, "count": 5},
        "samples": [mean] * 5,
        "outcome": outcome,
    }


def measured(
    *,
    t1: str = "pass",
    t2: str = "pass",
    honoured: str = "yes",
    t4: str = "pass",
    t10: str = "pass",
    t11: str = "pass",
    settings: Sequence[dict[str, Any]] = (),
) -> dict[str, dict[str, Any]]:
    """Results of a GPU that honours timeslices, except for the given arguments."""
    return {
        "T1": {"verdict": t1, "reason": "", "figures": {}, "settings": []},
        "T2": {
            "verdict": t2,
            "reason": "",
            "figures": {"honoured": honoured},
            "settings": list(settings) or [setting(2048, 6144, 0.25), setting(1400, 2600, 0.35)],
        },
        "T4": {"verdict": t4, "reason": "", "figures": {}, "settings": []},
        "T10": {"verdict": t10, "reason": "", "figures": {}, "settings": []},
        "T11": {"verdict": t11, "reason": "so it is", "figures": {}, "settings": []},
    }
