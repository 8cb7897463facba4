# SPDX-License-Identifier: Apache-2.0
"""Since when the API has been alive, whichever replica it was.

What did not come in time is held against nobody for the time in which there was nobody to tell: a deadline passes
only after the API has been alive, without a gap, for as long as that deadline is.
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
    """Notes that a replica is alive. A job of `housekeeping`, to be done every `BEAT_S`: there is never more to do."""
    row = session.scalar(select(Liveness).where(Liveness.id == 1).with_for_update())
    if row is None:
        insert_unless_there(session, Liveness, {"id": 1, "since": now(session), "at": now(session)}, outdated=false())
        return False
    # Ahead of now: the clock was, and has been put right.
    if abs(now(session) - row.at) > GAP:
        row.since = row.at = now(session)
    row.at = max(row.at, now(session))
    return False


def alive_for(session: Session) -> timedelta:
    """Returns for how long some replica has been alive; nothing before the first beat and after a gap."""
    row = session.get(Liveness, 1)
    if row is None or abs(now(session) - row.at) > GAP:
        return timedelta(0)
    return now(session) - row.since


def is_doubtful(session: Session, leap: timedelta, *, allowed: timedelta, after: timedelta) -> bool:
    """Whether time may not have passed but a clock have leapt: a leap beyond `allowed` is believed when the API has
    been alive for `after` since. Where no API has ever served it is believed at once.
    """
    return leap > allowed and session.get(Liveness, 1) is not None and alive_for(session) < after
