# SPDX-License-Identifier: Apache-2.0
"""The audit: who did what. Admins read it."""

from typing import Any
from uuid import UUID

from vgpumgr.wire.common import Answer, Instant, Name


class AuditEntry(Answer):
    """One change: who made it, and from where. Entries are never changed and never deleted.

    `action`: like an event's `kind`. `role` and `credential`: those of the token that was used; there is none for what
    was done on the API's own machine. `source`: the address that the request came from, which is a proxy's if there is
    one; empty for a Unix socket. `generation`: the object's generation after the change, if it has one.
    """

    id: int
    at: Instant
    action: str
    actor: str
    role: str
    credential: UUID | None
    source: str
    request_id: str
    tenant: Name | None
    object: str
    generation: int | None
    detail: dict[str, Any]
