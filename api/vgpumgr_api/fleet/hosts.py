# SPDX-License-Identifier: Apache-2.0
"""Hosts as operators see them. The exchange with their agents is in `agents` and `reports`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import uuid4

from sqlalchemy import ColumnElement, and_, false, func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Page
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Host, HostCreate, HostCreated, HostPatch, HostState
from vgpumgr_api.actors import Actor, hash_of, new_secret, require_operator, require_view, unknown
from vgpumgr_api.auth import credentials
from vgpumgr_api.claims.release import forget_lost
from vgpumgr_api.db import models, observations
from vgpumgr_api.db.database import now
from vgpumgr_api.db.labels import HostLabel
from vgpumgr_api.events import events
from vgpumgr_api.fleet import host_states
from vgpumgr_api.placement.labels import hosts_label, labels_of, patch_labels
from vgpumgr_api.placement.obstacles import ONLINE
from vgpumgr_api.resources.generations import IfMatch, bump, refuse_other, require_match
from vgpumgr_api.resources.in_use import refuse_held, refuse_slices
from vgpumgr_api.resources.lookup import host_named, refuse_duplicate, remove
from vgpumgr_api.resources.paging import PageRequest, fetch
from vgpumgr_api.resources.patching import changes_of

ENROLL_TOKEN_LIFE = timedelta(days=7)

_REPORT = observations.HostReport
_REPORTED = (
    _REPORT.reported_at,
    _REPORT.agent_version,
    _REPORT.lost_at,
    _REPORT.unknown_slices,
    _REPORT.refusals,
    _REPORT.second_boot_at,
)


class _Reported(NamedTuple):
    """The columns `_REPORTED` of a host; all None if an outer join found no report."""

    at: datetime | None = None
    agent_version: str | None = None
    lost_at: datetime | None = None
    unknown_slices: int | None = None
    refusals: list[str] | None = None
    second_boot_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class HostFilter:
    """Selects hosts; None selects all. `labels`: hosts that have all of these labels."""

    state: HostState | None = None
    online: bool | None = None
    enrolled: bool | None = None
    fenced: bool | None = None
    epoch_confirmed: bool | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def conditions(self, at: datetime) -> Iterator[ColumnElement[bool]]:
        """Yields conditions on rows of `models.Host` joined with their reports, at the time `at`."""
        host = models.Host
        # The same condition as for `online` in `_host`.
        enrolled = and_(host.enrolled_at.is_not(None), host.enroll_hash.is_(None), host.fenced_at.is_(None))
        heard = func.coalesce(_REPORT.reported_at >= at - ONLINE, false())
        if self.state is not None:
            yield host_states.state_of_row() == self.state.value
        for wanted, condition in (
            (self.online, and_(enrolled, heard)),
            (self.enrolled, enrolled),
            (self.fenced, host.fenced_at.is_not(None)),
            (self.epoch_confirmed, host.epoch_confirmed.is_(True)),
        ):
            if wanted is not None:
                yield condition if wanted else ~condition
        for key, value in sorted(self.labels.items()):
            yield hosts_label(key) == value


ALL = HostFilter()


def list_hosts(session: Session, actor: Actor, page: PageRequest, wanted: HostFilter = ALL) -> Page[Host]:
    """Returns hosts, by name. For actors that see the whole cloud."""
    require_view(actor)
    statement = (
        select(models.Host, *_REPORTED)
        .outerjoin(_REPORT, _REPORT.host_id == models.Host.id)
        .where(*wanted.conditions(now(session)))
    )
    rows, token = fetch(session, statement, kind="hosts", keys=[models.Host.name], page=page)
    labels = labels_of(session, HostLabel, [row[0].id for row in rows])
    items = [_host(session, row[0], _Reported(*row[1 : len(_REPORTED) + 1]), labels[row[0].id]) for row in rows]
    return Page(items=items, next_page_token=token)


def create_host(session: Session, actor: Actor, request: HostCreate) -> HostCreated:
    """Announces a host. Its agent must enrol within a week with the token in the answer. For operators only."""
    require_operator(actor)
    refuse_duplicate(session, models.Host.name, request.name, kind="host")
    secret = new_secret()
    host = models.Host(
        id=uuid4(),
        name=request.name,
        state=HostState.READY.value,
        enroll_hash=hash_of(secret),
        enroll_expires_at=now(session) + ENROLL_TOKEN_LIFE,
        epoch_confirmed=False,
        desired_generation=1,
        generation=1,
        created_at=now(session),
    )
    session.add(host)
    events.record(session, actor, "host.created", host.name, generation=host.generation)
    session.flush()
    return _created(_answer(session, host), secret)


def get_host(session: Session, actor: Actor, name: str) -> Host:
    """Returns one host. For actors that see the whole cloud."""
    require_view(actor)
    return _answer(session, host_named(session, name))


def patch_host(session: Session, actor: Actor, name: str, patch: HostPatch, *, if_match: IfMatch) -> Host:
    """Changes a host's labels, stops it from taking claims, or makes it ready again. For operators only."""
    require_operator(actor)
    changes = changes_of(patch)
    host = host_named(session, name, lock=True)
    require_match(session, if_match, host.id, host.generation)
    if "state" in changes:
        host_states.require_not_draining(session, host)
        host_states.enter(session, actor, host, changes["state"])
    label(session, actor, host, changes.get("labels", {}))
    return _answer(session, host)


def label(session: Session, actor: Actor, host: models.Host, patch: Mapping[str, str | None]) -> None:
    """Changes labels of a host; None removes a label. The caller holds the host's lock and has checked permissions."""
    if changed := patch_labels(session, HostLabel, host.id, patch):
        host.generation += 1
        events.record(session, actor, "host.labelled", host.name, generation=host.generation, detail=changed)
        session.flush()


def delete_host(session: Session, actor: Actor, name: str, *, if_match: IfMatch) -> None:
    """Deletes a host without slices, with its GPUs and its token. For operators only.

    A fenced host may still have lost slices, which are deleted with it.
    """
    require_operator(actor)
    host = host_named(session, name)
    # Locks GPUs first, then the host, like claims.
    gpus = session.scalars(
        select(models.Gpu.id).where(models.Gpu.host_id == host.id).order_by(models.Gpu.id).with_for_update()
    ).all()
    found = session.execute(
        select(models.Host.generation, models.Host.fenced_at).where(models.Host.id == host.id).with_for_update()
    ).one_or_none()
    if found is None:
        raise unknown("host", name)
    require_match(session, if_match, host.id, found.generation)
    if found.fenced_at is not None:
        forget_lost(session, actor, gpus)
    refuse_slices(
        session,
        models.Slice.gpu_id.in_(gpus),
        found=f"{name} still has",
        advice="cordon it, delete those and wait until the host confirms, or fence it if it is dead",
    )
    refuse_held(
        session, gpus, why=f"{name} has places that are held by reservations; delete those, or wait until they expire"
    )
    credentials.forget(session, host.id)
    remove(session, models.Host, host.id, kind="host", name=name)
    events.record(session, actor, "host.deleted", host.name)


def confirm_epoch(session: Session, actor: Actor, name: str, *, if_match: IfMatch = None) -> Host:
    """Lets a host obey tombstones again after the database was declared restored. For operators only.

    `if_match`: the state that the operator has read. If another epoch has begun since, it does not match, and nothing
    is confirmed. Repeating this changes nothing.
    """
    require_operator(actor)
    host = host_named(session, name, lock=True)
    if not host.epoch_confirmed:
        refuse_other(session, if_match, host.id, host.generation)
        host.epoch_confirmed = True
        host.generation += 1
        events.record(session, actor, "host.epoch_confirmed", host.name, generation=host.generation)
        session.flush()
        bump(session, [host.id])
    return _answer(session, host)


def reenroll(session: Session, actor: Actor, name: str) -> HostCreated:
    """Returns a new one-time token and revokes the host's credential. Its claims stay. For operators only.

    A fenced host stays fenced until the token is used.
    """
    require_operator(actor)
    host = host_named(session, name, lock=True)
    secret = new_secret()
    credentials.revoke(session, host.id, host.name)
    credentials.revoke_enrolment(session, host)
    host.enroll_hash = hash_of(secret)
    host.enroll_expires_at = now(session) + ENROLL_TOKEN_LIFE
    host.generation += 1
    events.record(session, actor, "host.reenroll", host.name, generation=host.generation)
    session.flush()
    return _created(_answer(session, host), secret)


def _answer(session: Session, host: models.Host) -> Host:
    report = session.execute(select(*_REPORTED).where(_REPORT.host_id == host.id)).one_or_none()
    labels = labels_of(session, HostLabel, [host.id])[host.id]
    return _host(session, host, _Reported(*(report or ())), labels)


def _created(host: Host, secret: str) -> HostCreated:
    return HostCreated(**host.model_dump(), enroll_token=secret)


def _host(session: Session, host: models.Host, reported: _Reported, labels: dict[str, str]) -> Host:
    # A host with an unused one-time token, and a fenced host, have no credential.
    enrolled = host.enrolled_at is not None and host.enroll_hash is None and host.fenced_at is None
    return Host(
        id=host.id,
        name=host.name,
        state=host_states.state_of(host, reported.lost_at),
        operator_state=host_states.operators_state(host),
        enrolled=enrolled,
        online=enrolled and reported.at is not None and now(session) - reported.at <= ONLINE,
        epoch_confirmed=host.epoch_confirmed,
        fenced_at=host.fenced_at,
        lost_at=reported.lost_at,
        last_report_at=reported.at,
        agent_version=reported.agent_version or "",
        state_reason=Code.HOST_SECOND_BOOT.value if reported.second_boot_at else "",
        second_boot_at=reported.second_boot_at,
        unknown_slices=reported.unknown_slices or 0,
        refusals=reported.refusals or [],
        labels=labels,
        generation=host.generation,
        created_at=host.created_at,
    )
