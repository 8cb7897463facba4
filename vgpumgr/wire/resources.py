# SPDX-License-Identifier: Apache-2.0
"""Tenants, quotas, profiles, hosts, GPUs, slices and events as people and control planes see them."""

from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import (
    LABELS_MAX,
    PERMILLE,
    TIMESLICE_US_MAX,
    TIMESLICE_US_MIN,
    Answer,
    FairRatio,
    Generation,
    Instant,
    LabelKey,
    LabelValue,
    MdevTypeId,
    MemBytes,
    Mode,
    Name,
    PciAddress,
    Request,
    Share,
    TimesliceUs,
)
from vgpumgr.wire.problem import Reason

# ---- tenants


class TenantKind(StrEnum):
    """An account holds projects; both may own slices and both have a quota."""

    ACCOUNT = "account"
    PROJECT = "project"


class TenantCreate(Request):
    """A tenant without `account` is an account, one with it a project of that account. Made with a zero quota."""

    name: Name
    account: Name | None = None


class Tenant(Answer):
    """An owner of quota. `name` is unique and never changes: the kernel schedules by it."""

    id: UUID
    name: Name
    kind: TenantKind
    account: Name | None
    generation: Generation
    created_at: Instant


# ---- quotas


PROFILES_MAX = 256


class QuotaPatch(Request):
    """A merge patch: what is left out stays. A limit may be cut below what is used; see Quota.

    `profiles` and `mode`: null lets the tenant claim any. Slices that are there stay, whatever is allowed from now on.
    """

    share_permille: Annotated[int, Field(ge=0, le=1_000_000_000)] | None = None
    mem_bytes: Annotated[int, Field(ge=0, le=1 << 60)] | None = None
    slices: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    timeslice_us: TimesliceUs | None = None
    timeslice_min_us: TimesliceUs | None = None
    timeslice_max_us: TimesliceUs | None = None
    profiles: Annotated[list[Name], Field(max_length=PROFILES_MAX)] | None = None
    mode: Annotated[Mode, Field(strict=False)] | None = None


class Quota(Answer):
    """What a tenant may claim, and how its work is scheduled. Sums are over all GPUs.

    A cut below what is used removes no slice: new claims are refused, and until use fits again every slice of the
    tenant is enforced at share * limit / used (for a project, the smaller of its own and its account's factor).
    `timeslice_us`: how long the tenant's group runs before the engine is offered to the next; always within
    `timeslice_min_us` to `timeslice_max_us`, for a project within its account's as well. `profiles`, `mode`: what may
    be claimed at all, null for anything; for a project what its account may claim as well.
    """

    tenant: Name
    share_permille: int
    mem_bytes: int
    slices: int
    timeslice_us: TimesliceUs
    used_share_permille: int
    used_mem_bytes: int
    used_slices: int
    timeslice_min_us: TimesliceUs = TIMESLICE_US_MIN
    timeslice_max_us: TimesliceUs = TIMESLICE_US_MAX
    profiles: list[Name] | None = None
    mode: Mode | None = None
    generation: Generation


# ---- profiles


class ProfileCreate(Request):
    """A class of slice."""

    name: Name
    share_permille: Share
    mem_bytes: MemBytes
    mode: Annotated[Mode, Field(strict=False)] = Mode.FAIR


class Profile(Answer):
    """A class of slice; it never changes, so that claims mean what they meant when they were made."""

    id: UUID
    name: Name
    share_permille: Share
    mem_bytes: MemBytes
    mode: Mode
    generation: Generation
    created_at: Instant


# ---- hosts and GPUs


class HostState(StrEnum):
    """`ready` takes claims; `cordoned` keeps what it has and takes no more.

    `draining`: cordoned, and an operation waits until it has no slices. `maintenance`: nothing starts there, and
    nothing is expected to be heard of it. `lost`: not heard of for too long; it keeps its claims, and takes none.
    """

    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    MAINTENANCE = "maintenance"
    LOST = "lost"


class HostCreate(Request):
    """Announces a host; the answer carries the token with which its agent enrols, once."""

    name: Name


LabelsPatch = Annotated[
    dict[LabelKey, LabelValue | None],
    Field(max_length=LABELS_MAX, description="a merge patch: null removes a label, those left out stay"),
]


class HostPatch(Request):
    """A merge patch."""

    state: Literal[HostState.READY, HostState.CORDONED] | None = None
    labels: LabelsPatch | None = None


class HostFence(Request):
    """Declares a host dead: powered off, never only out of reach. `confirm`: its name once more.

    `force`: also if it reported within the last 90 s.
    """

    confirm: Name
    force: bool = False


class Host(Answer):
    """A machine with GPUs. `online`: it reported within the last 90 s. `epoch_confirmed`: see Desired.

    `fenced_at`: declared dead, and not enrolled since; whatever its `state`, it takes no claims. `lost_at`: since when
    its `state` is `lost`; `operator_state` is what operators made of it, and what it is again once it is heard of.
    """

    id: UUID
    name: Name
    state: HostState
    operator_state: HostState
    enrolled: bool
    online: bool
    epoch_confirmed: bool
    fenced_at: Instant | None
    lost_at: Instant | None
    last_report_at: Instant | None
    agent_version: str
    labels: dict[str, str] = Field(default_factory=dict)
    generation: Generation
    created_at: Instant


class HostCreated(Host):
    """Shown once."""

    enroll_token: str


class MemoryClass(Answer):
    """An mdev type that a GPU offers."""

    id: MdevTypeId
    mem_bytes: MemBytes


class GpuPatch(Request):
    """A merge patch. `fair_ratio_permille` counts for claims to come; slices that are there keep what they have."""

    labels: LabelsPatch | None = None
    fair_ratio_permille: FairRatio | None = None


class Gpu(Answer):
    """One accelerator. `used_*` counts claims, never what a host reports. `present`: in its host's last report.

    `fair_ratio_permille`: how often its time is promised to fair slices. At 2000 one of 500 is sure of 250 when all are
    busy, and counts as that in `used_share_permille`; a strict one always counts whole, and is sure of it. `labels`:
    its own; those of its host count as well where it has none of that key.
    """

    id: UUID
    host: Name
    address: PciAddress
    engine: str
    backend: str
    mem_bytes: int
    share_permille: int = PERMILLE
    used_share_permille: int
    used_mem_bytes: int
    types: list[MemoryClass]
    timeslice_min_us: int
    present: bool
    fair_ratio_permille: int = PERMILLE
    labels: dict[str, str] = Field(default_factory=dict)
    generation: Generation = 1


# ---- slices


class SliceState(StrEnum):
    """`claimed`: without a device, because no VM has started with it, or it stopped. `prepared`: its device is there.
    `attached`: a VM has opened it. `releasing`: deleted, counted until its host has confirmed that the device is gone.

    `failed`: its host says why it cannot be as it should, or it stayed claimed or prepared for too long. `orphaned`:
    nobody vouches for it, because its host has been silent for longer than its lease, or was told to remove it and has
    not confirmed that. Both count as before, and are left when the host says something else.

    `lost`: its host was fenced. No quota counts it; its GPU does until the host, enrolled again, has confirmed that the
    device is gone.
    """

    CLAIMED = "claimed"
    PREPARED = "prepared"
    ATTACHED = "attached"
    RELEASING = "releasing"
    FAILED = "failed"
    ORPHANED = "orphaned"
    LOST = "lost"


class Placement(StrEnum):
    """`pack`: the GPU that has least left afterwards; `spread`: the one that has most."""

    PACK = "pack"
    SPREAD = "spread"


class Level(StrEnum):
    """How near is together: on one host, or on one GPU."""

    HOST = "host"
    GPU = "gpu"


class Tie(Request):
    """Ties slices of one tenant that name the same `key`; where their levels differ the stricter one counts."""

    key: Name
    level: Annotated[Level, Field(strict=False)] = Level.HOST


class SliceTie(Answer):
    """A Tie that a slice was claimed with."""

    key: Name
    level: Level


class SliceCreate(Request):
    """A claim. Without `vm_uuid` the slice is bound to the first VM that starts with it. `host`: only there.

    `selector`: only on GPUs with all of these labels, their own or their host's. `affinity`: together with the tenant's
    other slices of that affinity; `anti_affinity`: never together with those of that anti-affinity. `reservation`: on
    one of its places.
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


BATCH_MAX = 256


class SliceBatch(Request):
    """Claims of one tenant that are carried out all, in this order, or not at all."""

    slices: Annotated[list[SliceCreate], Field(min_length=1, max_length=BATCH_MAX)]


class Explanation(Answer):
    """What would come of a claim, and why not on other GPUs: each of `gpus` is `fitting` or under one reason.

    `fits`: the claim would succeed now, on `gpu` of `host`. `reasons`: with a `count` of GPUs, or of quotas without.
    """

    fits: bool
    gpus: int
    fitting: int
    host: Name | None
    gpu: PciAddress | None
    reasons: list[Reason]


class Enforcement(Answer):
    """What was asked for and what the host enforces. `applied_permille`: None while the host has not said.

    `requested_permille` is what the slice is sure of: its share, or a fair one's divided by the ratio of its GPU, and
    follows quotas; `semantics` cap: never more than that; weight: more when others are idle.
    """

    requested_permille: int
    applied_permille: int | None
    timeslice_us: int
    granularity_us: int
    scope: str = "tenant"
    semantics: str
    enforced_by: str = "kernel"


class Observation(Answer):
    """What the slice's host last said. Times are engine time; counters restart when the slice is made again."""

    present: bool
    open: bool
    run_ns: int
    items: int
    reported_at: Instant


class Slice(Answer):
    """A device for one VM: `id` is the UUID of its mediated device and goes into the domain's XML.

    `state_since`: when it came to its state. `state_reason`, a frozen code, and `state_detail` say why it is `failed`
    or `orphaned`; the latter also what its host finds wrong with one that is `attached`.
    """

    id: UUID
    tenant: Name
    profile: Name
    share_permille: Share
    mem_bytes: MemBytes
    mode: Mode
    vm_uuid: UUID | None
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
    enforcement: Enforcement
    observed: Observation | None
    generation: Generation
    created_at: Instant


class Slices(Answer):
    """The slices of a batch, in its order."""

    slices: list[Slice]


# ---- reservations


class ReservationCreate(Request):
    """Holds `places` for slices of one profile, in quotas and on GPUs, for `expires_in_s` seconds from now.

    `placement`, `selector` and `host`: as in a claim.
    """

    tenant: Name
    profile: Name
    places: Annotated[int, Field(ge=1, le=BATCH_MAX)]
    expires_in_s: Annotated[int, Field(ge=1, le=366 * 86400)]
    placement: Annotated[Placement, Field(strict=False)] = Placement.PACK
    selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=16)] = Field(default_factory=dict)
    host: Name | None = None


class Reservation(Answer):
    """Capacity that is held for claims that name it. At `expires_at` what is left of it is given back."""

    id: UUID
    tenant: Name
    profile: Name
    places: int
    places_left: int
    expires_at: Instant
    generation: Generation
    created_at: Instant


# ---- usage


class Usage(Answer):
    """Counters of a tenant's group on one GPU, as its host last reported them, and what it was entitled by.

    They start anew when the group is configured again; `wall_ns` and `idle_ns` are the GPU's. Caps 0: none.
    """

    host: Name
    gpu: PciAddress
    tenant: Name
    weight: int
    timeslice_us: int
    cap_us: int
    cap_period_us: int
    run_ns: int
    runs: int
    longest_run_ns: int
    throttled_ns: int
    switches: int
    wall_ns: int
    idle_ns: int
    reported_at: Instant


# ---- tokens


class TokenRole(StrEnum):
    """`operator`: everything but the audit; `admin`: that too, and tokens of admins; `tenant`, `tenant-admin`: one
    tenant and, for an account, its projects; `viewer`: sees everything or what a tenant sees; `host`: one host's part.
    """

    ADMIN = "admin"
    OPERATOR = "operator"
    TENANT_ADMIN = "tenant-admin"
    TENANT = "tenant"
    VIEWER = "viewer"
    HOST = "host"


SCOPED = (
    "audit",
    "events",
    "gpus",
    "hosts",
    "operations",
    "profiles",
    "quotas",
    "reservations",
    "slices",
    "tenants",
    "tokens",
    "usage",
)
"""The parts of ``/v1`` that a scope opens."""

Scope = Annotated[
    str,
    Field(
        pattern=rf"^({'|'.join(SCOPED)}):(read|write)$", description="`slices:read` for GET, `slices:write` for others"
    ),
]


class TokenCreate(Request):
    """For `tenant` and `tenant-admin`, `subject` is the tenant's name; for `admin` and `operator` none; for `viewer` a
    tenant's, or none to see everything. Hosts get theirs by enrolling. `scopes`: what of its role's the token is good
    for; left out: all of it.
    """

    role: Annotated[TokenRole, Field(strict=False)]
    subject: Name | None = None
    expires_in_s: Annotated[int, Field(ge=60, le=10 * 366 * 86400)] | None = None
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=2 * len(SCOPED))] | None = None


class Token(Answer):
    """A credential, without its secret."""

    id: UUID
    role: TokenRole
    subject: Name | None
    created_at: Instant
    expires_at: Instant | None
    scopes: list[str] | None = None


class TokenCreated(Token):
    """Shown once; the API keeps a hash."""

    secret: str


# ---- events


class Event(Answer):
    """Something that happened, in the order in which it was committed. `kind` as in ``slice.claimed``."""

    seq: int
    at: Instant
    kind: str
    actor: str
    tenant: Name | None
    object: str
    detail: dict[str, Any]
