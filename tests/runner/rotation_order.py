# SPDX-License-Identifier: Apache-2.0
"""Which command of which long lane a run in CI begins with, and in which order the others follow.

A run in CI has time for a few of them. The unit is one command, so that a lane of eight hours does not keep others from
being run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from tests.lanes import Lane


@dataclass(frozen=True, kw_only=True)
class Step:
    """One command. `number`: counted from 1, of its lane. `usual_s`: what it usually takes, None if nobody knows."""

    lane: str
    number: int
    command: tuple[str, ...]
    limit_s: int
    usual_s: int | None

    @property
    def name(self) -> str:
        return f"{self.lane} {self.number}"

    def fits(self, left_s: float) -> bool:
        """Whether it may end in time. What nobody knows the duration of may."""
        return self.usual_s is None or self.usual_s <= left_s


def order(lanes: Sequence[Lane], day: date) -> tuple[Step, ...]:
    """Every command of the lanes that rotate, once. Each day begins with the command after yesterday's first."""
    steps = [
        Step(lane=lane.name, number=number, command=command, limit_s=lane.limit_s, usual_s=usual_s)
        for lane in lanes
        if lane.long and lane.rotates
        for number, (command, usual_s) in enumerate(lane.timed_commands(), 1)
    ]
    first = day.toordinal() % len(steps) if steps else 0
    return (*steps[first:], *steps[:first])
