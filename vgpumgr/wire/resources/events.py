# SPDX-License-Identifier: Apache-2.0
"""Events."""

from typing import Any

from vgpumgr.wire.common import Answer, Instant, Name, Page


class Event(Answer):
    """Something that happened, in the order in which it was committed. `kind` as in ``slice.claimed``."""

    seq: int
    at: Instant
    kind: str
    actor: str
    tenant: Name | None
    object: str
    detail: dict[str, Any]


class EventPage(Page[Event]):
    """`epoch`: of the database that the numbers are from. After a restore numbers are given again, in another one."""

    epoch: str = ""
