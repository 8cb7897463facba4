# SPDX-License-Identifier: Apache-2.0
"""Detects two live boots of one host: its disk was copied to a second machine, and both run as that host.

An agent counts its starts (`agent_epoch`), so after a reboot the count is higher than in the previous boot, from which
only delayed reports may still arrive. Therefore another boot that continues to report while the recorded boot is live,
and whose count is not higher, is a second machine. Its reports are refused, and the host shows this until only one boot
reports.
"""

from datetime import datetime
from enum import Enum, auto
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from vgpumgr.wire.fleet import Report
from vgpumgr.wire.problem import Code
from vgpumgr_api.actors import Actor, local_operator
from vgpumgr_api.db.database import now
from vgpumgr_api.db.models import Host
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.installation.liveness import alive_for
from vgpumgr_api.placement.obstacles import ONLINE

BATCH = 200
CLOCK = local_operator("api:boots")


class Verdict(Enum):
    """What happens to a report. Dropped: it is not newer than the last. Refused: another machine has this identity."""

    TAKEN = auto()
    DROPPED = auto()
    REFUSED = auto()


def judge(session: Session, actor: Actor, host: Host, report: Report, last: HostReport) -> Verdict:
    """Returns what happens to a report, and records another boot's report in `last`, which the caller has locked."""
    if last.boot_id in (None, report.boot_id):
        newer = (report.agent_epoch, report.seq) > (last.agent_epoch, last.seq)
        return Verdict.TAKEN if newer else Verdict.DROPPED
    is_live = last.reported_at is not None and now(session) - last.reported_at <= ONLINE
    if report.agent_epoch > last.agent_epoch and not (is_live and last.second_boot_at is not None):
        _remember(last, None)
        return Verdict.TAKEN
    position = (report.agent_epoch, report.seq)
    known = last.other_boot_id == report.boot_id
    before = (last.other_agent_epoch or 0, last.other_seq or 0)
    goes_on = known and position > before
    if goes_on and not is_live and last.second_boot_at is not None:
        # The recorded machine no longer reports, so the machine of this report takes its place.
        _remember(last, last.reported_at, boot=(last.boot_id, last.agent_epoch, last.seq))
        return Verdict.TAKEN
    if not known or position >= before:
        _remember(last, now(session), boot=(report.boot_id, *position))
    if last.second_boot_at is None:
        if not goes_on or not is_live:
            return Verdict.DROPPED
        last.second_boot_at = now(session)
        detail = {"boots": [str(last.boot_id), str(report.boot_id)]}
        events.record(session, actor, "host.second_boot", host.name, detail=detail)
    return Verdict.REFUSED if is_live else Verdict.DROPPED


def refusal(host: Host) -> Refusal:
    """Returns the refusal for the second machine.

    It must be raised after the commit; otherwise the record of that machine's boot would be rolled back.
    """
    return Refusal(
        Code.HOST_SECOND_BOOT,
        f"another running machine reports as host {host.name}: one disk is a copy of the other;"
        " switch one of the two off, or enrol it as a host of its own",
    )


def forget(session: Session) -> bool:
    """Ends the alarm of hosts of which only one boot still reports. A job of `housekeeping`: True if more is to do.

    Time in which no API process was running does not count, because no report could arrive.
    """
    if alive_for(session) < ONLINE:
        return False
    statement = (
        select(HostReport, Host)
        .join(Host, Host.id == HostReport.host_id)
        .where(
            HostReport.second_boot_at.is_not(None),
            or_(HostReport.other_heard_at.is_(None), HostReport.other_heard_at < now(session) - ONLINE),
        )
        .order_by(HostReport.host_id)
        .limit(BATCH)
        .with_for_update(of=HostReport, skip_locked=True)
    )
    rows = session.execute(statement).all()
    for report, host in rows:
        report.second_boot_at = None
        events.record(session, CLOCK, "host.one_boot", host.name)
    return len(rows) == BATCH


def _remember(last: HostReport, heard_at: datetime | None, *, boot: tuple[UUID | None, int, int] | None = None) -> None:
    last.other_boot_id, last.other_agent_epoch, last.other_seq = boot or (None, None, None)
    last.other_heard_at = heard_at
