# SPDX-License-Identifier: Apache-2.0
"""The interface between the hook's socket (`server`) and the decisions (`admission`).

Methods may be called from several threads at once. `devices`: UUIDs of the domain's mdev hostdevs, ours or another
vendor's. `metadata`: UUIDs of the slices that its metadata names. Both come from domain XML, which a tenant may have
written, so neither list proves that the VM may use a slice.
"""

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

PREPARE_LIMIT_S = 10.0
"""`prepare` and `hotplug` answer within this time, whatever the API or the kernel does."""


class HookService(Protocol):
    """The host agent as libvirt's hook sees it."""

    def prepare(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Make all slices of a VM that is about to start ready to be opened, or none. Raises Refused.

        Idempotent, because ``migrate`` and ``restore`` come before ``prepare``. Slices that are only in the metadata
        are checked but not created.
        """

    def started(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Record that a VM runs. It may have been prepared before the agent was restarted. Never refuses."""

    def release(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], reason: str) -> None:
        """Queue the removal of a stopped VM's devices. Claims stay. Idempotent; neither blocks nor raises.

        This is also called for VMs that never started, and for devices that were never created.
        """

    def hotplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Like `prepare`, for devices that will be hot-plugged into a running VM. Raises Refused."""

    def unplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Like `release`, for devices that were unplugged from a running VM."""
