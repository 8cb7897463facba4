# SPDX-License-Identifier: Apache-2.0
"""The audit: who did what. Admins read it."""

from typing import Any
from uuid import UUID

from vgpumgr.wire.common import Answer, Instant, Name


class AuditEntry(Answer):
    """One change, by whom and from where. Entries are never changed and never deleted.

    `action` as an event's `kind`. `role` and `credential`: of the token that was shown, none of what was done on the
    API's own machine. `source`: the address that the request came from, a proxy's if there is one; empty for a Unix
    socket. `generation`: what the object got by it, where it has one.
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
