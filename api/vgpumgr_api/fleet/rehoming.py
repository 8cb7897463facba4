# SPDX-License-Identifier: Apache-2.0
"""Re-homing: the claims of a missing GPU move to another GPU of the same host, all or none.

Quotas do not change, because the claims stay the same. The charges of the slices move from the missing GPU to the other
GPU, so both are locked. The host's report row is locked first, so that each report is processed before or after the
re-homing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire import operations as wire
from vgpumgr.wire.operations import GpuRehome, OperationState
from vgpumgr.wire.problem import Code, Reason
from vgpumgr.wire.resources import SliceState
from vgpumgr_api.actors import Actor, require_operator, unknown
from vgpumgr_api.claims.release import owners_in_order
from vgpumgr_api.db import models
from vgpumgr_api.db.database import TryAgain
from vgpumgr_api.db.observations import HostReport, SliceObservation
from vgpumgr_api.db.progress import Operation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.fleet import host_states
from vgpumgr_api.fleet.fencing import lock_quotas
from vgpumgr_api.fleet.inventory import hit
from vgpumgr_api.fleet.rehome_fit import Fitted, Moving, fit
from vgpumgr_api.operations import operations
from vgpumgr_api.operations.operations import SHOWN, Step
from vgpumgr_api.resources.generations import IfMatch, bump, require_match
from vgpumgr_api.resources.in_use import refuse_slices
from vgpumgr_api.usage import grants

KIND = "gpu.rehome"


@dataclass(frozen=True, kw_only=True)
class _Held:
    """The locked objects of a re-homing."""

    host: models.Host
    report: HostReport
    old: models.Gpu
    new: models.Gpu

    def name(self, gpu: models.Gpu) -> str:
        return f"{self.host.name}/{gpu.address}"


def rehome_gpu(
    session: Session, actor: Actor, gpu_id: UUID, request: GpuRehome, *, if_match: IfMatch
) -> wire.Operation:
    """Moves every claim of a missing GPU to another GPU of its host. For operators only.

    The returned operation is already complete, and lists the moved slices. If no claim is left on the GPU, nothing
    moves. Rows are locked in the order given in `models`.
    """
    require_operator(actor)
    held, moving = _lock(session, gpu_id, request, if_match)
    _require_other(held)
    _require_gone(held)
    _require_host(session, held.host)
    _require_unused(session, held)
    fitted = fit(session, held.host, held.report, old=held.old, new=held.new, moving=moving)
    operation = operations.begin(
        session,
        actor,
        KIND,
        target=held.name(held.old),
        target_id=held.old.id,
        request=request,
        notes={},
        deadline_s=None,
    )
    _move(session, actor, held, fitted)
    moved = [str(each.moving.claim.id) for each in fitted]
    result = {"gpu": held.name(held.new), "gpu_id": str(held.new.id), "moved": len(moved), "slices": moved[:SHOWN]}
    operations.note(session, actor, operation, Step(left=0, result=result))
    return operations.answer(operation)


class Rehome:
    """An `operating.Kind` whose operations are already complete when they are created."""

    def lock(self, session: Session, target_id: UUID) -> None:
        """Locks nothing, because nothing is changed."""

    def look(self, session: Session, operation: Operation) -> Step:  # noqa: ARG002 - as its neighbours
        return Step(left=0, result=operation.result or {})

    def finish(
        self, session: Session, actor: Actor, operation: Operation, state: OperationState, *, undo: bool
    ) -> None:
        """Does nothing."""


def _lock(session: Session, gpu_id: UUID, request: GpuRehome, if_match: IfMatch) -> tuple[_Held, list[Moving]]:
    host_id = session.scalar(select(models.Gpu.host_id).where(models.Gpu.id == gpu_id))
    if host_id is None:
        raise unknown("GPU", gpu_id)
    report = session.scalar(select(HostReport).where(HostReport.host_id == host_id).with_for_update())
    if report is None:  # its host was deleted since
        raise TryAgain
    owners = owners_in_order([(each.claim, each.tenant) for each in _claims(session, gpu_id)])
    # A placement locks the quota of its tenant, so ties cannot change while these locks are held.
    lock_quotas(session, owners)
    ids = {gpu_id, request.to}
    statement = select(models.Gpu).where(models.Gpu.id.in_(ids)).order_by(models.Gpu.id)
    locked = statement.with_for_update(key_share=True).execution_options(populate_existing=True)
    gpus = {gpu.id: gpu for gpu in session.scalars(locked)}
    if gpu_id not in gpus:
        raise TryAgain
    require_match(session, if_match, gpu_id, gpus[gpu_id].generation)
    if request.to not in gpus:
        refusal = unknown("GPU", request.to)
        refusal.reasons = (Reason(code=refusal.code, detail=refusal.detail, field="$.to"),)
        raise refusal
    moving = _claims(session, gpu_id, lock=True)
    if not set(owners) >= set(owners_in_order([(each.claim, each.tenant) for each in moving])):
        raise TryAgain
    of_host = select(models.Host).where(models.Host.id == host_id).with_for_update()
    host = session.scalars(of_host.execution_options(populate_existing=True)).one()
    return _Held(host=host, report=report, old=gpus[gpu_id], new=gpus[request.to]), moving


def _claims(session: Session, gpu_id: UUID, *, lock: bool = False) -> list[Moving]:
    statement = (
        select(models.Slice, models.Tenant, models.Profile)
        .join(models.Tenant, models.Tenant.id == models.Slice.tenant_id)
        .join(models.Profile, models.Profile.id == models.Slice.profile_id)
        .where(models.Slice.gpu_id == gpu_id, models.Slice.state == SliceState.CLAIMED.value)
        .order_by(models.Slice.id)
    )
    if lock:
        statement = statement.with_for_update(of=models.Slice).execution_options(populate_existing=True)
    return [Moving(claim=row[0], tenant=row[1], profile=row[2]) for row in session.execute(statement)]


def _require_other(held: _Held) -> None:
    if held.old.id == held.new.id:
        raise _invalid("this is the GPU itself; name the one that takes its claims")
    if held.new.host_id != held.host.id:
        raise _invalid(f"this GPU is in another host than {held.host.name}; claims move within their host only")


def _invalid(detail: str) -> Refusal:
    reason = Reason(code=Code.FIELD_INVALID, detail=detail, field="$.to")
    return Refusal(Code.FIELD_INVALID, f"$.to: {detail}", reasons=(reason,))


def _require_gone(held: _Held) -> None:
    if held.old.present:
        raise Refusal(
            Code.GPU_PRESENT,
            f"GPU {held.name(held.old)} was in the last report of its host; remove it, or remove it from the host's"
            " configuration, and wait for the next report",
        )


def _require_host(session: Session, host: models.Host) -> None:
    if host.fenced_at is not None:
        raise Refusal(Code.HOST_FENCED, f"host {host.name} was declared dead, and its claims are lost; re-enrol it")
    host_states.require_not_draining(session, host)


def _require_unused(session: Session, held: _Held) -> None:
    """Refuses while the host still has devices of the GPU, because a VM may have one open or open it at any time."""
    refuse_slices(
        session,
        models.Slice.gpu_id == held.old.id,
        models.Slice.state == SliceState.CLAIMED.value,
        models.Slice.id.in_(select(SliceObservation.slice_id).where(SliceObservation.present)),
        found=f"the host has devices of {held.name(held.old)}:",
        advice="stop the VMs there, and wait until the host reports that the devices are gone",
    )


def _move(session: Session, actor: Actor, held: _Held, fitted: Sequence[Fitted]) -> None:
    if not fitted:
        return
    old, new = held.old, held.new
    detail: dict[str, Any] = {"to": held.name(new), **hit(session, old.id)}
    for each in fitted:
        claim = each.moving.claim
        old.share_used -= each.share
        old.mem_used -= claim.type_mem_bytes
        old.reserved_permille -= claim.reserved_permille
        new.share_used += each.share
        new.mem_used += each.type_mem_bytes
        new.reserved_permille += each.reserved_permille
        claim.gpu_id = new.id
        claim.mdev_type, claim.type_mem_bytes = each.mdev_type, each.type_mem_bytes
        claim.reserved_permille = each.reserved_permille
        claim.generation += 1
    old.generation += 1
    session.flush()
    grants.go_on(session, [each.moving.claim.id for each in fitted], new.address)
    for each in fitted:
        claim = each.moving.claim
        said = {"from": old.address, "gpu": new.address}
        tenant = each.moving.tenant
        events.record(
            session, actor, "slice.rehomed", claim.id, tenant=tenant, generation=claim.generation, detail=said
        )
    events.record(session, actor, "gpu.rehomed", held.name(old), generation=old.generation, detail=detail)
    session.flush()
    bump(session, [held.host.id])
