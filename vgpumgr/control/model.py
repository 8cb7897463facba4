# SPDX-License-Identifier: Apache-2.0
"""GPUs, tenants and slices as the kernel reports them: values copied at one moment.

Counters only grow unless said otherwise. Times ending in `_ns` and `_us` are nanoseconds and microseconds of the
monotonic clock.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class RunHistogram:
    """Lengths of ended runs. `buckets`: (least length in ns, count), ascending, without empty buckets.

    There are four buckets per power of two, one bucket below 1024 ns and one from 2**34 ns on.
    """

    buckets: tuple[tuple[int, int], ...] = ()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.buckets)

    @property
    def total(self) -> int:
        """The number of counted runs."""
        return sum(count for _, count in self.buckets)

    def since(self, earlier: "RunHistogram") -> "RunHistogram":
        """Return the runs counted since `earlier` was read."""
        before = dict(earlier.buckets)
        grown = ((start_ns, count - before.get(start_ns, 0)) for start_ns, count in self.buckets)
        return RunHistogram(tuple(bucket for bucket in grown if bucket[1]))


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator. `name`: PCI address.

    `attach`: "any", or "permit" if opening a slice needs a permit. `timeslice_min_us`: the shortest timeslice and least
    burst accepted. `max_chunk_us`: the longest uninterruptible piece. `idle_ns`: the part of `wall_ns` in which no
    tenant had the engine. `tenants`: the number of tenants that are configured here or named by a slice. `policy`:
    "best_effort", "equal_share" or "fixed_share", which sells `places`. `reserve_limit_permille`: the most of the
    engine that may be reserved. `generation`: for `if_generation`. `event_seq`: number of the last event of any GPU.
    `wedged`: the engine no longer answers, and executes nothing until the driver is bound again. `driver`: the driver
    to which the function was bound when it appeared; "" if the module does not report it. `adopted`: that driver is the
    vendor's.
    """

    name: str
    engine: str
    memory_total_bytes: int
    memory_reserved_bytes: int
    attach: str
    timeslice_min_us: int
    max_chunk_us: int
    wall_ns: int
    idle_ns: int
    switches: int
    picks: int
    slices: int
    tenants: int
    policy: str = "best_effort"
    places: int = 0
    reserve_limit_permille: int = 0
    generation: int = 0
    event_seq: int = 0
    wedged: bool = False
    driver: str = ""
    adopted: bool = False


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A tenant's group on one GPU.

    Without `configured`, the tenant is only a name that slices carry: parameters and counters are 0, and the slices run
    nothing. `cap_us` 0: no cap. `burst_us` 0: one timeslice. `generation`: for `if_generation`. `slices`: the number of
    slices that name the tenant. `id`: identifies the set of counters; a tenant that is deleted and configured again
    gets another id. 0 if the module does not report it. `uncut_runs`: runs that the timeslice ended.
    `short_uncut_runs`: those of `uncut_runs` that were shorter than the timeslice; a check, always 0.
    `longest_run_ns`: the longest run since the present timeslice was set. `lag_ns`: the time that the engine owes the
    group, negative if the group is in debt; it grows and shrinks.

    `mode`: "fair" or "strict". `band`: "fair", or "latency"; in "fair", `reserve_us` to `inversion_burst_us` are 0.
    `latency_ns`: the part of `run_ns` that used the reservation. `hold_ns`: the part of `latency_ns` in which the
    engine idled for the tenant. `demotions`: how often the reservation was used up. `fills`: pieces that other tenants
    executed during `holds`. `inversion_ns`: the part of the pieces' time in which this tenant had work. `ghost_ns`: the
    part of `run_ns` in which the engine idled in turns of slices without work. `throttled`: the group's cap has run
    out.
    """

    gpu: str
    name: str
    configured: bool
    generation: int
    slices: int
    weight: int = 0
    timeslice_us: int = 0
    cap_us: int = 0
    cap_period_us: int = 0
    burst_us: int = 0
    run_ns: int = 0
    runs: int = 0
    uncut_runs: int = 0
    short_uncut_runs: int = 0
    longest_run_ns: int = 0
    throttles: int = 0
    throttled_ns: int = 0
    switches: int = 0
    lag_ns: int = 0
    mode: str = "fair"
    band: str = "fair"
    reserve_us: int = 0
    reserve_period_us: int = 0
    hold_max_us: int = 0
    inversion_permille: int = 0
    inversion_burst_us: int = 0
    latency_ns: int = 0
    demotions: int = 0
    holds: int = 0
    hold_ns: int = 0
    fills: int = 0
    inversion_ns: int = 0
    ghost_ns: int = 0
    histogram: RunHistogram = RunHistogram()
    throttled: bool = False
    id: int = 0


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One slice. `tenant`: "" for none. Weight and cap apply inside the tenant's group.

    `open`: a VMM has opened it. `scheduled`: its tenant is configured, and it is not being removed. `error`: enum
    vgpu_error of vgpu_device.h, 0 for none; `error_index`: the item at fault. `run_ns` and its part `ghost_ns` (see
    Tenant) count since the slice got its tenant; all other counters since it was created. `items`: answered items.
    `queued`: submitted items not yet answered; it grows and shrinks. `throttled`: the slice's own cap has run out.
    """

    gpu: str
    uuid: str
    tenant: str
    weight: int
    cap_us: int
    cap_period_us: int
    burst_us: int
    open: bool
    scheduled: bool
    memory_bytes: int
    error: int
    error_index: int
    run_ns: int
    items: int
    dma_bytes: int
    doorbells: int
    errors: int
    resets: int
    dropped: int
    queued: int
    ghost_ns: int = 0
    throttled: bool = False


@dataclass(frozen=True, kw_only=True)
class MdevType:
    """A memory class of a GPU. `id`: as in ``vgpumgr-mem16m``. `available`: how many more slices of it fit."""

    id: str
    name: str
    description: str
    device_api: str
    available: int


class EventKind(StrEnum):
    """The kind of an event: the operations of vgpumgr.yaml that end in -ntf."""

    CREATED = "created"
    REMOVED = "removed"
    REVOKED = "revoked"
    FAULT = "fault"
    RESET = "reset"
    THROTTLED = "throttled"
    UNTHROTTLED = "unthrottled"
    OVERRUN = "overrun"
    LOST = "lost"
    OTHER = "other"  # sent by a newer module


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened `count` times, the last time at `time_ns`.

    The event is about a slice if `slice` is not "", else about a tenant if `tenant` is not "", else about the GPU.
    `sequence`: counts the events of all GPUs. `pid`, `comm`: in "revoked", the process that had the slice open.
    `error`, `error_index`: set in "fault". `length_ns`, `limit_ns`: set in "overrun". In "lost", `count` events could
    not be reported.
    """

    kind: EventKind
    sequence: int
    time_ns: int
    count: int
    gpu: str
    tenant: str = ""
    slice: str = ""
    pid: int = 0
    comm: str = ""
    error: int = 0
    error_index: int = 0
    length_ns: int = 0
    limit_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All objects, with the effect of every event up to `sequence`, and possibly of later ones."""

    sequence: int
    gpus: tuple[Gpu, ...]
    tenants: tuple[Tenant, ...]
    slices: tuple[Slice, ...]
