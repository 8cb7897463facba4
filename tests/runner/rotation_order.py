# SPDX-License-Identifier: Apache-2.0
"""The command of the long lanes with which a CI run begins, and the order of the others.

A CI run has time for only a few of them. The unit is one command, so a lane of eight hours does not block the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from tests.lanes import Lane


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command. `number`: its number in the lane, from 1. `usual_s`: its usual duration, None if unknown."""

    lane: str
    number: int
    command: tuple[str, ...]
    limit_s: int
    usual_s: int | None

    @property
    def name(self) -> str:
        return f"{self.lane} {self.number}"

    def fits(self, left_s: float) -> bool:
        """Returns whether it may end in time; true if its duration is unknown."""
        return self.usual_s is None or self.usual_s <= left_s


def order(lanes: Sequence[Lane], day: date) -> tuple[Step, ...]:
    """Returns every command of the rotating lanes once. Each day begins with the command after the first one of the day
    before.
    """
    steps = [
        Step(lane=lane.name, number=number, command=command, limit_s=lane.limit_s, usual_s=usual_s)
        for lane in lanes
        if lane.long and lane.rotates
        for number, (command, usual_s) in enumerate(lane.timed_commands(), 1)
    ]
    first = day.toordinal() % len(steps) if steps else 0
    return (*steps[first:], *steps[:first])
