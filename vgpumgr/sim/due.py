# SPDX-License-Identifier: Apache-2.0
"""What each group of a scenario is due over time, whatever the scheduler.

The reference is the project's one definition of entitlement (vgpumgr.entitlement): fluid
water-filling by weight under caps, over the groups that are backlogged at each moment. A tenant with
a constant backlog always is. One with requests counts as backlogged while a request of it has come
and is not done, also while its host is busy between two kernels; so its part is exact only for
requests without such pauses, and reports mark it. Under `equal_share` and `fixed_share` a group is
due its slices by places.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from vgpumgr.entitlement import Backlogged, entitled
from vgpumgr.sim import schema
from vgpumgr.sim.played import Intervals
from vgpumgr.sim.quantity import MILLION
from vgpumgr.sim.scenario import tenant_names

_Class = tuple[int, Fraction, int]
"""Weight, cap and slices: all that a group's part depends on."""


@dataclass(frozen=True)
class _Stretch:
    """A time between two changes of the scenario. `classes`: of all groups that are there."""

    start_ns: int
    end_ns: int
    classes: Mapping[str, _Class]


class Due:
    """Time due to each group by name. `exact`: nobody has requests, so nothing is taken for backlog that is not."""

    def __init__(self, scenario: schema.Scenario, busy: Mapping[str, Intervals]) -> None:
        """`busy`: when each group with requests had one that was not done; who is missing always has work."""
        self.exact = not busy
        self._stretches = list(_stretches(scenario))
        self._busy = {
            group.name: busy.get(group.name, _presence(group.tenant, scenario.duration)) for group in _groups(scenario)
        }
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
        """Return the part that is due of the time between two moments."""
        due_ns = np.interp([start_ns, end_ns], self.at_ns, self.time_ns(name))
        return float(due_ns[1] - due_ns[0]) / (end_ns - start_ns)

    def _shares_of_classes(self, scenario: schema.Scenario) -> dict[tuple[int, _Class], NDArray[np.float64]]:
        """For each stretch and class the part due to one busy group of it, between each two of `at_ns`."""
        starts = self.at_ns[:-1]
        found: dict[tuple[int, _Class], NDArray[np.float64]] = {}
        for stretch in self._stretches:
            inside = np.flatnonzero((starts >= stretch.start_ns) & (starts < stretch.end_ns))
            classes = sorted(set(stretch.classes.values()))
            counts = np.zeros((len(inside), len(classes)), dtype=np.int64)
            for name, one in stretch.classes.items():
                counts[:, classes.index(one)] += _within(self._busy[name], starts[inside])
            distinct, which = np.unique(counts, axis=0, return_inverse=True)
            places = scenario.scheduler.places or sum(slices for *_, slices in stretch.classes.values())
            if scenario.scheduler.policy == "best_effort":
                parts = [_filled(classes, row.tolist()) for row in distinct]
            else:
                parts = [[slices / places for *_, slices in classes]] * len(distinct)
            for index, one in enumerate(classes):
                share = np.zeros(len(starts))
                share[inside] = np.array([part[index] for part in parts])[which.ravel()]
                found[stretch.start_ns, one] = share
        return found


def _filled(classes: Sequence[_Class], counts: Sequence[int]) -> list[float]:
    """The part of one group of each class when so many of each are backlogged."""
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
    """Who is attached has its places, at work or not; who has left has none."""
    groups = _groups(scenario)
    leaving = {min(tenant.leaves or scenario.duration, scenario.duration) for tenant in scenario.tenants}
    moments = sorted({0, scenario.duration} | leaving | {change.at for change in scenario.changes})
    for start_ns, end_ns in itertools.pairwise(moments):
        for change in scenario.changes:
            if change.at == start_ns:
                for group in groups:
                    if change.tenant in (group.name, group.tenant.name):
                        group.limits = group.limits.model_copy(update=changed(change))
        there = [group for group in groups if start_ns < (group.tenant.leaves or scenario.duration)]
        yield _Stretch(start_ns, end_ns, {group.name: _class(group) for group in there})


def _class(group: _Group) -> _Class:
    """The cap is the group's own, or that of its slices if all have one."""
    cap = Fraction(group.limits.cap, MILLION) if group.limits.cap else Fraction(1)
    caps = [part.cap for part in group.tenant.slices if part.cap]
    if len(caps) == len(group.tenant.slices):
        cap = min(cap, Fraction(sum(caps), MILLION))
    return group.limits.weight or 1, cap, len(group.tenant.slices)


def _presence(tenant: schema.Tenant, duration_ns: int) -> Intervals:
    return np.array([[tenant.starts, min(tenant.leaves or duration_ns, duration_ns)]], dtype=np.int64)


def _within(intervals: Intervals, at_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of the moments lie in one of the intervals, which ascend and do not touch."""
    if not len(intervals):
        return np.zeros(len(at_ns), dtype=np.bool_)
    index = np.searchsorted(intervals[:, 0], at_ns, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (at_ns < intervals[np.maximum(index, 0), 1])
    return inside


def merged(intervals: Intervals) -> Intervals:
    """Return what any of the intervals covers, ascending and without touching."""
    if not len(intervals):
        return intervals.reshape(0, 2)
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ordered[:, 1])
    first = np.flatnonzero(np.append(True, ordered[1:, 0] > ends[:-1]))
    return np.stack([ordered[first, 0], ends[np.append(first[1:], len(ordered)) - 1]], axis=1)
