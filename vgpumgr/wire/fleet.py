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
"""How long VMs with claims can start without the API, unless the API sets another time."""

REPORT_BYTES_MAX = 8 << 20
"""The maximum size of a report, which may name 10,000 slices."""

Counter = Annotated[int, Field(ge=0, le=COUNTER_MAX)]


# ---- enrolment


Csr = Annotated[str, Field(max_length=8192, description="a certificate signing request in PEM; only its key counts")]


class Enroll(Request):
    """A host enrols. Its one-time token is the bearer token of this request.

    `csr`: an API with a certificate authority for agents needs it, and answers with a certificate; another API answers
    with a token. `claims_of`: the id of the host that the agent's cached claims are for, if it has any with which VMs
    may start.
    """

    agent_version: Annotated[str, Field(max_length=64)]
    boot_id: Annotated[UUID, Field(strict=False)]
    csr: Csr | None = None
    claims_of: Annotated[UUID, Field(strict=False)] | None = None


class CertificateRequest(Request):
    """A request for a certificate for a new key of a host's agent."""

    csr: Csr


class HostCertificate(Answer):
    """A certificate in PEM, which the host shows in TLS as its credential. `renew_after_s`: when to ask for the next
    one.
    """

    certificate: str
    expires_at: Instant
    renew_after_s: Annotated[int, Field(ge=1)]


class Enrolled(Answer):
    """The answer to an enrolment. Enrolling again with the same one-time token is refused.

    `token` is the host's own and is shown once. If the API has an authority for agents and the request had a `csr`, the
    answer has a certificate and no token.
    """

    host_id: UUID
    name: Name
    token: str | None
    certificate: HostCertificate | None = None


# ---- desired state: API -> agent


class DesiredCard(Answer):
    """What identifies a GPU, as its host reported it; see `ReportedGpu`."""

    uuid: str = ""
    serial: str = ""
    pci_ids: str = ""


class DesiredGroup(Answer):
    """A tenant's group on one GPU: the parameters of the kernel's ``tenant-set``. A cap of 0 means no cap.

    `reserve_us` per `reserve_period_us` is 0 except in the latency band. `card` identifies the GPU wherever it is
    plugged in now; it is null if only the address is known.
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
    """A claim on this host. `weight` and the cap count inside the tenant's group.

    `generation` grows with every change of the claim, and the host confirms it. `card`: as in the group.
    `executor_*_max`: the limits that its profile sets for its executor.

    With `workload` process, the claim is a tenant of its GPU's broker and in no group: `weight` and the cap count on
    the whole GPU, and the claim has a `timeslice_us` and `mem_bytes` of its own. Both are 0 for a VM.
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
    """A deleted claim. Only a tombstone removes a slice; it goes away once the host has reported the slice absent."""

    id: UUID
    generation: Generation


class Arriving(Answer):
    """A claim that moves to this host. No VM starts with it until `from_host` has confirmed that none runs there."""

    id: UUID
    from_host: Name


class Moved(Answer):
    """A claim that left this host and continues as `slice_id` on `host`. No VM may ever start with it here again."""

    id: UUID
    slice_id: UUID
    host: Name


class Desired(Answer):
    """The complete desired state of a host. The host leaves alone what the document does not name.

    (`epoch`, `generation`) orders these documents. `epoch` belongs to the database and changes when an operator
    declares it restored (``vgpumgr-api new-epoch``). Until `epoch_confirmed` is true for this host, its agent obeys no
    tombstone. It never obeys a generation that went back within one epoch, because that is the sign of an undeclared
    restore. `lease_s`: how long VMs with claims can start from a cached copy, without the API. `host_state`: the state
    that operators gave this host; in `maintenance` no VM starts with a slice. `arriving` and `moved` say why a claim is
    not in `slices`.
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
    """Binds a slice that was claimed without a VM to the first VM that starts with it. Idempotent for the same VM."""

    vm_uuid: Annotated[UUID, Field(strict=False)]


# ---- reports: agent -> API


class ReportedType(Request):
    """An mdev type of a GPU."""

    id: MdevTypeId
    mem_bytes: MemBytes


class ReportedGpu(Request):
    """The inventory of one GPU. `places`: how many slices it offers under policy fixed_share.

    `uuid`, `serial` and `pci_ids`: what the card says of itself, empty if that is unknown. By `uuid` or `serial` the
    API recognizes the card at another address. `switch_cost_us`: what a switch to another tenant costs, 0 if it was not
    measured. `backend` broker: the GPU is set aside for claims of workload process.
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
    """The process that runs a slice's work. `restarts`: since its agent's start; `reason`: why it last ended.

    `pause_s`: how long after its last attempt a failed one is started again. `memory_used_bytes` of `memory_bytes`:
    accelerator memory that the slice's programs use, of what they may use, as the executor counts it; 0 until it
    reports.
    """

    state: Annotated[ExecutorState, Field(strict=False)] = ExecutorState.ABSENT
    restarts: Counter = 0
    reason: Annotated[str, Field(max_length=200)] = ""
    pause_s: Counter = 0
    memory_used_bytes: Counter = 0
    memory_bytes: Counter = 0


class ReportedSlice(Request):
    """A device, or the absence of one that the API named. `generation`: that of the claim that was applied.

    `startable`: the host regards the slice as one of its claims, and a VM may start with it although it has no device
    now. `enforced_by`: what enforces the time of a claim for processes, as its broker says. `error_code`: a frozen code
    for `error`, if there is one. Two occurrences of an error with a code differ in their text.
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
    """What a host has. Of two reports of one boot and agent, the one with the larger `seq` counts.

    `agent_epoch` grows with each start of the agent. (`boot_id`, `agent_epoch`, `seq`) orders reports, and the API
    drops those that are not newer than the last. `desired_*`: the document that was applied; a slice is confirmed gone
    only for that document's epoch. `refusals`: what the agent refused, in its words. The API keeps 500 characters of
    each, and accepts any length that fits in a body, because the first agents do not cut them.
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
    """`accepted` is false for an older report, which was dropped.

    `renew_within_s`: the authority of the host's certificate is being replaced; ask for another certificate after a
    random part of that time.
    """

    accepted: bool
    renew_within_s: int | None = None


class Heartbeat(Request):
    """Says that the host is alive, and that its last report, which these three fields name, still holds."""

    boot_id: Annotated[UUID, Field(strict=False)]
    agent_epoch: Counter
    seq: Counter


class HeartbeatTaken(Answer):
    """`accepted` is false if the API's last report is another one; then send a new report.

    `renew_within_s`: as in the answer to a report.
    """

    accepted: bool
    renew_within_s: int | None = None
