# SPDX-License-Identifier: Apache-2.0
"""Since when the API has been alive, regardless of which replica it was.

Deadlines do not count time in which no replica could have received a report: a deadline passes only after the API has
been alive without a gap for the length of that deadline.
"""

from datetime import timedelta

from sqlalchemy import false, select
from sqlalchemy.orm import Session

from vgpumgr_api.db.database import now
from vgpumgr_api.db.progress import Liveness
from vgpumgr_api.db.statements import insert_unless_there

BEAT_S = 10
GAP = timedelta(seconds=60)


def beat(session: Session) -> bool:
    """Records that a replica is alive. A job of `housekeeping`, for every `BEAT_S`; always returns False."""
    row = session.scalar(select(Liveness).where(Liveness.id == 1).with_for_update())
    if row is None:
        insert_unless_there(session, Liveness, {"id": 1, "since": now(session), "at": now(session)}, outdated=false())
        return False
    # The recorded time is ahead of now if the clock was ahead and has been corrected.
    if abs(now(session) - row.at) > GAP:
        row.since = row.at = now(session)
    row.at = max(row.at, now(session))
    return False


def alive_for(session: Session) -> timedelta:
    """Returns for how long some replica has been alive; zero before the first beat and after a gap."""
    row = session.get(Liveness, 1)
    if row is None or abs(now(session) - row.at) > GAP:
        return timedelta(0)
    return now(session) - row.since


def is_doubtful(session: Session, leap: timedelta, *, allowed: timedelta, after: timedelta) -> bool:
    """Whether a leap of time may be a change of a clock, not time that has passed.

    A leap beyond `allowed` is doubtful until the API has been alive for `after` without a gap. If no API has ever
    served the database, no leap is doubtful.
    """
    return leap > allowed and session.get(Liveness, 1) is not None and alive_for(session) < after
