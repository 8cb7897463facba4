# SPDX-License-Identifier: Apache-2.0
"""Events."""

from typing import Any

from vgpumgr.wire.common import Answer, Instant, Name, Page


class Event(Answer):
    """Something that happened. Events are listed in the order of their commits. `kind`: such as ``slice.claimed``."""

    seq: int
    at: Instant
    kind: str
    actor: str
    tenant: Name | None
    object: str
    detail: dict[str, Any]


class EventPage(Page[Event]):
    """`epoch`: that of the database that numbered the events. After a restore the numbers repeat in another epoch."""

    epoch: str = ""
