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


class HookService(Protocol):
    """The host agent as libvirt's hook sees it."""

    def prepare(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Make all slices of a VM that is about to start ready to be opened, or none. Refused.

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
        """Like `prepare`, for devices about to be plugged into a running VM. Refused."""

    def unplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Like `release`, for devices that a running VM has given back."""
