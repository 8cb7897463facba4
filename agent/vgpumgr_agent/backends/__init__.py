# SPDX-License-Identifier: Apache-2.0
"""Ways to share an accelerator: what each can do, how it is asked, and what it says is there.

Values here are copies taken at one moment. Times are nanoseconds or microseconds as named, shares permille.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from vgpumgr.control.executor_settings import LENDING
from vgpumgr.wire.fleet import DesiredGroup, DesiredSlice

GroupKey = tuple[str, str]
"""GPU and tenant."""


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What a backend enforces. `scope`: "tenant" if each tenant has its own timeslice, "gpu" if all share one."""

    weight: bool
    cap: bool
    scope: str
    enforced_by: str


@dataclass(frozen=True, kw_only=True)
class ObservedGpu:
    """One GPU. `types`: bytes of device memory by mdev type; empty if it cannot be shared.

    `policy`, `places`, `reserve_limit_permille`: how it is shared, see `vgpumgr.control.model.Gpu`. `uuid`, `serial`,
    `pci_ids`: what the card says of itself, see `vgpumgr.cards`. `switch_cost_us`: as `host probe-gpu` measured it, 0
    if it did not.
    """

    address: str
    engine: str
    backend: str
    attach: str
    mem_bytes: int
    timeslice_min_us: int
    max_chunk_us: int
    wall_ns: int
    idle_ns: int
    types: Mapping[str, int]
    policy: str = "best_effort"
    places: int = 0
    reserve_limit_permille: int = 0
    uuid: str = ""
    serial: str = ""
    pci_ids: str = ""
    switch_cost_us: int = 0


@dataclass(frozen=True, kw_only=True)
class ObservedGroup:
    """A tenant's group on one GPU. Not `configured`: only a name that slices carry.

    `latency_ns`: of `run_ns`, from its reservation; `lag_ns`: what the engine owes it, goes both ways. `id`: of its
    counters, another one when it is made anew; 0 if the module does not tell.
    """

    gpu: str
    tenant: str
    configured: bool
    slices: int
    weight: int
    timeslice_us: int
    cap_us: int
    cap_period_us: int
    mode: str = "fair"
    band: str = "fair"
    reserve_us: int = 0
    reserve_period_us: int = 0
    run_ns: int = 0
    runs: int = 0
    longest_run_ns: int = 0
    throttled_ns: int = 0
    switches: int = 0
    generation: int = 0
    latency_ns: int = 0
    lag_ns: int = 0
    id: int = 0


@dataclass(frozen=True, kw_only=True)
class ObservedSlice:
    """A device. `recorded`: ours; `permit_s`: for how long it may still be opened; `vm_uuid`: whom it was made for.

    Counters and what the kernel alone knows: see `vgpumgr.control.model.Slice`.
    """

    uuid: UUID
    gpu: str
    tenant: str
    mdev_type: str
    weight: int
    cap_us: int
    cap_period_us: int
    open: bool
    permit_s: int
    recorded: bool
    vm_uuid: UUID | None = None
    memory_bytes: int = 0
    run_ns: int = 0
    ghost_ns: int = 0
    items: int = 0
    queued: int = 0
    dma_bytes: int = 0
    throttled: bool = False
    error: int = 0
    errors: int = 0


@dataclass(frozen=True, kw_only=True)
class ObservedExecutor:
    """The process that runs a slice's work. `state`: starting, running, or failed for `reason`; `pid`: 0 for none.

    `memory_used_bytes` of `memory_bytes`: accelerator memory of the slice's programs, by the executor's account.
    """

    state: str
    pid: int = 0
    reason: str = ""
    memory_used_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ObservedPlace:
    """What a claim for processes has: a tenant of its GPU's broker. `served`: the broker has it; `ready`: programs may
    start there now.

    `terms`: what was asked for, None if only the broker knows of it. `programs`: how many there are; `run_ns`: the time
    that they obtained of the GPU, `leases`: in how many turns, both since the broker has the tenant.
    """

    uuid: UUID
    gpu: str
    served: bool
    ready: bool = False
    terms: "Terms | None" = None
    programs: int = 0
    run_ns: int = 0
    leases: int = 0
    memory_used_bytes: int = 0
    enforced_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a place was made for. `cap_us` 0: no cap."""

    tenant: str
    weight: int
    cap_us: int
    cap_period_us: int
    timeslice_us: int
    mem_bytes: int


@dataclass(frozen=True, kw_only=True)
class ObservedBroker:
    """The broker of a GPU that is set aside for processes. `current`: it has what was admitted last.

    `reason`: why it does not run. `started_ns`: when it did, on the kernel's monotonic clock, and `wall_ns`: for how
    long it has. `retired_ns`: by tenant, what places obtained that are gone, of tenants that have others.
    """

    gpu: str
    running: bool
    current: bool
    reason: str = ""
    started_ns: int = 0
    wall_ns: int = 0
    retired_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything that is there. `stale_records`: of ours that do not exist; `removing`: on their way out.

    `executors`: those that were started, by slice, which may be gone. `machine`: see `Sysfs.machine`. `places`: of
    claims for processes, and the `brokers` that have them, by GPU.
    """

    boot_id: UUID
    machine: str = ""
    gpus: Mapping[str, ObservedGpu] = field(default_factory=dict)
    groups: Mapping[GroupKey, ObservedGroup] = field(default_factory=dict)
    slices: Mapping[UUID, ObservedSlice] = field(default_factory=dict)
    stale_records: frozenset[UUID] = frozenset()
    removing: frozenset[UUID] = frozenset()
    executors: Mapping[UUID, ObservedExecutor] = field(default_factory=dict)
    places: Mapping[UUID, ObservedPlace] = field(default_factory=dict)
    brokers: Mapping[str, ObservedBroker] = field(default_factory=dict)

    def lends(self, uuid: UUID) -> bool:
        """Whether a slice that is there is to have an executor."""
        gpu = self.gpus.get(self.slices[uuid].gpu)
        return gpu is not None and gpu.engine == LENDING

    def taken(self, gpu: str) -> frozenset[UUID]:
        """Return the devices of ours on a GPU; where all are ours, also without a record those that a VM has open."""
        all_ours = gpu in self.gpus and self.gpus[gpu].attach == "permit"
        return frozenset(
            uuid
            for uuid, found in self.slices.items()
            if found.gpu == gpu and (found.recorded or (found.open and all_ours))
        ) | frozenset(uuid for uuid, place in self.places.items() if place.gpu == gpu)


class SliceBackend(Protocol):
    """One way to share accelerators.

    Everything raises Refused or UnavailableError, and may be repeated. Threads may share it.
    """

    def capabilities(self) -> Capabilities:
        """What it enforces."""

    def discover(self) -> list[ObservedGpu]:
        """GPUs that it serves."""

    def observe(self) -> Observed:
        """Everything that is there."""

    def bind(self, gpu: str) -> bool:
        """Have a GPU shared that the host's configuration lists. Whether it is now; it may take a while longer."""

    def apply_group(self, group: DesiredGroup) -> None:
        """Configure a tenant's group on a GPU."""

    def forget_group(self, key: GroupKey) -> None:
        """Forget a group without slices."""

    def prepare(self, claim: DesiredSlice, *, vm_uuid: UUID, timeout_s: float) -> bool:
        """Make a slice unless it is there, with its executor, and permit one opening. Whether it was made."""

    def execute(self, uuid: UUID) -> bool:
        """Start the executor of a slice that has none, and do not wait for it. False if there is one that runs."""

    def halt(self, uuid: UUID) -> None:
        """End the executor of a slice that is gone."""

    def apply(self, claim: DesiredSlice) -> None:
        """Bring a slice's tenant, weight and cap up to date, also while it is in use."""

    def admit(self, claims: Sequence[DesiredSlice]) -> bool:
        """Have places for claims for processes of one GPU, all or none; whether anything changed."""

    def dismiss(self, uuid: UUID) -> None:
        """Take the place of a claim for processes away: its programs end."""

    def renew(self, uuid: UUID) -> bool:
        """Let the permit of a VM that is still starting last longer. False if no VM does, or the permit was used."""

    def withdraw(self, uuid: UUID) -> None:
        """Take back an unused permit."""

    def remove(self, uuid: UUID, *, vm_gone: bool, withdraw: bool) -> bool:
        """Remove a slice; False if that goes on in the background.

        Refused while it is open, with `vm_gone` after a moment; while permitted, unless `withdraw` or `vm_gone`.
        """
