# SPDX-License-Identifier: Apache-2.0
"""Moves the slice of a stopped VM to another host. There are two claims meanwhile, and quotas count one of them.

The slice on the source host becomes `lost`: a tombstone that counts on its GPU and in no quota. Its replacement on the
target host is claimed in the same transaction. It is charged to no quota, because the quota already contains the charge
of the first slice. No VM starts with the replacement while it is `moving`, because the source host may still start a VM
with the old slice. `moving` ends when the source host confirms that its slice is gone, when that host is fenced, or
when an operator states that the machine is off.

The old slice is locked before its replacement.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from vgpumgr.wire.common import Mode, Workload
from vgpumgr.wire.problem import Code, Reason, Subject
from vgpumgr.wire.resources import Placement, Slice, SliceCreate, SliceMove, SliceState, Tie
from vgpumgr_api.actors import Actor, reachable_tenants, require_change, require_operator, unknown
from vgpumgr_api.claims import claim_rows, progress
from vgpumgr_api.claims.claims import get_slice, new_claim
from vgpumgr_api.claims.progress import settle_moves
from vgpumgr_api.claims.slice_view import tie
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain, now
from vgpumgr_api.db.observations import HostReport, SliceObservation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.placement.obstacles import ONLINE, Wanted, policy_of
from vgpumgr_api.placement.placement import Place, take
from vgpumgr_api.placement.ties import ties_of
from vgpumgr_api.resources.generations import IfMatch, bump, bump_claimed, refuse_other
from vgpumgr_api.resources.lookup import Claiming, host_wanted
from vgpumgr_api.tenancy import quotas
from vgpumgr_api.usage import grants


@dataclass(frozen=True)
class _Held:
    """A claim with its tenant and its host."""

    claim: models.Slice
    tenant: models.Tenant
    host: models.Host


def move_slice(
    session: Session, actor: Actor, slice_id: UUID, request: SliceMove, *, if_match: IfMatch = None
) -> Slice:
    """Returns the slice that replaces this one on another host.

    Repeating this changes nothing, except that an operator may add the statement that the source host is off.
    """
    require_change(actor)
    if request.source_off is not None:
        require_operator(actor, " to say that a host is off")
    successor = _found(session, actor, models.Slice.moved_from == slice_id)
    if successor is not None:
        return _again(session, actor, slice_id, successor, request)
    source = _found(session, actor, models.Slice.id == slice_id)
    if source is None:
        raise unknown("slice", slice_id)
    refuse_other(session, if_match, source.claim.id, source.claim.generation)
    _require_movable(source.claim)
    target = _other_host(session, actor, source, request)
    if request.source_off is None:
        _require_stopped(session, source)
    else:
        _require_off(session, source.host, request.source_off)
    return _move(session, actor, source, target, moving=request.source_off is None)


def abort_move(session: Session, actor: Actor, slice_id: UUID, *, if_match: IfMatch = None) -> Slice:
    """Aborts a move and returns the old slice, which is claimed as before. `slice_id`: the replacement.

    A move can be aborted only while the replacement is `moving`: later a VM may have started with it. This locks the
    report row of the source host, like a fence and a report of that host, so that neither ends the move meanwhile.
    """
    require_change(actor)
    found = _found(session, actor, models.Slice.id == slice_id)
    if found is None:
        raise unknown("slice", slice_id)
    refuse_other(session, if_match, found.claim.id, found.claim.generation)
    source_id, host_id = found.claim.moved_from, found.claim.moved_from_host_id
    if source_id is None or host_id is None:
        raise Refusal(Code.SLICE_MOVED, f"slice {slice_id} replaces no other slice, so there is no move to abort")
    session.execute(select(HostReport.host_id).where(HostReport.host_id == host_id).with_for_update()).all()
    source, claim = _locked(session, source_id), _locked(session, slice_id)
    under_way = claim is not None and claim.moving and claim.state == SliceState.CLAIMED.value
    if source is None or claim is None or not under_way or source.state != SliceState.LOST.value:
        raise Refusal(
            Code.SLICE_MOVED,
            f"the move to slice {slice_id} is over, and a VM may have started with it; move that slice back instead",
        )
    old_host = session.get_one(models.Host, host_id)
    progress.put(session, source.id, progress.Place(SliceState.CLAIMED, timed=True))
    progress.put(session, claim.id, _left(source.id, old_host.name))
    grants.deleted(session, claim.id)
    grants.resume(session, source.id)
    bump(session, [host_id, found.host.id])
    source.state, source.tombstone_generation = SliceState.CLAIMED.value, None
    source.generation += 1
    claim.state, claim.tombstone_generation = SliceState.LOST.value, _generation(session, found.host.id)
    claim.generation += 1
    claim.moving, claim.moved_from, claim.moved_from_host_id = False, None, None
    _tell_moved(session, actor, claim, found.tenant, to=source.id, host=old_host.name)
    events.record(session, actor, "slice.arrived", source.id, tenant=found.tenant, generation=source.generation)
    session.flush()
    return get_slice(session, actor, source.id)


def _move(session: Session, actor: Actor, source: _Held, host_id: UUID, *, moving: bool) -> Slice:
    claim, tenant = source.claim, source.tenant
    profile = session.get_one(models.Profile, claim.profile_id)
    account = None if tenant.account_id is None else session.get_one(models.Tenant, tenant.account_id)
    quotas.lock_owners(session, quotas.owners_with(tenant, account))
    asked = _as_claim(claim, tenant, profile)
    place = take(session, _wanted(session, actor, source, profile, asked, host_id))
    seen = claim.generation
    locked = _locked(session, claim.id)
    if locked is None or locked.generation != seen or locked.state != SliceState.CLAIMED.value:
        raise TryAgain
    new = _replacing(session, source, profile, asked, place, moving=moving)
    progress.put(session, claim.id, _left(new.id, place.host))
    who = Claiming(tenant=tenant, account=account, profile=profile)
    claim_rows.write(session, actor, new, who, profile.name, place, bump=False, kept=None)
    if moving:
        progress.put(session, new.id, progress.arriving(source.host.name))
    grants.deleted(session, claim.id)
    session.execute(
        select(models.Host.id)
        .where(models.Host.id.in_([source.host.id, place.host_id]))
        .order_by(models.Host.id)
        .with_for_update()
    ).all()
    bump_claimed(session, [place.host_id])
    bump(session, [source.host.id])
    claim.state, claim.tombstone_generation = SliceState.LOST.value, _generation(session, source.host.id)
    claim.generation += 1
    _tell_moved(session, actor, claim, tenant, to=new.id, host=place.host)
    session.flush()
    return get_slice(session, actor, new.id)


def _again(session: Session, actor: Actor, slice_id: UUID, successor: _Held, request: SliceMove) -> Slice:
    """Answers a repeated request for a move. If the request now has `source_off`, that ends the move."""
    claim, host = successor.claim, successor.host
    if request.host not in (host.name, str(host.id)):
        raise Refusal(
            Code.SLICE_MOVED,
            f"slice {slice_id} was moved to host {host.name} as slice {claim.id}; move that one, or abort the move",
            reasons=_about(Code.SLICE_MOVED, claim),
        )
    if request.source_off is not None and claim.moving and claim.state == SliceState.CLAIMED.value:
        old_host = session.get(models.Host, claim.moved_from_host_id)
        if old_host is not None:
            _require_off(session, old_host, request.source_off)
        _locked(session, slice_id)
        bump(session, settle_moves(session, actor, models.Slice.moved_from == slice_id))
    return get_slice(session, actor, claim.id)


# ---- which slices may move, and where to


def _require_movable(claim: models.Slice) -> None:
    if claim.workload == Workload.PROCESS.value:
        raise Refusal(
            Code.SLICE_BOUND,
            f"slice {claim.id} is for processes of its host and cannot move; delete it, and claim one elsewhere",
            reasons=_about(Code.SLICE_BOUND, claim),
        )
    if claim.state != SliceState.CLAIMED.value:
        how = "lost with its host" if claim.state == SliceState.LOST.value else "deleted"
        raise Refusal(Code.SLICE_RELEASING, f"slice {claim.id} was {how}; claim another one for this VM")
    if claim.moving:
        raise Refusal(
            Code.SLICE_MOVING,
            f"slice {claim.id} is being moved itself: wait until the host that it left has confirmed this, abort that"
            " move, or have an operator say that this host is off",
            reasons=_about(Code.SLICE_MOVING, claim),
        )


def _other_host(session: Session, actor: Actor, source: _Held, request: SliceMove) -> UUID:
    host_id = host_wanted(session, actor, request.host)
    if host_id is None or host_id == source.host.id:
        raise _wrong("$.host", f"slice {source.claim.id} is on host {source.host.name}; name another one")
    return host_id


def _require_stopped(session: Session, source: _Held) -> None:
    seen = select(SliceObservation.open).where(SliceObservation.slice_id == source.claim.id)
    if session.scalar(seen):
        raise Refusal(
            Code.OBJECT_IN_USE,
            f"a VM has slice {source.claim.id} open on host {source.host.name}: stop the VM there first; if that"
            " machine is off, an operator may pass source_off",
            reasons=_about(Code.OBJECT_IN_USE, source.claim),
        )


def _require_off(session: Session, host: models.Host, said: str) -> None:
    """Refuses an operator's statement that a host is off while that host still reports."""
    if said != host.name:
        detail = f"the slice leaves host {host.name}; give that name once you are sure that it is off"
        raise _wrong("$.source_off", detail)
    reported_at = session.scalar(select(HostReport.reported_at).where(HostReport.host_id == host.id))
    if reported_at is not None and now(session) - reported_at <= ONLINE:
        raise Refusal(
            Code.HOST_ONLINE,
            f"{host.name} was heard of within the last {ONLINE.seconds} s; make sure that it is powered off and wait"
            " that long, or move the slice without source_off: a running host confirms the move itself",
        )


def _wrong(field: str, detail: str) -> Refusal:
    return Refusal(Code.FIELD_INVALID, detail, reasons=(Reason(code=Code.FIELD_INVALID, detail=detail, field=field),))


def _about(code: Code, claim: models.Slice) -> tuple[Reason, ...]:
    subject = Subject(kind="slice", id=claim.id, vm_uuid=claim.vm_uuid)
    return (Reason(code=code, detail=f"slice {claim.id}", about=subject),)


# ---- the two claims


def _as_claim(claim: models.Slice, tenant: models.Tenant, profile: models.Profile) -> SliceCreate:
    return SliceCreate(
        tenant=tenant.name,
        profile=profile.name,
        vm_uuid=claim.vm_uuid,
        affinity=_tie(claim.affinity, claim.affinity_level),
        anti_affinity=_tie(claim.anti_affinity, claim.anti_affinity_level),
    )


def _tie(key: str | None, level: str | None) -> Tie | None:
    found = tie(key, level)
    return None if found is None else Tie(key=found.key, level=found.level)


def _wanted(
    session: Session, actor: Actor, source: _Held, profile: models.Profile, asked: SliceCreate, host_id: UUID
) -> Wanted:
    claim = source.claim
    return Wanted(
        share_permille=claim.share_permille,
        mem_bytes=claim.mem_bytes,
        mode=Mode(claim.mode),
        host_id=host_id,
        vm=None,
        placement=Placement.PACK,
        selector={},
        ties=ties_of(session, source.tenant.id, asked, without=claim.id),
        policy=policy_of(profile),
        reserve_period_us=claim.reserve_period_us,
        discreet=not actor.sees_the_cloud,
    )


def _replacing(
    session: Session, source: _Held, profile: models.Profile, asked: SliceCreate, place: Place, *, moving: bool
) -> models.Slice:
    new = new_claim(session, source.tenant, profile, asked, place)
    new.moved_from, new.moved_from_host_id, new.moving = source.claim.id, source.host.id, moving
    return new


def _left(to: UUID, host: str) -> progress.Place:
    return progress.Place(SliceState.LOST, detail=f"it continues as slice {to} on host {host}")


def _tell_moved(
    session: Session, actor: Actor, claim: models.Slice, tenant: models.Tenant, *, to: UUID, host: str
) -> None:
    detail = {"slice_id": str(to), "host": host}
    events.record(session, actor, "slice.moved", claim.id, tenant=tenant, generation=claim.generation, detail=detail)


def _found(session: Session, actor: Actor, those: ColumnElement[bool]) -> _Held | None:
    row = session.execute(
        select(models.Slice, models.Tenant, models.Host)
        .join(models.Gpu, models.Gpu.id == models.Slice.gpu_id)
        .join(models.Host, models.Host.id == models.Gpu.host_id)
        .join(models.Tenant, models.Tenant.id == models.Slice.tenant_id)
        .where(those, reachable_tenants(actor))
    ).one_or_none()
    return None if row is None else _Held(*row)


def _locked(session: Session, slice_id: UUID) -> models.Slice | None:
    return session.scalar(
        select(models.Slice)
        .where(models.Slice.id == slice_id)
        .with_for_update()
        .execution_options(populate_existing=True)
    )


def _generation(session: Session, host_id: UUID) -> int:
    return session.scalars(select(models.Host.desired_generation).where(models.Host.id == host_id)).one()
