# SPDX-License-Identifier: Apache-2.0
"""Turns the kernel's counters into each group's usage by hour, in whole numbers. Pure.

A counter's life lasts while its group stays configured and its GPU's engine runs. Usage is the counter's growth within
one life. Growth between two samples is spread evenly over the time between them, and rounded so that the hours add up
to it exactly. Only the monotonic clock measures that time. So setting the wall clock can move growth to another hour,
but never changes a sum.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

from vgpumgr_agent.backends import GroupKey, Observed, ObservedGroup

HOUR_NS = 3600 * 10**9


@dataclass(frozen=True, kw_only=True)
class Moment:
    """When a host was observed: the wall clock, and the monotonic clock before and after."""

    wall_ns: int
    before_ns: int
    after_ns: int


@dataclass(frozen=True, kw_only=True)
class GroupSample:
    """A configured group's counters. `id`: identifies the counters' life, 0 if not reported."""

    generation: int
    run_ns: int
    runs: int
    switches: int
    throttled_ns: int
    latency_ns: int
    lag_ns: int
    id: int = 0


NEW = GroupSample(generation=0, run_ns=0, runs=0, switches=0, throttled_ns=0, latency_ns=0, lag_ns=0)
"""The counters of a group that was just configured."""

_GROWING = ("generation", "run_ns", "runs", "switches", "throttled_ns", "latency_ns")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A host at one moment. `engines`: the age of each GPU's engine, in ns."""

    boot_id: str
    moment: Moment
    engines: Mapping[str, int]
    groups: Mapping[GroupKey, GroupSample]


@dataclass(frozen=True, kw_only=True)
class Used:
    """A group's usage; the members of `vgpumgr.wire.usage.Reading`. All except `due_ns` only grow."""

    run_ns: int = 0
    due_ns: int = 0
    assured_ns: int = 0
    throttled_ns: int = 0
    reserved_ns: int = 0

    def __add__(self, other: "Used") -> "Used":
        return Used(**{name: getattr(self, name) + getattr(other, name) for name in USED})

    def before(self, past: int, whole: int) -> "Used":
        """Return the part of this usage in the first `past` of `whole`, rounded down."""
        return Used(**{name: getattr(self, name) * past // whole for name in USED})

    def __sub__(self, other: "Used") -> "Used":
        return Used(**{name: getattr(self, name) - getattr(other, name) for name in USED})


USED = tuple(field.name for field in fields(Used))
NOTHING = Used()


def sampled(observed: Observed, moment: Moment) -> Sample:
    """Return the counted part of an observation."""
    engines = {gpu.address: gpu.wall_ns for gpu in observed.gpus.values()}
    engines |= {broker.gpu: broker.wall_ns for broker in observed.brokers.values() if broker.running}
    return Sample(
        boot_id=str(observed.boot_id),
        moment=moment,
        engines=engines,
        groups={
            key: GroupSample(
                generation=group.generation,
                run_ns=group.run_ns,
                runs=group.runs,
                switches=group.switches,
                throttled_ns=group.throttled_ns,
                latency_ns=group.latency_ns,
                lag_ns=group.lag_ns,
                id=group.id,
            )
            for key, group in observed.groups.items()
            if group.configured and key[0] in engines
        },
    )


def grown(last: Sample, now: Sample, observed: Observed) -> Iterator[tuple[int, GroupKey, Used]]:
    """Yield hour, group and usage between the samples `last` and `now`. `now` was made from `observed`."""
    running = {gpu for gpu in now.engines if _went_on(last, now, gpu)}
    for key, sample in now.groups.items():
        gpu = key[0]
        before = last.groups.get(key) if gpu in running else None
        if before is not None and not _same_life(before, sample):
            before = None
        first = before or NEW
        elapsed_ns = now.engines[gpu] - last.engines[gpu] if before else 0
        used = Used(
            run_ns=sample.run_ns - first.run_ns,
            due_ns=sample.run_ns - first.run_ns + sample.lag_ns - first.lag_ns,
            assured_ns=assured(observed, observed.groups[key], elapsed_ns),
            throttled_ns=sample.throttled_ns - first.throttled_ns,
            reserved_ns=sample.latency_ns - first.latency_ns,
        )
        if used != NOTHING:
            yield from ((hour, key, part) for hour, part in split(used, now.moment.wall_ns, _span_ns(last, now, gpu)))


def assured(observed: Observed, group: ObservedGroup, elapsed_ns: int) -> int:
    """Return a group's time if all groups always have work: its share by weight, limited by its cap."""
    weights = sum(each.weight for key, each in observed.groups.items() if key[0] == group.gpu and each.configured)
    due_ns = elapsed_ns * group.weight // weights if weights else 0
    if group.cap_us and group.cap_period_us:
        due_ns = min(due_ns, elapsed_ns * group.cap_us // group.cap_period_us)
    return due_ns


def split(used: Used, end_ns: int, span_ns: int) -> Iterator[tuple[int, Used]]:
    """Spread usage evenly over the `span_ns` before `end_ns`. Yield hours and parts that add up to `used`."""
    last_hour = max(0, end_ns) // HOUR_NS
    start_ns = max(0, end_ns - span_ns)
    told = NOTHING
    for hour in range(start_ns // HOUR_NS, last_hour):
        so_far = used.before((hour + 1) * HOUR_NS - start_ns, end_ns - start_ns)
        if so_far != told:
            yield hour, so_far - told
        told = so_far
    if used != told:
        yield last_hour, used - told


def _went_on(last: Sample, now: Sample, gpu: str) -> bool:
    """Return whether an engine has run without a break since the last sample.

    If it has, its age has grown by at least the time since then.

    A restarted engine cannot have that age, unless the engine before it was younger than a look takes. Ages and times
    are from the kernel's monotonic clock.
    """
    if last.boot_id != now.boot_id or gpu not in last.engines:
        return False
    least_ns = now.moment.before_ns - last.moment.after_ns
    return now.engines[gpu] >= last.engines[gpu] + max(0, least_ns)


def _same_life(before: GroupSample, sample: GroupSample) -> bool:
    if before.id and sample.id and before.id != sample.id:
        return False
    return all(getattr(sample, name) >= getattr(before, name) for name in _GROWING)


def _span_ns(last: Sample, now: Sample, gpu: str) -> int:
    """Return the time in which the counters grew: the time since the last look, but at most the engine's age."""
    age_ns = now.engines[gpu]
    if last.boot_id != now.boot_id:
        return age_ns
    return min(age_ns, max(0, now.moment.after_ns - last.moment.after_ns))
