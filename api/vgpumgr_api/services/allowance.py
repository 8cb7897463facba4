# SPDX-License-Identifier: Apache-2.0
"""How much a host may make happen. Each event is written down for good, and a host says what it likes.

The generic cell rate algorithm (ITU-T I.371), as in `limits`, in the row of its reports, which the caller has locked.
What happened already always counts: who has spent more than an hour's waits until that is over.
"""

from datetime import timedelta
from math import ceil

from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr_api.db.database import now
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.errors import Refusal

EVENTS_AN_HOUR = 4096
"""A report of all that a host can have makes fewer."""

AHEAD = timedelta(hours=1)


def require(session: Session, host: HostReport) -> None:
    """Raises Refusal(RATE_EXCEEDED) for a host that has made too much happen."""
    if host.spent_until is not None and (over := host.spent_until - AHEAD - now(session)) > timedelta(0):
        raise Refusal(
            Code.RATE_EXCEEDED,
            f"what this host says of itself has changed more than {EVENTS_AN_HOUR} times within an hour; see why",
            retry_after_s=ceil(over.total_seconds()),
        )


def spend(session: Session, host: HostReport, events: int) -> None:
    """Counts what happened."""
    if events:
        host.spent_until = max(host.spent_until or now(session), now(session)) + events * AHEAD / EVENTS_AN_HOUR
