# SPDX-License-Identifier: Apache-2.0
"""Accelerators."""

from uuid import UUID

from pydantic import Field

from vgpumgr.wire.common import (
    PERMILLE,
    Answer,
    FairRatio,
    Generation,
    IdentifiedBy,
    LabelsPatch,
    MdevTypeId,
    MemBytes,
    Name,
    PciAddress,
    Policy,
    Request,
    Workload,
)


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

    `address`: where it is, or was last; in PCI domain ffffffff if another has that place. `identified_by`: what of
    `uuid`, `serial` and `address` tells it from others, so that its slices and labels follow it to another address.

    `fair_ratio_permille`: how often its time is promised to fair slices. At 2000 one of 500 is sure of 250 when all are
    busy, and counts as that in `used_share_permille`; a strict one always counts whole, and is sure of it. `labels`:
    its own; those of its host count as well where it has none of that key.

    `policy`: how its host shares it; only claims of profiles of that policy go there. `places`: how many slices
    fixed_share sells. `reserve_limit_permille`: how much of its time latency slices may reserve; they count
    `used_reserve_permille`, each its share and one longest piece of work per period. `used_window_bytes`: memory of the
    host that windows of its slices may take, beside `used_mem_bytes`; 0 where slices have no executors.

    `driver`: which its function is bound to, "" if that is not known. `adopted`: that is its vendor's driver, and our
    module shares the GPU all the same.

    `workload`: for which claims it is. One for processes has no `types`, since their memory needs no class.

    `switch_cost_us`: what it costs that another tenant works, as `vgpumgr host probe-gpu` measured it on the host; 0 if
    it did not. `timeslice_min_us` is what the kernel or that takes for the least; a tenant whose quota says less has
    this.
    """

    id: UUID
    host: Name
    address: PciAddress
    uuid: str = ""
    serial: str = ""
    pci_ids: str = ""
    identified_by: IdentifiedBy = IdentifiedBy.ADDRESS
    engine: str
    backend: str
    driver: str = ""
    adopted: bool = False
    mem_bytes: int
    share_permille: int = PERMILLE
    used_share_permille: int
    used_mem_bytes: int
    types: list[MemoryClass]
    timeslice_min_us: int
    switch_cost_us: int = 0
    present: bool
    fair_ratio_permille: int = PERMILLE
    policy: Policy = Policy.BEST_EFFORT
    places: int = 0
    reserve_limit_permille: int = 0
    used_reserve_permille: int = 0
    used_window_bytes: int = 0
    workload: Workload = Workload.VM
    labels: dict[str, str] = Field(default_factory=dict)
    generation: Generation = 1
