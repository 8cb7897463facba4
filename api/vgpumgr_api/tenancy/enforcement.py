# SPDX-License-Identifier: Apache-2.0
"""Computes what the kernel enforces from claims and quotas, in integers. Pure.

If a tenant uses more share than its quota grants (after a cut), each of its slices is scaled by limit / used. A project
is scaled by its own factor or its account's, whichever is smaller. No slice is scaled below 1 permille, so that its VM
keeps running.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from vgpumgr.control.executor_settings import LENDING
from vgpumgr.wire.common import BROKER, PERMILLE, TIMESLICE_US_MAX, Band, Mode, Policy

Key = TypeVar("Key", bound=Hashable)

CAP_PERIOD_MIN_US = 10_000
CAP_PERIOD_MAX_US = 1_000_000
CAP_PERIOD_TIMESLICES = 10

TIMESLICE_US_DEFAULT = 2000
"""Each tenant's initial timeslice."""

SWITCHES_PER_DEFAULT_TIMESLICE = 50
"""The default timeslice as a multiple of the cost of a switch: with 50, switches take 2 % of the GPU's time."""

SUITED_TIMESLICE_US_MAX = 10_000
"""A longer timeslice costs tenants more waiting than it saves."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """How a backend enforces, in the terms of `vgpumgr.wire.resources.Enforcement`; empty if unknown."""

    scope: str = ""
    enforced_by: str = ""
    mem_enforced_by: str = ""


class Served(Protocol):
    """The members of a GPU that determine how it is enforced."""

    @property
    def backend(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def pci_ids(self) -> str: ...


_KERNEL = "kmod"
_NVIDIA = "10de:"
"""The PCI vendor of GPUs on which stopping a process does not stop the work that it has submitted."""


def means_of(gpu: Served) -> Means:
    """Returns the means of enforcement for a GPU as its host reported it.

    The kernel times the work of its own engines. An engine that the kernel lends to a slice is returned by the slice's
    executor. On GPUs where stopping an executor also stops its submitted work, a gate stops executors that return the
    engine late. A broker must report its means itself.
    """
    if gpu.backend == BROKER:
        return Means(scope="tenant", mem_enforced_by="fence")
    if gpu.backend != _KERNEL:
        return Means()
    if gpu.engine != LENDING:
        return Means(scope="tenant", enforced_by="kernel", mem_enforced_by="kernel")
    gated = gpu.pci_ids != "" and not gpu.pci_ids.startswith(_NVIDIA)
    return Means(scope="tenant", enforced_by="kernel+gate" if gated else "executor", mem_enforced_by="executor")


@dataclass(frozen=True, kw_only=True)
class Use:
    """An owner's limit of share and its use, in permille over all GPUs."""

    limit: int
    used: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """A slice of a group: its enforced share, and whether it is limited to that share even while others are idle.

    `reserve_period_us`: the longest time that the slice's work waits for its share, 0 outside the latency band.
    """

    permille: int
    strict: bool
    reserve_period_us: int = 0


@dataclass(frozen=True, kw_only=True)
class Cap:
    """At most `us` of engine time per `period_us`; zeros mean no cap."""

    us: int = 0
    period_us: int = 0


@dataclass(frozen=True, kw_only=True)
class GroupPlan(Generic[Key]):
    """The parameters of a group and the caps of its slices. A slice's weight is its enforced share.

    `reserve`: the time that a group of the latency band gets before all others; zeros outside that band.
    """

    weight: int
    timeslice_us: int
    cap: Cap
    slice_caps: Mapping[Key, Cap]
    mode: Mode
    reserve: Cap

    @property
    def band(self) -> Band:
        """The band in which the group competes."""
        return Band.LATENCY if self.reserve.us else Band.FAIR


def enforced_permille(share_permille: int, owners: Sequence[Use]) -> int:
    """Returns a slice's enforced share, scaled from its claimed share. `owners`: its tenant and its account."""
    scaled = (share_permille * use.limit // use.used for use in owners if use.used > use.limit)
    return max(1, min(scaled, default=share_permille))


def counted_permille(share_permille: int, fair_ratio_permille: int) -> int:
    """Returns the share that a slice counts on its GPU: its assured share. For a strict slice the ratio is 1000."""
    return -(-share_permille * PERMILLE // fair_ratio_permille)


@dataclass(frozen=True, kw_only=True)
class Timeslice:
    """A tenant's timeslice. `max_us`: the maximum for the tenant and its account."""

    us: int
    max_us: int


def effective_timeslice_us(own: Timeslice, gpu_min_us: int, switch_cost_us: int) -> int:
    """Returns a timeslice that the GPU accepts.

    A tenant with the default timeslice has never chosen one, and gets a timeslice that suits the GPU.
    """
    wanted_us = own.us
    if wanted_us == TIMESLICE_US_DEFAULT:
        suited_us = min(SWITCHES_PER_DEFAULT_TIMESLICE * switch_cost_us, SUITED_TIMESLICE_US_MAX)
        wanted_us = max(wanted_us, min(suited_us, own.max_us))
    return min(max(wanted_us, gpu_min_us), TIMESLICE_US_MAX)


def reserved_permille(counted: int, max_chunk_us: int, reserve_period_us: int) -> int:
    """Returns how much a latency slice counts of a GPU's reservable time: its share, and one piece of work per period.

    The kernel counts one piece for a whole group, so this is never less than the kernel's count.
    """
    return counted - (-PERMILLE * max_chunk_us // reserve_period_us)


def plan_group(parts: Mapping[Key, Part], timeslice_us: int, policy: Policy = Policy.BEST_EFFORT) -> GroupPlan[Key]:
    """Returns the configuration for a tenant's claimed slices on one GPU. There must be at least one.

    If all slices are strict, the group is capped at their sum. If only some slices are strict, each of these is capped
    individually, because a cap of the group would also limit the fair slices. Slices of the latency band get their
    shares reserved, within the shortest of their periods. Under a policy other than best_effort the kernel divides time
    by slices or places, and rejects caps and reservations, so the result has none.
    """
    if policy is not Policy.BEST_EFFORT:
        return GroupPlan(
            weight=sum(part.permille for part in parts.values()),
            timeslice_us=timeslice_us,
            cap=Cap(),
            slice_caps=dict.fromkeys(parts, Cap()),
            mode=Mode.STRICT if policy is Policy.FIXED_SHARE else Mode.FAIR,
            reserve=Cap(),
        )
    period_us = min(max(CAP_PERIOD_TIMESLICES * timeslice_us, CAP_PERIOD_MIN_US), CAP_PERIOD_MAX_US)
    weight = sum(part.permille for part in parts.values())
    all_strict = all(part.strict for part in parts.values())
    cap = _cap(weight, period_us) if all_strict else Cap()
    return GroupPlan(
        weight=weight,
        timeslice_us=timeslice_us,
        cap=cap,
        slice_caps={
            key: _cap(part.permille, period_us) if part.strict and not all_strict else Cap()
            for key, part in parts.items()
        },
        mode=Mode.STRICT if cap.us else Mode.FAIR,
        reserve=_reserve([part for part in parts.values() if part.reserve_period_us], cap),
    )


def _reserve(parts: Sequence[Part], cap: Cap) -> Cap:
    """Returns the group's reservation: the sum of its latency slices' shares, but not more than its cap."""
    if not parts:
        return Cap()
    period_us = min(part.reserve_period_us for part in parts)
    us = period_us * sum(part.permille for part in parts) // PERMILLE
    return Cap(us=min(us, period_us * cap.us // cap.period_us) if cap.us else us, period_us=period_us)


def _cap(permille: int, period_us: int) -> Cap:
    if permille >= PERMILLE:
        return Cap()
    return Cap(us=period_us * permille // PERMILLE, period_us=period_us)
