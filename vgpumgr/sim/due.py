# SPDX-License-Identifier: Apache-2.0
"""The engine time due to each group of a scenario, independent of the scheduler.

The reference is the project's one definition of entitlement (vgpumgr.entitlement): fluid water-filling by weight under
caps, over the groups that have work at each moment. A tenant with a constant backlog always has work. For a tenant with
requests, the same sharing decides when it has work (fluid.py): from a request's arrival until an ideal engine has
finished it. This ignores pauses of the host between two kernels, so the result is an estimate, and reports mark it.
Under `equal_share` and `fixed_share` a group is due the number of its slices divided by the number of places.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from vgpumgr.entitlement import Backlogged, entitled
from vgpumgr.sim import fluid, schema
from vgpumgr.sim.played import Asked, Intervals
from vgpumgr.sim.quantity import MILLION
from vgpumgr.sim.scenario import tenant_names

_Class = tuple[int, Fraction, int]
"""Weight, cap and slices: all that a group's part depends on."""


@dataclass(frozen=True)
class _Stretch:
    """A time between two changes of the scenario. `classes`: the class of each group that is present, by name."""

    start_ns: int
    end_ns: int
    classes: Mapping[str, _Class]


class Due:
    """Time due to each group by name. `exact`: no group has requests, so the times with work are known."""

    def __init__(self, scenario: schema.Scenario, asked: Mapping[str, Asked]) -> None:
        """`asked`: the requests of each group that has some; a group that is missing always has work."""
        self.exact = not asked
        self._stretches = list(_stretches(scenario))
        self._busy = _busy(scenario, self._stretches, asked)
        moments = [np.array([0, scenario.warm_up, scenario.duration], dtype=np.int64)]
        moments += [np.array([stretch.start_ns for stretch in self._stretches], dtype=np.int64)]
        moments += [intervals.ravel() for intervals in self._busy.values()]
        self.at_ns = np.unique(np.clip(np.concatenate(moments), 0, scenario.duration))
        """When anything changes, ascending."""
        self._shares = self._shares_of_classes(scenario)

    def time_ns(self, name: str) -> NDArray[np.float64]:
        """Return the time due to a group from the beginning until each of `at_ns`."""
        starts = self.at_ns[:-1]
        share = np.zeros(len(starts))
        for stretch in self._stretches:
            if name in stretch.classes:
                inside = (starts >= stretch.start_ns) & (starts < stretch.end_ns)
                share[inside] = self._shares[stretch.start_ns, stretch.classes[name]][inside]
        share[~_within(self._busy[name], starts)] = 0
        return np.concatenate([[0.0], np.cumsum(share * np.diff(self.at_ns))])

    def share(self, name: str, start_ns: int, end_ns: int) -> float:
        """Return the part of the time between two moments that is due to a group."""
        due_ns = np.interp([start_ns, end_ns], self.at_ns, self.time_ns(name))
        return float(due_ns[1] - due_ns[0]) / (end_ns - start_ns)

    def _shares_of_classes(self, scenario: schema.Scenario) -> dict[tuple[int, _Class], NDArray[np.float64]]:
        """Return, for each stretch and class, the part due to one busy group between each two of `at_ns`."""
        starts = self.at_ns[:-1]
        found: dict[tuple[int, _Class], NDArray[np.float64]] = {}
        for stretch in self._stretches:
            inside = np.flatnonzero((starts >= stretch.start_ns) & (starts < stretch.end_ns))
            classes = sorted(set(stretch.classes.values()))
            counts = np.zeros((len(inside), len(classes)), dtype=np.int64)
            for name, one in stretch.classes.items():
                counts[:, classes.index(one)] += _within(self._busy[name], starts[inside])
            distinct, which = np.unique(counts, axis=0, return_inverse=True)
            rates = _rates(scenario, stretch)
            parts = [rates(tuple(row.tolist())) for row in distinct]
            for index, one in enumerate(classes):
                share = np.zeros(len(starts))
                share[inside] = np.array([part[index] for part in parts])[which.ravel()]
                found[stretch.start_ns, one] = share
        return found


def _busy(scenario: schema.Scenario, stretches: Sequence[_Stretch], asked: Mapping[str, Asked]) -> dict[str, Intervals]:
    """Return when each group has work."""
    constant = {
        group.name: np.array([[group.tenant.starts, _end(group.tenant, scenario)]], dtype=np.int64)
        for group in _groups(scenario)
        if group.name not in asked
    }
    if not asked:
        return constant
    endless = {
        name: (intervals[:, 0], np.array([scenario.duration], dtype=np.int64)) for name, intervals in constant.items()
    }
    spans = []
    for stretch in stretches:
        order = sorted(set(stretch.classes.values()))
        classes = {name: order.index(one) for name, one in stretch.classes.items()}
        spans.append(fluid.Span(stretch.start_ns, stretch.end_ns, classes, _rates(scenario, stretch)))
    return constant | {name: found for name, found in fluid.busy(spans, {**asked, **endless}).items() if name in asked}


def _rates(scenario: schema.Scenario, stretch: _Stretch) -> fluid.Rates:
    """Return a function that maps the numbers of busy groups per class to the part due to one group of each class."""
    classes = sorted(set(stretch.classes.values()))
    if scenario.scheduler.policy == "best_effort":
        return functools.cache(functools.partial(_filled, classes))
    places = scenario.scheduler.places or sum(slices for *_, slices in stretch.classes.values())
    fixed = [slices / places for *_, slices in classes]
    return lambda _: fixed


def _filled(classes: Sequence[_Class], counts: tuple[int, ...]) -> list[float]:
    groups = {
        (index, number): Backlogged(weight=weight, cap=cap)
        for index, ((weight, cap, _), count) in enumerate(zip(classes, counts, strict=True))
        for number in range(count)
    }
    due = entitled(groups, 1)
    return [float(due.get((index, 0), 0)) for index in range(len(classes))]


def changed(change: schema.Change) -> dict[str, object]:
    """Return the limits that a change gives."""
    return {name: getattr(change, name) for name in change.model_fields_set & set(schema.Limits.model_fields)}


@dataclass
class _Group:
    name: str
    tenant: schema.Tenant
    limits: schema.Limits


def _groups(scenario: schema.Scenario) -> list[_Group]:
    return [_Group(name, tenant, tenant) for tenant in scenario.tenants for name in tenant_names(tenant)]


def _stretches(scenario: schema.Scenario) -> Iterator[_Stretch]:
    """Split the scenario at its changes. A group without work is present, too, until it leaves."""
    groups = _groups(scenario)
    leaving = {_end(tenant, scenario) for tenant in scenario.tenants}
    moments = sorted({0, scenario.duration} | leaving | {change.at for change in scenario.changes})
    for start_ns, end_ns in itertools.pairwise(moments):
        for change in scenario.changes:
            if change.at == start_ns:
                for group in groups:
                    if change.tenant in (group.name, group.tenant.name):
                        group.limits = group.limits.model_copy(update=changed(change))
        there = [group for group in groups if start_ns < _end(group.tenant, scenario)]
        yield _Stretch(start_ns, end_ns, {group.name: _class(group) for group in there})


def _class(group: _Group) -> _Class:
    """Return weight, cap and number of slices. If all slices have caps, their sum also bounds the cap."""
    cap = Fraction(group.limits.cap, MILLION) if group.limits.cap else Fraction(1)
    caps = [part.cap for part in group.tenant.slices if part.cap]
    if len(caps) == len(group.tenant.slices):
        cap = min(cap, Fraction(sum(caps), MILLION))
    return group.limits.weight or 1, cap, len(group.tenant.slices)


def _end(tenant: schema.Tenant, scenario: schema.Scenario) -> int:
    return min(tenant.leaves or scenario.duration, scenario.duration)


def _within(intervals: Intervals, at_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which moments lie in an interval. The intervals are ascending and disjoint."""
    if not len(intervals):
        return np.zeros(len(at_ns), dtype=np.bool_)
    index = np.searchsorted(intervals[:, 0], at_ns, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (at_ns < intervals[np.maximum(index, 0), 1])
    return inside
