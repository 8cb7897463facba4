# SPDX-License-Identifier: Apache-2.0
"""Exceptions for a refusal, and for no answer, from the helper or a backend.

A refusal of the helper or the kernel reaches the requester unchanged: through the helper's socket, the backend, and the
answer to libvirt's hook. This module imports nothing of the agent, so that the root helper stays small.
"""

from uuid import UUID


class Refused(Exception):  # noqa: N818  # it is an answer, not a fault
    """A request was refused, and nothing was changed.

    `code`: frozen. `reason`: one line that says what to do. `to_tenant`: a reason for the slice's tenant, used where
    `reason` names things of other tenants. `slice_id`: the one of the VM's slices that the refusal is about, or None if
    it is about all.
    """

    def __init__(self, code: str, reason: str, *, to_tenant: str = "") -> None:
        self.code = code
        self.reason = reason
        self.slice_id: UUID | None = None
        self._to_tenant = to_tenant or reason
        super().__init__(f"{code}: {reason}")

    def told_of(self, slice_id: UUID) -> str:
        """Return the text for the tenant of one of the VM's slices. Other slices may belong to other tenants."""
        another = self.slice_id not in (None, slice_id)
        return f"{self.code}: {'another slice of the VM was refused' if another else self._to_tenant}"


class UnavailableError(Exception):
    """No answer came. The request may have been carried out, and may be retried."""

    def __init__(self, code: str, reason: str) -> None:
        self.code = code
        self.reason = reason
        super().__init__(f"{code}: {reason}")
