# SPDX-License-Identifier: Apache-2.0
"""Messages between the API and a host's agent: enrolment, desired state, reports."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import (
    COUNTER_MAX,
    MEM_BYTES_MAX,
    PERMILLE,
    TIMESLICE_US_MAX,
    Answer,
    Band,
    CardName,
    ExecutorCpu,
    ExecutorMemory,
    ExecutorState,
    ExecutorTasks,
    Generation,
    Instant,
    MdevTypeId,
    MemBytes,
    Mode,
    Name,
    PciAddress,
    PciIds,
    Policy,
    Request,
    TimesliceUs,
    Weight,
    Workload,
)

LEASE_S = 24 * 3600
"""How long claimed VMs start without the API, unless the API says otherwise."""

REPORT_BYTES_MAX = 8 << 20
"""Of a report, which may name 10,000 slices."""

Counter = Annotated[int, Field(ge=0, le=COUNTER_MAX)]


# ---- enrolment


Csr = Annotated[str, Field(max_length=8192, description="a certificate signing request in PEM; only its key counts")]


class Enroll(Request):
    """The host's one-time token is the bearer token of this request. `csr`: an API with an authority for agents answers
    it with a certificate and needs it, another with a token.

    `claims_of`: as which host the agent was given the claims that VMs may start with there, if it has any.
    """

    agent_version: Annotated[str, Field(max_length=64)]
    boot_id: Annotated[UUID, Field(strict=False)]
    csr: Csr | None = None
    claims_of: Annotated[UUID, Field(strict=False)] | None = None


class CertificateRequest(Request):
    """A new key for a host's agent."""

    csr: Csr


class HostCertificate(Answer):
    """In PEM; shown in TLS it is the host's credential. `renew_after_s`: when to ask for the next one."""

    certificate: str
    expires_at: Instant
    renew_after_s: Annotated[int, Field(ge=1)]


class Enrolled(Answer):
    """`token`: the host's own, shown once. Enrolling again with the same one-time token is refused.

    Whoever sent a request for a certificate gets that, and no token, if the API has an authority for agents.
    """

    host_id: UUID
    name: Name
    token: str | None
    certificate: HostCertificate | None = None


# ---- desired state: API -> agent


class DesiredCard(Answer):
    """What tells a GPU from others, as its host reported it; see `ReportedGpu`."""

    uuid: str = ""
    serial: str = ""
    pci_ids: str = ""


class DesiredGroup(Answer):
    """A tenant's group on one GPU: the parameters of the kernel's ``tenant-set``. Caps 0: none.

    `reserve_us` per `reserve_period_us`: in the latency band only, else 0. `card`: which GPU is meant, wherever it is
    plugged in by now; None if nothing but its address is known.
    """

    gpu: PciAddress
    card: DesiredCard | None = None
    tenant: Name
    weight: Weight
    timeslice_us: TimesliceUs
    cap_us: Annotated[int, Field(ge=0)] = 0
    cap_period_us: Annotated[int, Field(ge=0)] = 0
    mode: Mode = Mode.FAIR
    band: Band = Band.FAIR
    reserve_us: Annotated[int, Field(ge=0)] = 0
    reserve_period_us: Annotated[int, Field(ge=0)] = 0


class DesiredSlice(Answer):
    """A claim on this host. `weight` and cap count inside the tenant's group.

    `generation` grows with every change of the claim; it is what the host confirms. `card`: as of its group.
    `executor_*_max`: limits of its executor that its profile asks for.

    With `workload` process it is a tenant of its GPU's broker and in no group: `weight` and cap count on the whole GPU,
    and `timeslice_us` and `mem_bytes` are its own. Both are 0 for a VM.
    """

    id: UUID
    gpu: PciAddress
    card: DesiredCard | None = None
    tenant: Name
    vm_uuid: UUID | None
    mdev_type: MdevTypeId
    weight: Weight
    cap_us: Annotated[int, Field(ge=0)] = 0
    cap_period_us: Annotated[int, Field(ge=0)] = 0
    executor_memory_max_bytes: ExecutorMemory = 0
    executor_tasks_max: ExecutorTasks = 0
    executor_cpu_max_permille: ExecutorCpu = 0
    workload: Workload = Workload.VM
    timeslice_us: Annotated[int, Field(ge=0, le=TIMESLICE_US_MAX)] = 0
    mem_bytes: Annotated[int, Field(ge=0, le=MEM_BYTES_MAX)] = 0
    generation: Generation


class Tombstone(Answer):
    """A deleted claim: the only thing that removes a slice. Gone once the host has reported it absent."""

    id: UUID
    generation: Generation


class Arriving(Answer):
    """A claim on this host that no VM may start with yet: `from_host`, which it leaves, has not confirmed that."""

    id: UUID
    from_host: Name


class Moved(Answer):
    """A claim that was on this host and goes on as `slice_id` on `host`: no VM may ever start with it here."""

    id: UUID
    slice_id: UUID
    host: Name


class Desired(Answer):
    """Everything a host shall have. What is not named is left alone.

    (`epoch`, `generation`) orders these documents. `epoch` is the database's own and changes when an operator
    declares it restored (``vgpumgr-api new-epoch``). While not `epoch_confirmed` for this host its agent obeys no
    tombstone; nor does it obey a generation that went back within one epoch, the sign of an undeclared restore.
    `lease_s`: for how long a cached copy lets claimed VMs start without the API. `host_state`: what operators made of
    this host; in `maintenance` no VM starts with a slice. `arriving` and `moved` say why a claim is not in `slices`.
    """

    host_id: UUID
    epoch: UUID
    epoch_confirmed: bool
    generation: Generation
    lease_s: int = LEASE_S
    host_state: str = "ready"
    groups: list[DesiredGroup]
    slices: list[DesiredSlice]
    tombstones: list[Tombstone]
    arriving: list[Arriving] = Field(default_factory=list)
    moved: list[Moved] = Field(default_factory=list)


class Bind(Request):
    """Ties a slice that was claimed without a VM to the first one that starts with it. Idempotent for the same VM."""

    vm_uuid: Annotated[UUID, Field(strict=False)]


# ---- reports: agent -> API


class ReportedType(Request):
    """An mdev type of a GPU."""

    id: MdevTypeId
    mem_bytes: MemBytes


class ReportedGpu(Request):
    """Inventory of one GPU. `places`: how many slices policy fixed_share sells.

    `uuid`, `serial`, `pci_ids`: what the card says of itself, empty where nobody knows. Of the first two the API takes
    it for the same card, wherever it is. `switch_cost_us`: what it costs that another tenant works, 0 if nobody
    measured it. `backend` broker: it is set aside for claims of workload process.
    """

    address: PciAddress
    uuid: CardName = ""
    serial: CardName = ""
    pci_ids: PciIds = ""
    engine: Annotated[str, Field(max_length=64)]
    backend: Annotated[str, Field(max_length=64)]
    mem_bytes: Counter
    timeslice_min_us: Counter
    max_chunk_us: Counter
    types: Annotated[list[ReportedType], Field(max_length=64)]
    policy: Annotated[Policy, Field(strict=False)] = Policy.BEST_EFFORT
    places: Counter = 0
    reserve_limit_permille: Annotated[int, Field(ge=0, le=PERMILLE)] = 0
    switch_cost_us: Counter = 0


class ReportedGroup(Request):
    """Counters of a tenant's group on one GPU since it was configured; `wall_ns` and `idle_ns` are the GPU's."""

    gpu: PciAddress
    tenant: Annotated[str, Field(max_length=63)]
    weight: Counter
    timeslice_us: Counter
    cap_us: Counter
    cap_period_us: Counter
    run_ns: Counter
    runs: Counter
    longest_run_ns: Counter
    throttled_ns: Counter
    switches: Counter
    wall_ns: Counter
    idle_ns: Counter


class ReportedExecutor(Request):
    """The process that runs a slice's work. `restarts`: since its agent's start; `reason`: why it ended last.

    `pause_s`: how long after the last attempt one that failed is started again. `memory_used_bytes` of `memory_bytes`:
    accelerator memory of the slice's programs, by the executor's account; 0 before it says so.
    """

    state: Annotated[ExecutorState, Field(strict=False)] = ExecutorState.ABSENT
    restarts: Counter = 0
    reason: Annotated[str, Field(max_length=200)] = ""
    pause_s: Counter = 0
    memory_used_bytes: Counter = 0
    memory_bytes: Counter = 0


class ReportedSlice(Request):
    """One device, or the absence of one that the API named. `generation`: of the claim that was applied.

    `startable`: the host takes it for a claim of its own, which a VM may start with though there is no device now.
    `enforced_by`: of a claim for processes, who sees to its time, as its broker says.
    `error_code`: a frozen code for `error`, if it has one of its own. Two errors of one code differ in their text if
    they are two occurrences.
    """

    id: Annotated[UUID, Field(strict=False)]
    generation: Generation
    present: bool
    open: bool
    vm_uuid: Annotated[UUID, Field(strict=False)] | None
    applied_permille: Annotated[int, Field(ge=0, le=1000)] | None
    run_ns: Counter
    items: Counter
    error: Annotated[str, Field(max_length=200)] = ""
    error_code: Annotated[str, Field(max_length=64)] = ""
    startable: bool = False
    executor: ReportedExecutor = Field(default_factory=ReportedExecutor)
    enforced_by: Annotated[str, Field(max_length=32)] = ""


class Report(Request):
    """What a host has. Of two reports of one boot and agent the one with the larger `seq` counts.

    `agent_epoch` is larger after each start of the agent; (`boot_id`, `agent_epoch`, `seq`) orders reports, and the
    API drops those that are not newer than the last. `desired_*`: the document that was applied; a slice of `absent`
    is confirmed gone only against that document's epoch. `refusals`: in the agent's words; of each the API keeps 500
    characters, and takes any that fits in a body, since the first agents send them uncut.
    """

    boot_id: Annotated[UUID, Field(strict=False)]
    agent_epoch: Counter
    seq: Counter
    agent_version: Annotated[str, Field(max_length=64)]
    desired_epoch: Annotated[UUID, Field(strict=False)] | None
    desired_generation: Generation
    gpus: Annotated[list[ReportedGpu], Field(max_length=256)]
    groups: Annotated[list[ReportedGroup], Field(max_length=10_000)]
    slices: Annotated[list[ReportedSlice], Field(max_length=10_000)]
    refusals: Annotated[list[Annotated[str, Field(max_length=REPORT_BYTES_MAX)]], Field(max_length=100)]


class Reported(Answer):
    """`accepted` False: an older report, dropped. `renew_within_s`: the authority of the host's certificate is being
    replaced; ask for another certificate after a part, by chance, of that time.
    """

    accepted: bool
    renew_within_s: int | None = None


class Heartbeat(Request):
    """That the host lives, and that what it said in its last report, which these three name, is so still."""

    boot_id: Annotated[UUID, Field(strict=False)]
    agent_epoch: Counter
    seq: Counter


class HeartbeatTaken(Answer):
    """`accepted` False: the API has another last report than that, so send a new one.

    `renew_within_s`: as in the answer to a report.
    """

    accepted: bool
    renew_within_s: int | None = None
