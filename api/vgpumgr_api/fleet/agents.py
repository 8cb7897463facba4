# SPDX-License-Identifier: Apache-2.0
"""The API for a host's agent: enrolment, desired state, binding. `reports` processes the reports."""

from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, and_, or_, select, update
from sqlalchemy.orm import Session, aliased

from vgpumgr.wire.common import Mode, Policy, Workload
from vgpumgr.wire.fleet import (
    LEASE_S,
    Arriving,
    Bind,
    Desired,
    DesiredCard,
    DesiredGroup,
    DesiredSlice,
    Enroll,
    Enrolled,
    Moved,
    Report,
    Reported,
    Tombstone,
)
from vgpumgr.wire.problem import Code
from vgpumgr.wire.resources import Slice, SliceState, TokenRole
from vgpumgr_api.actors import Actor, hash_of, invalid, new_secret, own_host, unknown
from vgpumgr_api.auth import certificates, credentials
from vgpumgr_api.auth.agent_ca import AgentCa
from vgpumgr_api.claims.slice_view import View, answer, view, views
from vgpumgr_api.claims.workloads import desired_process, is_for_processes
from vgpumgr_api.db import models, records
from vgpumgr_api.db.database import now
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.statements import upsert
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.fleet import reports
from vgpumgr_api.fleet.host_states import operators_state
from vgpumgr_api.resources.generations import bump
from vgpumgr_api.resources.lookup import host_of
from vgpumgr_api.resources.text import printable
from vgpumgr_api.tenancy.enforcement import Part, plan_group


def require_enrolling(session: Session, secret: str) -> None:
    """Refuses a token that is no valid one-time token of a host, before the body is read."""
    if session.scalar(select(models.Host.id).where(*_enrolled_by(session, secret))) is None:
        raise _enrols_none(session, secret)


def enroll(
    session: Session,
    secret: str,
    request: Enroll,
    *,
    request_id: str = "",
    source: str = "",
    ca: AgentCa | None = None,
) -> Enrolled:
    """Exchanges a one-time token for the host's own credential. All earlier credentials of the host become void.

    With a `ca` the credential is a certificate, for which the request must contain a signing request; else it is a
    token.

    The first enrolment confirms the epoch, because a host that never had a desired state has no obsolete one. If the
    host's agent has cached claims, either the database was restored and lost an earlier enrolment, or the claims are
    another host's. In both cases an operator must confirm the epoch. Each enrolment ends a fence. The lost slices keep
    their places until reports say that they are gone.
    """
    host = models.Host
    # Locks the report row first, like reports, which lock the host last.
    session.execute(
        select(HostReport.host_id)
        .join(host, host.id == HostReport.host_id)
        .where(host.enroll_hash == hash_of(secret))
        .with_for_update(of=HostReport)
    ).all()
    confirmed = or_(host.epoch_confirmed, host.enrolled_at.is_(None))
    if request.claims_of is not None:
        confirmed = and_(host.epoch_confirmed, host.id == request.claims_of)
    consumed = session.execute(
        update(host)
        .where(*_enrolled_by(session, secret))
        .values(
            enroll_hash=None,
            enroll_expires_at=None,
            enrolled_at=now(session),
            fenced_at=None,
            epoch_confirmed=confirmed,
            generation=host.generation + 1,
        )
        .returning(host.id, host.name, host.generation),
        execution_options={"synchronize_session": False},
    ).one_or_none()
    if consumed is None:
        raise _enrols_none(session, secret)
    credentials.revoke(session, consumed.id, consumed.name)
    credentials.remember(session, hash_of(secret), consumed.id, consumed.name)
    credential = uuid4()
    own = certificate = None
    if ca is None:
        own = new_secret()
    else:
        certificate = certificates.sign(session, ca, consumed.id, credential, request.csr)
    token = records.Token(
        id=credential,
        secret_hash=hash_of(own or credentials.proof_of(credential)),
        role=TokenRole.HOST.value,
        host_id=consumed.id,
        created_at=now(session),
    )
    session.add(token)
    # A new agent begins to count its starts from 0.
    upsert(session, HostReport, [reports.none_yet(consumed.id, agent_version=request.agent_version)])
    actor = Actor(
        token_id=token.id,
        role=TokenRole.HOST,
        name=f"host:{consumed.name}",
        host_id=consumed.id,
        request_id=request_id,
        source=source,
    )
    events.record(
        session,
        actor,
        "host.enrolled",
        consumed.name,
        generation=consumed.generation,
        detail={"agent_version": printable(request.agent_version)},
    )
    session.flush()
    return Enrolled(host_id=consumed.id, name=consumed.name, token=own, certificate=certificate)


def _enrolled_by(session: Session, secret: str) -> tuple[ColumnElement[bool], ...]:
    """Returns the conditions for a host whose valid one-time token this is."""
    return models.Host.enroll_hash == hash_of(secret), models.Host.enroll_expires_at > now(session)


def _enrols_none(session: Session, secret: str) -> Refusal:
    return invalid(
        session, secret, "this token cannot enrol a host: it is used, expired or unknown; have the host re-enrolled"
    )


def desired_generation(session: Session, actor: Actor, host: str) -> tuple[UUID, int]:
    """Returns the (epoch, generation) of `desired`, for agents that wait for it to change."""
    row = own_host(session, actor, host)
    return session.scalars(select(models.Installation.epoch)).one(), row.desired_generation


def desired(session: Session, actor: Actor, host: str, *, lease_s: int = LEASE_S) -> Desired:
    """Returns the complete desired state of a host. Must run read-only, to read one snapshot."""
    row = own_host(session, actor, host)
    here = [
        view(found)
        for found in session.execute(
            views()
            .where(models.Gpu.host_id == row.id)
            .order_by(models.Gpu.address, models.Tenant.name, models.Slice.id)
        )
    ]
    # Moving slices are left out. An older agent, which does not know of moves, then refuses their VMs for lack of a
    # claim.
    seen = [one for one in here if not one.slice.moving or one.slice.state != SliceState.CLAIMED.value]
    parties: dict[tuple[UUID, str], list[View]] = {}
    groups: list[DesiredGroup] = []
    slices: list[DesiredSlice] = []
    for one in seen:
        if is_for_processes(one):
            slices.extend(desired_process(one, _card(one.gpu)))
        else:
            parties.setdefault((one.gpu.id, one.tenant), []).append(one)
    for (_, tenant), members in parties.items():
        group, its_slices = _party(tenant, members)
        # A group that contains only deleted slices is not named and keeps its settings. The host's agent removes the
        # group once it is empty.
        if its_slices:
            groups.append(group)
            slices.extend(its_slices)
    return Desired(
        host_id=row.id,
        epoch=session.scalars(select(models.Installation.epoch)).one(),
        epoch_confirmed=row.epoch_confirmed,
        generation=row.desired_generation,
        lease_s=lease_s,
        host_state=operators_state(row).value,
        groups=groups,
        slices=slices,
        tombstones=[
            Tombstone(id=one.slice.id, generation=one.slice.generation)
            for one in seen
            if one.slice.state != SliceState.CLAIMED.value
        ],
        arriving=_arriving(session, row) if len(seen) < len(here) else [],
        moved=_moved(session, row),
    )


def _arriving(session: Session, host: models.Host) -> list[Arriving]:
    left = aliased(models.Host)
    rows = session.execute(
        select(models.Slice.id, left.name)
        .join(models.Gpu, models.Gpu.id == models.Slice.gpu_id)
        .join(left, left.id == models.Slice.moved_from_host_id)
        .where(models.Gpu.host_id == host.id, models.Slice.moving, models.Slice.state == SliceState.CLAIMED.value)
        .order_by(models.Slice.id)
    )
    return [Arriving(id=slice_id, from_host=name) for slice_id, name in rows]


def _moved(session: Session, host: models.Host) -> list[Moved]:
    """Returns the slices that moved away from a host and whose replacements exist, even without tombstones."""
    rows = session.execute(
        select(models.Slice.moved_from, models.Slice.id, models.Host.name)
        .join(models.Gpu, models.Gpu.id == models.Slice.gpu_id)
        .join(models.Host, models.Host.id == models.Gpu.host_id)
        .where(models.Slice.moved_from_host_id == host.id)
        .order_by(models.Slice.moved_from)
    )
    return [Moved(id=old, slice_id=slice_id, host=name) for old, slice_id, name in rows if old is not None]


def report(session: Session, actor: Actor, host: str, report: Report) -> Reported | Refusal:
    """Processes a host's report if it is newer than the last. A returned refusal is to be raised after the commit."""
    row = own_host(session, actor, host)
    return reports.take_in(session, actor, row, report)


def bind(session: Session, actor: Actor, host: str, slice_id: UUID, request: Bind) -> Slice:
    """Binds an unbound slice of this host to a VM. Repeating this for the same VM returns the same answer."""
    row = own_host(session, actor, host)
    found = session.execute(
        select(models.Slice, models.Tenant)
        .join(models.Tenant, models.Tenant.id == models.Slice.tenant_id)
        .where(models.Slice.id == slice_id)
        .with_for_update(of=models.Slice)
    ).one_or_none()
    if found is None or host_of(session, found[0]) != row.id:
        raise unknown("slice", slice_id)
    claim, tenant = found
    if claim.state != SliceState.CLAIMED.value:
        how = "lost with its host" if claim.state == SliceState.LOST.value else "deleted"
        raise Refusal(Code.SLICE_RELEASING, f"slice {slice_id} was {how}; claim another one for this VM")
    if claim.workload != Workload.VM.value:
        raise Refusal(Code.SLICE_BOUND, f"slice {slice_id} is for processes of its host; claim a slice for this VM")
    if claim.moving:
        raise Refusal(Code.SLICE_MOVING, f"slice {slice_id} is still moving to this host; bind it once it has arrived")
    if claim.vm_uuid is None:
        claim.vm_uuid = request.vm_uuid
        claim.generation += 1
        events.record(
            session,
            actor,
            "slice.bound",
            claim.id,
            tenant=tenant,
            generation=claim.generation,
            detail={"vm_uuid": str(request.vm_uuid)},
        )
        session.flush()
        bump(session, [row.id])
    elif claim.vm_uuid != request.vm_uuid:
        raise Refusal(Code.SLICE_BOUND, f"slice {slice_id} belongs to another VM; claim a slice for this VM")
    return answer(view(session.execute(views().where(models.Slice.id == slice_id)).one()))


def _party(tenant: str, members: list[View]) -> tuple[DesiredGroup, list[DesiredSlice]]:
    """Returns a tenant's group on a GPU, and the claimed slices in it.

    A deleted or lost slice counts in the group until its host confirms that it is gone, because its VM may still run.
    """
    gpu, card = members[0].gpu.address, _card(members[0].gpu)
    plan = plan_group(
        {
            one.slice.id: Part(
                permille=one.permille,
                strict=one.slice.mode == Mode.STRICT.value,
                reserve_period_us=one.slice.reserve_period_us or 0,
            )
            for one in members
        },
        members[0].timeslice_us,
        Policy(members[0].gpu.policy),
    )
    group = DesiredGroup(
        gpu=gpu,
        card=card,
        tenant=tenant,
        weight=plan.weight,
        timeslice_us=plan.timeslice_us,
        cap_us=plan.cap.us,
        cap_period_us=plan.cap.period_us,
        mode=plan.mode,
        band=plan.band,
        reserve_us=plan.reserve.us,
        reserve_period_us=plan.reserve.period_us,
    )
    slices = [
        DesiredSlice(
            id=one.slice.id,
            gpu=gpu,
            card=card,
            tenant=tenant,
            vm_uuid=one.slice.vm_uuid,
            mdev_type=one.slice.mdev_type,
            weight=one.permille,
            cap_us=plan.slice_caps[one.slice.id].us,
            cap_period_us=plan.slice_caps[one.slice.id].period_us,
            generation=one.slice.generation,
            **_limits(one),
        )
        for one in members
        if one.slice.state == SliceState.CLAIMED.value
    ]
    return group, slices


def _card(gpu: Any) -> DesiredCard | None:
    """Returns the identity of a card from a row of `views()`."""
    if not (gpu.uuid or gpu.serial or gpu.pci_ids):
        return None
    return DesiredCard(uuid=gpu.uuid, serial=gpu.serial, pci_ids=gpu.pci_ids)


def _limits(one: View) -> dict[str, Any]:
    return {} if one.limits is None else one.limits._asdict()
