# SPDX-License-Identifier: Apache-2.0
"""Interface of the ways to share an accelerator: their capabilities, their operations, and the state they report.

Values here are snapshots. Times are in nanoseconds or microseconds, as their names say, and shares in permille.
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
    """The limits that a backend enforces. `scope`: "tenant" if each tenant has a timeslice, "gpu" if all share one."""

    weight: bool
    cap: bool
    scope: str
    enforced_by: str


@dataclass(frozen=True, kw_only=True)
class ObservedGpu:
    """A GPU. `types`: bytes of device memory by mdev type; empty if it cannot be shared.

    `policy`, `places`, `reserve_limit_permille`: how it is shared, see `vgpumgr.control.model.Gpu`. `uuid`, `serial`,
    `pci_ids`: identity that the card reports, see `vgpumgr.cards`. `switch_cost_us`: as measured by `host probe-gpu`, 0
    if not measured.
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
    """A tenant's group on one GPU. If it is not `configured`, it is only a name that slices carry.

    `latency_ns`: the part of `run_ns` that the group got by its reservation. `lag_ns`: GPU time that the engine owes
    the group, negative if the group owes the engine. `id`: identifies this life of the counters and changes when the
    group is created again; 0 if the module does not report it.
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
    """A device. `recorded`: it is ours; `permit_s`: seconds left to open it; `vm_uuid`: the VM that it was created for.

    For the counters and the members that only the kernel knows, see `vgpumgr.control.model.Slice`.
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
    """The process that runs a slice's work. `state`: starting, running, or failed with `reason`; `pid`: 0 for none."""

    state: str
    pid: int = 0
    reason: str = ""
    memory_used_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class ObservedPlace:
    """The place of a claim for processes: a tenant of its GPU's broker.

    `served`: the broker has the tenant; `ready`: programs may start there now. `terms`: the requested terms, or None if
    only the broker knows the tenant. `programs`: number of its programs. `run_ns`, `leases`: its GPU time and number of
    turns since the broker has had the tenant.
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
    """The terms of a place. `cap_us` 0: no cap."""

    tenant: str
    weight: int
    cap_us: int
    cap_period_us: int
    timeslice_us: int
    mem_bytes: int


@dataclass(frozen=True, kw_only=True)
class ObservedBroker:
    """The broker of a GPU that is set aside for processes. `current`: it uses the terms that were admitted last.

    `reason`: why it does not run. `started_ns`: its start on the kernel's monotonic clock; `wall_ns`: its age.
    `retired_ns`: GPU time of places that are gone, by tenant, for tenants that still have other places.
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
    """The observed state of the host. `stale_records`: our records without a device.

    `removing`: slices that are being removed. `executors`: all executors that were started, by slice; the slice may be
    gone. `machine`: see `Sysfs.machine`. `places`: places of claims for processes. `brokers`: the brokers that have
    these places, by GPU.
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
        """Return whether an existing slice needs an executor."""
        gpu = self.gpus.get(self.slices[uuid].gpu)
        return gpu is not None and gpu.engine == LENDING

    def taken(self, gpu: str) -> frozenset[UUID]:
        """Return our devices and places on a GPU. On a GPU that is all ours, include open devices without a record."""
        all_ours = gpu in self.gpus and self.gpus[gpu].attach == "permit"
        return frozenset(
            uuid
            for uuid, found in self.slices.items()
            if found.gpu == gpu and (found.recorded or (found.open and all_ours))
        ) | frozenset(uuid for uuid, place in self.places.items() if place.gpu == gpu)


class SliceBackend(Protocol):
    """A way to share accelerators.

    Every method may raise Refused or UnavailableError, and may be retried. Threads may share a backend.
    """

    def capabilities(self) -> Capabilities:
        """Return the limits that the backend enforces."""

    def discover(self) -> list[ObservedGpu]:
        """Return the backend's GPUs."""

    def observe(self) -> Observed:
        """Return the observed state."""

    def bind(self, gpu: str) -> bool:
        """Start to share a GPU of the host's configuration. Return whether it is shared already.

        Sharing may take longer than this call.
        """

    def apply_group(self, group: DesiredGroup) -> None:
        """Configure a tenant's group on a GPU."""

    def forget_group(self, key: GroupKey) -> None:
        """Forget a group without slices."""

    def prepare(self, claim: DesiredSlice, *, vm_uuid: UUID, timeout_s: float) -> bool:
        """Create a slice and its executor unless the slice exists. Permit one opening.

        Return whether the slice was created.
        """

    def execute(self, uuid: UUID) -> bool:
        """Start the executor of a slice without waiting for it. Return False if the executor runs already."""

    def halt(self, uuid: UUID) -> None:
        """Stop the executor of a slice that is gone."""

    def apply(self, claim: DesiredSlice) -> None:
        """Update a slice's tenant, weight and cap, even while it is in use."""

    def admit(self, claims: Sequence[DesiredSlice]) -> bool:
        """Create places for claims for processes of one GPU, all or none. Return whether anything changed."""

    def dismiss(self, uuid: UUID) -> None:
        """Remove the place of a claim for processes. This ends its programs."""

    def renew(self, uuid: UUID) -> bool:
        """Extend the permit of a VM that is still starting.

        Return False if no VM is starting, or if the permit was used.
        """

    def withdraw(self, uuid: UUID) -> None:
        """Withdraw an unused permit."""

    def remove(self, uuid: UUID, *, vm_gone: bool, withdraw: bool) -> bool:
        """Remove a slice. Return False if the removal continues in the background.

        Removing an open slice is refused. With `vm_gone`, it is refused only if the slice is still open after a short
        wait. Removing a slice with a permit is refused unless `withdraw` or `vm_gone` is set.
        """
