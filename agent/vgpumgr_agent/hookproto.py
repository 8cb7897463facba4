# SPDX-License-Identifier: Apache-2.0
"""What the hook's server asks of the agent: the seam between the socket (hook_server) and the decisions (hooks).

Methods may be called from several threads at once. `devices` are the UUIDs of the domain's mdev hostdevs, ours or
another vendor's; `metadata` those of the slices that its metadata names. Both come from domain XML, which a tenant may
have written: neither proves anything.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

PREPARE_LIMIT_S = 10.0
"""`prepare` and `hotplug` answer within this time, whatever the API or the kernel does."""


class HookRefusedError(Exception):
    """The VM must not start, or the device must not be plugged.

    `code`: frozen, see `hooks`. `reason`: one short line that says what to do; libvirt shows it to the user.
    `to_tenant`: the same for the slice's tenant, where the reason names what others have. `slice_id`: the one of the
    VM's slices that it is about, None for all.
    """

    def __init__(self, code: str, reason: str, *, to_tenant: str = "") -> None:
        self.code = code
        self.reason = reason
        self.slice_id: UUID | None = None
        self._to_tenant = to_tenant or reason
        super().__init__(f"{code}: {reason}")

    def told_of(self, slice_id: UUID) -> str:
        """Return what the tenant of one of the VM's slices may read; the others may be other tenants'."""
        another = self.slice_id not in (None, slice_id)
        return f"{self.code}: {'another slice of the VM was refused' if another else self._to_tenant}"


class HookService(Protocol):
    """The host agent as libvirt's hook sees it."""

    def prepare(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Make all slices of a VM that is about to start ready to be opened, or none. HookRefusedError.

        Idempotent: also for ``migrate`` and ``restore``, which come before ``prepare``. Slices that the metadata names
        and `devices` does not are checked but not made.
        """

    def started(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Note that a VM runs; it may have been prepared before the agent was restarted. Never refuses."""

    def release(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], reason: str) -> None:
        """Queue the removal of a stopped VM's devices; claims stay. Idempotent; neither blocks nor raises.

        Also called for VMs that never started, and for devices that were never made.
        """

    def hotplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Like `prepare`, for devices about to be plugged into a running VM. HookRefusedError."""

    def unplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Like `release`, for devices that a running VM has given back."""
