# SPDX-License-Identifier: Apache-2.0
"""Heartbeats of many hosts, written together."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from vgpumgr.wire.fleet import Heartbeat
from vgpumgr_api.actors import Actor
from vgpumgr_api.db.database import now
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.records import Token
from vgpumgr_api.db.statements import among, table_of

AHEAD = timedelta(hours=1)
"""A recorded report time that is further in the future than this comes from a wrong clock."""

_REPORTS = table_of(HostReport)
_TOKENS = table_of(Token)
_SAID = (
    select(
        _REPORTS.c.host_id,
        _REPORTS.c.boot_id,
        _REPORTS.c.agent_epoch,
        _REPORTS.c.seq,
        _TOKENS.c.id.label("credential"),
        _TOKENS.c.secret_hash,
    )
    .join(_TOKENS, _TOKENS.c.host_id == _REPORTS.c.host_id)
    .where(_REPORTS.c.lost_at.is_(None))
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """The host that a heartbeat is from, and the credential that it was sent with; see `Actor`."""

    host_id: UUID
    credential: UUID | None
    secret_hash: str


def source_of(actor: Actor, host_id: UUID) -> Source:
    return Source(host_id=host_id, credential=actor.token_id, secret_hash=actor.secret_hash)


def heard(session: Session, before: datetime | None) -> datetime:
    """Returns the new time of a host's last report: now, but never earlier than the recorded time."""
    moment = now(session)
    return before if before is not None and moment < before <= moment + AHEAD else moment


def note(session: Session, beats: Mapping[Source, Heartbeat]) -> set[Source]:
    """Returns the sources whose credential is valid and whose heartbeat names the host's last report.

    Those hosts are recorded as heard of now. A lost host must send a full report instead, because more may depend on
    it, for example slices in an unknown state. A row that the host's own report or another replica has locked is
    skipped, because the host is being recorded as heard of anyway.
    """
    hosts = {source.host_id for source in beats}
    rows = session.connection().execute(_SAID.where(among(session, _REPORTS.c.host_id, hosts)))
    said = {(row.host_id, row.credential): row for row in rows}
    same = {
        source
        for source, beat in beats.items()
        if (row := said.get((source.host_id, source.credential))) is not None
        and source.secret_hash in ("", row.secret_hash)
        and (row.boot_id, row.agent_epoch, row.seq) == (beat.boot_id, beat.agent_epoch, beat.seq)
    }
    if same:
        moment, known = now(session), _REPORTS.c.reported_at
        hosts = {source.host_id for source in same}
        free = select(_REPORTS.c.host_id).where(among(session, _REPORTS.c.host_id, hosts))
        session.connection().execute(
            update(_REPORTS)
            .where(_REPORTS.c.host_id.in_(free.with_for_update(skip_locked=True)))
            .where(or_(known <= moment, known > moment + AHEAD))
            .values(reported_at=moment)
        )
    return same
