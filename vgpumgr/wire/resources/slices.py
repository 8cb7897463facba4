# SPDX-License-Identifier: Apache-2.0
"""Claims, their placement, and the slices that result from them."""

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import (
    Answer,
    Band,
    ExecutorState,
    Generation,
    Instant,
    LabelKey,
    LabelValue,
    MdevTypeId,
    MemBytes,
    Mode,
    Name,
    PciAddress,
    Policy,
    Request,
    Share,
    Workload,
)
from vgpumgr.wire.problem import Reason


class SliceState(StrEnum):
    """`claimed`: without a device, because no VM has started with it or its VM stopped. `prepared`: its device exists.
    `attached`: a VM has opened it. `releasing`: deleted, counted until its host has confirmed that the device is gone.

    `failed`: its host reports why it cannot be as it should, or it stayed claimed or prepared for too long. `orphaned`:
    nobody vouches for it, because its host has been silent for longer than its lease, or was told to remove it and has
    not confirmed that. Slices in both states count as before, and leave them when the host reports something else.

    `lost`: its host was fenced, or it was moved to another host (`state_reason` ``slice.moved``). No quota counts it.
    Its GPU counts it until its host has confirmed that the device is gone; a fenced host must enrol again first.
    """

    CLAIMED = "claimed"
    PREPARED = "prepared"
    ATTACHED = "attached"
    RELEASING = "releasing"
    FAILED = "failed"
    ORPHANED = "orphaned"
    LOST = "lost"


class Placement(StrEnum):
    """`pack`: the GPU that has the least left afterwards; `spread`: the one that has the most."""

    PACK = "pack"
    SPREAD = "spread"


class Level(StrEnum):
    """What counts as together: on one host, or on one GPU."""

    HOST = "host"
    GPU = "gpu"


class Tie(Request):
    """Ties slices of one tenant that name the same `key`. If their levels differ, the stricter one counts."""

    key: Name
    level: Annotated[Level, Field(strict=False)] = Level.HOST


class SliceTie(Answer):
    """The Tie with which a slice was claimed, or that a reservation gives its slices."""

    key: Name
    level: Level


class SliceCreate(Request):
    """A claim. Without `vm_uuid` the slice is bound to the first VM that starts with it. `host`: only on this host.

    `selector`: only on GPUs with all of these labels, their own or their host's. `affinity`: together with the tenant's
    other slices of that affinity; `anti_affinity`: never together with those of that anti-affinity. `reservation`: on
    one of its places; the slice then has its affinity and anti-affinity.

    `workload` process: for programs of the host, on a GPU that its host sets aside for them. Such a claim has no
    `vm_uuid`, and no reservation has places for it.
    """

    tenant: Name
    profile: Name
    vm_uuid: Annotated[UUID, Field(strict=False)] | None = None
    host: Name | None = None
    placement: Annotated[Placement, Field(strict=False)] = Placement.PACK
    selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(default_factory=dict)
    affinity: Tie | None = None
    anti_affinity: Tie | None = None
    reservation: Annotated[UUID, Field(strict=False)] | None = None
    workload: Annotated[Workload, Field(strict=False)] = Workload.VM


BATCH_MAX = 256


class SliceBatch(Request):
    """Claims of one tenant, of which all are carried out in this order, or none."""

    slices: Annotated[list[SliceCreate], Field(min_length=1, max_length=BATCH_MAX)]


class SliceMove(Request):
    """Where the slice of a stopped VM goes. `host`: any host but its own.

    `source_off`: the name of the host that it leaves, given by an operator who made sure that this machine is off.
    Without it no VM starts with the slice on `host` until the old host has confirmed that none runs there.
    """

    host: Name
    source_off: Name | None = None


class Explanation(Answer):
    """Whether a claim would succeed, and what rules out GPUs. Each of `gpus` is `fitting` or counts under one reason.

    `fits`: the claim would succeed now, on `gpu` of `host`. `reasons`: those that rule out GPUs have a `count`; those
    of quotas and of the reservation that the claim names have none. `detail`: why it would fail, in a sentence.
    """

    fits: bool
    gpus: int
    fitting: int
    host: Name | None
    gpu: PciAddress | None
    reasons: list[Reason]
    detail: str | None = None


class Enforcement(Answer):
    """What was asked for and what the host enforces. `applied_permille`: null until the host has reported it.

    `requested_permille`: what the slice is sure of, which follows quotas. It is the slice's share, or the share of a
    fair slice divided by the ratio of its GPU. `semantics` cap: never more than that; weight: more when others are
    idle. `policy`: that of its GPU.

    `scope`, `enforced_by` and `mem_enforced_by` depend on what serves its GPU on its host, and are empty if that is
    unknown. `scope`: whether each tenant has its own timeslice (tenant) or all on the GPU share one (gpu). The other
    two say what enforces time and memory: kernel, executor, kernel+gate, firmware or cooperative. `executor`: a process
    of the host, which could be late if a tenant took it over; `kernel+gate`: a process that is stopped when it is late.
    For workload process, its host reports what enforces time (firmware: weights; firmware+gate: weights and cap;
    broker+gate), and the `fence` enforces memory.
    """

    requested_permille: int
    applied_permille: int | None
    timeslice_us: int
    granularity_us: int
    scope: str = ""
    semantics: str
    enforced_by: str = ""
    mem_enforced_by: str = ""
    policy: Policy = Policy.BEST_EFFORT


class ObservedExecutor(Answer):
    """The process of the host that runs a slice's work.

    `restarts`: since its agent's start; `reason`: why it last ended, or why it does not run. `pause_s`: how long after
    its last attempt a failed one is started again. `memory_used_bytes` of `memory_bytes`: accelerator memory that the
    slice's programs use, of what they may use, as the executor counts it; 0 until it reports.
    """

    state: ExecutorState = ExecutorState.ABSENT
    restarts: int = 0
    reason: str = ""
    pause_s: int = 0
    memory_used_bytes: int = 0
    memory_bytes: int = 0


class Observation(Answer):
    """What the slice's host last reported. Times are engine time; counters restart when the device is created again."""

    present: bool
    open: bool
    run_ns: int
    items: int
    executor: ObservedExecutor = Field(default_factory=ObservedExecutor)
    reported_at: Instant


class Slice(Answer):
    """A device for one VM. `id` is the UUID of its mediated device and goes into the domain's XML.

    `state_since`: when it entered its state. `state_reason`, a frozen code, and `state_detail` say why it is `failed`
    or `orphaned`, or that its GPU is absent (`gpu.absent`). `state_detail` also says what its host finds wrong with a
    slice that is `attached`. `reserve_period_us`: the longest that its work waits for its share, in the latency band.

    With `workload` process it is no device: `id` names the socket on its host through which programs start. It is
    `prepared` while its broker accepts programs and `attached` while there are some, and `mdev_type` is `process`.

    `moved_from`: the slice of another host that this one replaces. While its `state_reason` is ``slice.moving``, no VM
    starts with either slice.
    """

    id: UUID
    tenant: Name
    profile: Name
    share_permille: Share
    mem_bytes: MemBytes
    mode: Mode
    vm_uuid: UUID | None
    moved_from: UUID | None = None
    host: Name
    gpu: PciAddress
    gpu_id: UUID
    mdev_type: MdevTypeId
    state: SliceState
    state_since: Instant
    state_reason: str
    state_detail: str
    affinity: SliceTie | None = None
    anti_affinity: SliceTie | None = None
    band: Band = Band.FAIR
    reserve_period_us: int | None = None
    enforcement: Enforcement
    observed: Observation | None
    workload: Workload = Workload.VM
    generation: Generation
    created_at: Instant


class Slices(Answer):
    """The slices of a batch, in its order."""

    slices: list[Slice]
