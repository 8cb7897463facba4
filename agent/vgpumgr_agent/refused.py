# SPDX-License-Identifier: Apache-2.0
"""How agent, helper and backends say no, and that nobody answered.

A refusal of the helper or the kernel travels to whoever asked for it as it is: through the helper's socket, the
backend, and the answer to libvirt's hook. Imports nothing of the agent, so that the root helper stays small.
"""

from uuid import UUID


class Refused(Exception):  # noqa: N818  # it is an answer, not a fault
    """What was asked for was refused, and nothing was changed.

    `code`: frozen. `reason`: one line that says what to do. `to_tenant`: the same for a slice's tenant, where the
    reason names what others have. `slice_id`: the one of a VM's slices that it is about, None for all.
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


class UnavailableError(Exception):
    """Nobody answered. What was asked for may have been done, and may be asked for again."""

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{code}: {reason}")
