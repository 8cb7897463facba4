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
    """A merge patch. `fair_ratio_permille` applies to later claims; existing slices keep what they have."""

    labels: LabelsPatch | None = None
    fair_ratio_permille: FairRatio | None = None


class Gpu(Answer):
    """One accelerator. `used_*` counts claims, never what a host reports. `present`: it is in its host's last report.

    `address`: where it is, or was last; in PCI domain ffffffff if another GPU has that place. `identified_by`: which of
    `uuid`, `serial` and `address` identifies it, so that its slices and labels follow it to another address.

    `fair_ratio_permille`: how much of its time fair slices may claim. At 2000, a fair slice of 500 is sure of 250 when
    all are busy, and counts as 250 in `used_share_permille`. A strict slice always counts in full, and is sure of all
    of it. `labels`: its own; a label of its host also counts if the GPU has none with that key.

    `policy`: how its host shares it; only claims of profiles with that policy are placed on it. `places`: how many
    slices it offers under fixed_share. `reserve_limit_permille`: how much of its time latency slices may reserve. Each
    of them adds its share and one longest piece of work per period to `used_reserve_permille`. `used_window_bytes`:
    host memory that the windows of its slices may take, in addition to `used_mem_bytes`; 0 where slices have no
    executors.

    `driver`: the driver that its function is bound to, "" if that is not known. `adopted`: that is its vendor's driver,
    and the vgpumgr module shares the GPU all the same.

    `workload`: the kind of claims that it takes. A GPU for processes has no `types`, since their memory needs no class.

    `switch_cost_us`: what a switch to another tenant costs, as `vgpumgr host probe-gpu` measured it on the host; 0 if
    it did not. `timeslice_min_us`: the shortest timeslice according to the kernel or that measurement. A tenant whose
    quota has a shorter one gets this one.
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
