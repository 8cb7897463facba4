# SPDX-License-Identifier: Apache-2.0
"""Signs of life of many hosts, written together."""

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.fleet import Heartbeat
from vgpumgr_api.db.database import now
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import change


def note(session: Session, beats: Mapping[UUID, Heartbeat]) -> set[UUID]:
    """Returns the hosts whose last report is the one that they named; those have been heard of now.

    Whose row is held, by a report of its own or by another replica, is not waited for: it is heard of anyway.
    """
    same = {
        host_id
        for host_id, boot_id, agent_epoch, seq in session.execute(
            select(HostReport.host_id, HostReport.boot_id, HostReport.agent_epoch, HostReport.seq).where(
                HostReport.host_id.in_(list(beats))
            )
        )
        if (boot_id, agent_epoch, seq) == (beats[host_id].boot_id, beats[host_id].agent_epoch, beats[host_id].seq)
    }
    free = select(HostReport.host_id).where(HostReport.host_id.in_(list(same))).with_for_update(skip_locked=True)
    change(session, update(HostReport).where(HostReport.host_id.in_(free)).values(reported_at=now(session)))
    return same
