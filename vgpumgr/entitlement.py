# SPDX-License-Identifier: Apache-2.0
"""The share that every group is entitled to: fluid water-filling, in exact arithmetic.

This is the one definition of entitlement in the project; every "share error" is measured against it. An ideal engine,
divisible without limit, would serve all backlogged groups at once, in proportion to their weights. No group gets more
than its cap, and the time that a capped group leaves goes to the others, again by weight. (Generalized processor
sharing: Parekh and Gallager, 1993; filling up to caps: max-min fairness, Bertsekas and Gallager, Data Networks, section
6.5.2.)

Standard library only. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Time = int | Fraction


@dataclass(frozen=True, kw_only=True)
class Backlogged:
    """A group that always has work: its weight, and its cap as a fraction of the engine."""

    weight: int
    cap: Fraction | None = None


def entitled(groups: Mapping[Key, Backlogged], window: Time) -> dict[Key, Fraction]:
    """Return the engine time due to each backlogged group in `window`, in the unit of `window`.

    `window` is the time that can be divided: subtract the cost of switches and holds first. The results add up to
    `window` unless every group is at its cap.
    """
    due: dict[Key, Fraction] = {}
    left = Fraction(window)
    open_groups = dict(groups)
    while open_groups:
        level = left / sum(group.weight for group in open_groups.values())
        full = {
            key: group.cap * window
            for key, group in open_groups.items()
            if group.cap is not None and group.cap * window <= level * group.weight
        }
        if not full:
            due.update((key, level * group.weight) for key, group in open_groups.items())
            break
        due.update(full)
        left -= sum(full.values())
        for key in full:
            del open_groups[key]
    return due


def entitled_over(
    stretches: Iterable[tuple[Mapping[Key, Backlogged], Time]],
) -> dict[Key, Fraction]:
    """Return the sum of `entitled` over stretches of time, each with its own backlogged groups."""
    total: dict[Key, Fraction] = {}
    for groups, window in stretches:
        for key, due in entitled(groups, window).items():
            total[key] = total.get(key, Fraction(0)) + due
    return total
