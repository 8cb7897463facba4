# SPDX-License-Identifier: Apache-2.0
"""Plays a scenario for each point of a grid (timeslices, policies, caps, ...) and ranks the points.

Points that meet every target in every seed come first. The others follow, ordered by the number of missed targets and
by how far they are missed. Next counts the worst share error in whole percent, because smaller differences depend on
the seeds; then the number of switches.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vgpumgr.errors import ScenarioError
from vgpumgr.sim.notes import overloads
from vgpumgr.sim.played import Progress, part_of
from vgpumgr.sim.report import Report
from vgpumgr.sim.report import to_json as report_json

FORMAT = "vgpumgr.sweep/1"
MAX_POINTS = 1024
OBJECTIVE = (
    "every target met in every seed, else the fewest missed, then the smallest miss;"
    " then the smallest share error in whole percent; then the fewest switches"
)


@dataclass(frozen=True)
class Axis:
    """A field and the values that it takes in turn."""

    field: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One combination of values. `refused`: why it cannot be played."""

    values: tuple[str, ...]
    report: Report | None
    refused: str = ""

    @property
    def missed(self) -> list[str]:
        """The missed targets as text."""
        if self.report is None:
            return [self.refused]
        return [str(verdict) for verdict in self.report.verdicts if not verdict.met]

    @property
    def targets(self) -> list[str]:
        """All targets with the worst seed's figures as text, missed ones first."""
        if self.report is None:
            return [self.refused]
        verdicts = sorted(self.report.verdicts, key=lambda verdict: verdict.met)
        return [f"{'met' if verdict.met else 'missed'} {verdict}" for verdict in verdicts]

    @property
    def share_error(self) -> float | None:
        """The largest absolute share error of any tenant in any seed. None if no tenant always has work."""
        if self.report is None:
            return None
        errors = [tenant.figures.get("share_error") for tenant in self.report.tenants]
        return max((abs(value) for figure in errors if figure for value in figure.by_seed), default=None)

    @property
    def switches_per_s(self) -> float:
        return self.report.engine["switches_per_s"].mean if self.report else float("inf")

    @property
    def rank(self) -> tuple[bool, int, float, int, float]:
        """The sort key; smaller is better."""
        excess = sum(verdict.excess for verdict in self.report.verdicts) if self.report else 0.0
        percent = int(100 * (self.share_error or 0.0))
        return (self.report is None, len(self.missed), excess, percent, self.switches_per_s)


def axes_of(given: Sequence[str]) -> list[Axis]:
    """Return the axes of ``FIELD=VALUE,VALUE,...``; a comma inside brackets belongs to the value. ScenarioError."""
    found = []
    for text in given:
        field, equals, values = text.partition("=")
        parts = tuple(part.strip() for part in _split(values))
        if not equals or not field.strip() or not all(parts):
            raise ScenarioError(
                f"--sweep {text[:80]}: expected FIELD=VALUE,VALUE,..., like tenants.*.timeslice=500us,1ms,2ms"
            )
        if twice := next((part for part in parts if parts.count(part) > 1), None):
            raise ScenarioError(f"--sweep {field.strip()[:80]}: {twice[:80]!r} is given twice; expected it once")
        found.append(Axis(field.strip(), parts))
    fields = [axis.field for axis in found]
    if twice := next((field for field in fields if fields.count(field) > 1), None):
        raise ScenarioError(f"--sweep {twice[:80]}: the field is given twice; give all its values at once")
    points = 1
    for axis in found:
        points *= len(axis.values)
    if points > MAX_POINTS:
        raise ScenarioError(f"--sweep: {points} combinations: expected at most {MAX_POINTS}; give fewer values")
    return found


def _split(text: str) -> Iterator[str]:
    depth, start = 0, 0
    for index, char in enumerate(text):
        depth += (char in "[{") - (char in "]}")
        if char == "," and depth == 0:
            yield text[start:index]
            start = index + 1
    yield text[start:]


def sweep(
    axes: Sequence[Axis],
    simulate: Callable[[list[str], Progress], Report],
    progress: Progress = lambda _: None,
) -> list[Point]:
    """Return all points, the best first. ScenarioError if none can be played.

    `simulate` gets settings as ``FIELD=VALUE`` and a progress function; it may raise ScenarioError. A refused point,
    for example a timeslice below the engine's floor, is also in the result.
    """
    grid = list(itertools.product(*(axis.values for axis in axes)))
    points = []
    for index, values in enumerate(grid):
        settings = [f"{axis.field}={value}" for axis, value in zip(axes, values, strict=True)]
        try:
            found = simulate(settings, part_of(progress, index, len(grid)))
            points.append(Point(values, found))
        except ScenarioError as error:
            points.append(Point(values, None, str(error)))
    if all(point.report is None for point in points):
        raise ScenarioError(*dict.fromkeys(point.refused for point in points))
    return sorted(points, key=lambda point: point.rank)


def overloads_of(points: Sequence[Point]) -> list[str]:
    """Return a line for each tenant that asks for more than its due in every point, as it reads in the first point."""
    played = [dict(overloads(point.report)) for point in points if point.report is not None]
    return [line for tenant, line in played[0].items() if all(tenant in one for one in played)]


def to_json(axes: Sequence[Axis], points: Sequence[Point]) -> dict[str, Any]:
    """Return the content that `--json` writes."""
    return {
        "format": FORMAT,
        "objective": OBJECTIVE,
        "fields": [axis.field for axis in axes],
        "points": [
            {
                "values": list(point.values),
                "met": not point.missed,
                "missed": point.missed,
                "share_error": point.share_error,
                "switches_per_s": point.switches_per_s if point.report else None,
                "simulation": report_json(point.report) if point.report else None,
            }
            for point in points
        ],
    }
