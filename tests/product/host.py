# SPDX-License-Identifier: Apache-2.0
"""The lab host under test: the devices in its kernel, the memory of its agent, and VMs played by VFIO clients."""

import json
import uuid as uuids
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.product import hook
from tests.rig.api import Api
from tests.rig.client import Client
from tests.rig.gpu import Gpu
from tests.rig.product import Product, eventually

RECORDS = Path("/var/lib/vgpumgr/slices")
STATE = Path("/var/lib/vgpumgr/agent")
CLASS = "mem16m"
_LIMIT_S = 300


@dataclass
class Host:
    """Not for use by several threads. `played`: the VMs that this process plays, by slice."""

    product: Product
    api: Api
    gpu: Gpu
    played: dict[str, tuple[str, Client]] = field(default_factory=dict)

    # ---- looking

    def devices(self) -> set[str]:
        """The UUIDs of the existing mediated devices."""
        return set(self.gpu.slices())

    def records(self) -> set[str]:
        """The slices that the helper has recorded as ours."""
        return {path.stem for path in RECORDS.glob("*.json")}

    def memory_reserved(self) -> int:
        return self.gpu.control.gpu(self.gpu.address).memory_reserved_bytes

    def empty(self) -> bool:
        """Whether no device, helper record or agent state is left of any slice."""
        return not self.devices() and not self.records() and self.memory_reserved() == 0

    def has_its_gpu(self) -> bool:
        """Whether the module drives the GPU and lets nobody open a slice without a permit."""
        attach = self.gpu.sysfs.paths.gpu(self.gpu.address) / "attach"
        try:
            return self.gpu.sysfs.driver(self.gpu.address) == "vgpumgr" and attach.read_text() == "permit\n"
        except FileNotFoundError:  # the driver's link appears before its attributes
            return False

    def weights(self) -> dict[str, int]:
        """The weight of each configured group, by its name."""
        return {name: tenant.weight for name, tenant in self.gpu.tenants().items()}

    def remembered(self) -> dict[str, Any]:
        """The agent's copy of the desired state."""
        return dict(json.loads((STATE / "desired.json").read_text()))

    def knows(self, slice_id: str) -> bool:
        """Whether the agent has received a claim."""
        return slice_id in {claim["slice"]["id"] for claim in self.remembered()["claims"]}

    # ---- claims

    def claim(self, tenant: str, *, share_permille: int, vm_uuid: str | None = None) -> str:
        """Claim a slice and wait until the agent knows it; return its UUID."""
        slice_id = self.api.claim(tenant, share_permille=share_permille, vm_uuid=vm_uuid)
        eventually(lambda: self.knows(slice_id), what="the agent knows the claim", timeout_s=_LIMIT_S)
        return slice_id

    def wait_claimed(self, slice_id: str) -> None:
        """Wait until the agent's next report shows the slice in the API as claimed and without a device."""

        def is_claimed() -> bool:
            claim = self.api.slice(slice_id)
            assert claim is not None, "the claim has ended"
            return bool(claim["state"] == "claimed")

        eventually(is_claimed, what="the slice is claimed, without a device")

    # ---- VMs, played

    def play(self, slice_id: str, *, vm_uuid: str) -> None:
        """Start a VM as libvirt and QEMU do: the hook's `prepare`, opening the device, the hook's `started`."""
        answer = hook.ask("prepare", slice_id, vm_uuid=vm_uuid)
        if not answer["ok"]:
            raise AssertionError(f"prepare: {answer}")
        self.open(slice_id, vm_uuid=vm_uuid)
        hook.ask("started", slice_id, vm_uuid=vm_uuid)

    def open(self, slice_id: str, *, vm_uuid: str) -> None:
        """Do QEMU's part: open the device."""
        client = Client([slice_id, "hold"])
        self.played[slice_id] = vm_uuid, client
        eventually(lambda: self.is_open(slice_id) or client.process.poll() is not None, what="the device is open")
        if client.process.poll() is not None:
            raise AssertionError(f"the device was not opened: {client.wait(expected=range(256)).output}")

    def is_open(self, slice_id: str) -> bool:
        found = self.gpu.slices().get(slice_id)
        return found is not None and found.open

    def crash(self, slice_id: str) -> None:
        """Kill the VM's process. libvirt has not noticed yet."""
        _, client = self.played.pop(slice_id)
        client.kill()

    def stop(self, slice_id: str, *, reason: str = "shutdown") -> None:
        """End a played VM, and report it the way libvirt does."""
        vm_uuid, _ = self.played[slice_id]
        self.crash(slice_id)
        hook.ask("release", slice_id, vm_uuid=vm_uuid, reason=reason)

    # ---- cleaning up

    def clear(self) -> None:
        """Stop the played VMs, release all claims, and wait until nothing is left of them."""
        for slice_id in list(self.played):
            self.stop(slice_id)
        claims: Sequence[dict[str, Any]] = self.api.items("/v1/slices")
        for claim in claims:
            self.api.delete(claim["id"])
        eventually(lambda: not self.api.items("/v1/slices"), what="all claims are given back", timeout_s=_LIMIT_S)
        eventually(self.empty, what="the host is empty", timeout_s=_LIMIT_S)


def new_uuid() -> str:
    return str(uuids.uuid4())
