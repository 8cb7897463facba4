# SPDX-License-Identifier: Apache-2.0
"""Limits how many events a host can cause. Each event is stored permanently, and a host's reports are not trusted.

This is the generic cell rate algorithm (ITU-T I.371), like in `overload.rates`. Its state is in the host's report row,
which the caller has locked. Events are counted afterwards, when their number is known, so a host is refused only once
it has used more than an hour's allowance.
"""

from datetime import timedelta
from math import ceil

from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code
from vgpumgr_api.db.database import now
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.errors import Refusal

EVENTS_AN_HOUR = 4096
"""Sixteen times the number of events of a first report with the maximum number of GPUs."""

AHEAD = timedelta(hours=1)
AHEAD_MAX = timedelta(minutes=70)
"""The most that `spent_until` can be ahead, so that no host has to wait longer than ten minutes. A later time stems
from before the clock was set back.
"""


def require(session: Session, host: HostReport) -> None:
    """Raises Refusal(RATE_EXCEEDED) for a host that has caused too many events."""
    over = _spent(session, host) - AHEAD
    if over > timedelta(0):
        raise Refusal(
            Code.RATE_EXCEEDED,
            f"what this host reports of itself changed more than {EVENTS_AN_HOUR} times within an hour; find out why",
            retry_after_s=ceil(over.total_seconds()),
        )


def spend(session: Session, host: HostReport, events: int) -> None:
    """Counts events that a host has caused."""
    if events:
        spent = _spent(session, host) + events * AHEAD / EVENTS_AN_HOUR
        host.spent_until = now(session) + min(spent, AHEAD_MAX)


def _spent(session: Session, host: HostReport) -> timedelta:
    none = timedelta(0)
    ahead = none if host.spent_until is None else host.spent_until - now(session)
    return ahead if none < ahead <= AHEAD_MAX else none
