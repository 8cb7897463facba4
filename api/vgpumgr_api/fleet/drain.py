# SPDX-License-Identifier: Apache-2.0
"""Draining a host: it takes no more claims, and the operation lasts until its last slice is gone.

Draining deletes nothing. The operation shows which slices are left, so that their owners or operators can delete them
or move their VMs.
"""

from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from vgpumgr.wire import operations as wire
from vgpumgr.wire.operations import HostDrain, OperationError, OperationState
from vgpumgr.wire.problem import Code, Reason, Subject
from vgpumgr.wire.resources import HostState
from vgpumgr_api.actors import Actor, require_operator
from vgpumgr_api.claims.progress import state_of_row
from vgpumgr_api.db.models import Gpu, Host, Slice, Tenant
from vgpumgr_api.db.observations import HostReport
from vgpumgr_api.db.progress import Operation, SliceProgress
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import host_states, hosts
from vgpumgr_api.operations import operations
from vgpumgr_api.operations.operations import SHOWN, Step
from vgpumgr_api.resources.generations import IfMatch, require_match
from vgpumgr_api.resources.lookup import host_named

KIND = host_states.DRAIN


def drain_host(session: Session, actor: Actor, name: str, request: HostDrain, *, if_match: IfMatch) -> wire.Operation:
    """Begins to drain a host. Draining a host without slices ends at once. For operators only."""
    require_operator(actor)
    host = host_named(session, name, lock=True)
    require_match(session, if_match, host.id, host.generation)
    host_states.require_not_draining(session, host)
    if host.fenced_at is not None:
        raise Refusal(Code.HOST_FENCED, f"host {name} was declared dead; re-enrol it, or delete it")
    if host_states.operators_state(host) is HostState.MAINTENANCE and not _stays_empty(session, host, request):
        why = f"{name} is in maintenance, and its VMs could start while it drains; cordon it first"
        reason = Reason(code="host.maintenance", detail=why, about=Subject(kind="host", name=host.name))
        raise Refusal(Code.OBJECT_IN_USE, why, reasons=(reason,))
    before = host_states.operators_state(host)
    host_states.enter(session, actor, host, HostState.DRAINING)
    hosts.label(session, actor, host, request.labels)
    operation = operations.begin(
        session,
        actor,
        KIND,
        target=host.name,
        target_id=host.id,
        request=request,
        notes={"before": before.value},
        deadline_s=request.deadline_s,
    )
    drain = Drain()
    operations.note(session, actor, operation, drain.look(session, operation))
    if operation.done_at is not None:
        drain.finish(session, actor, operation, OperationState(operation.state), undo=False)
    return operations.answer(operation)


def _stays_empty(session: Session, host: Host, request: HostDrain) -> bool:
    """Whether a host in maintenance is already as the drain would leave it, for example in a repeated request."""
    return request.then == HostState.MAINTENANCE.value and not _left(session, host.id)[0]


class Drain:
    """An `operating.Kind` whose target is a host.

    The last step of a claim updates its host's row on the condition that the host is ready. So no claim can be added
    once the host is locked here.
    """

    def lock(self, session: Session, target_id: UUID) -> None:
        _host(session, target_id, lock=True)

    def look(self, session: Session, operation: Operation) -> Step:
        host = _host(session, operation.target_id)
        if host is None:
            error = OperationError(code=Code.OBJECT_UNKNOWN.value, detail=f"host {operation.target} was deleted")
            return Step(left=0, error=error)
        left, first = _left(session, host.id)
        if host.fenced_at is not None:
            error = OperationError(code=Code.HOST_FENCED.value, detail=f"host {host.name} was declared dead meanwhile")
            return Step(left=left, waiting_for=first, error=error)
        if left:
            return Step(left=left, waiting_for=first)
        unknown = session.scalar(select(HostReport.unknown_slices).where(HostReport.host_id == host.id))
        return Step(left=0, result={"drained": operation.progress["total"], "unknown_slices": unknown or 0})

    def finish(
        self, session: Session, actor: Actor, operation: Operation, state: OperationState, *, undo: bool
    ) -> None:
        host = _host(session, operation.target_id)
        if host is None:
            return
        after = HostState.CORDONED
        if state is OperationState.SUCCEEDED:
            after = HostState(operation.request["then"])
        elif undo:
            after = HostState(operation.notes["before"])
        host_states.enter(session, actor, host, after)


def _host(session: Session, host_id: UUID, *, lock: bool = False) -> Host | None:
    if not lock:
        return session.get(Host, host_id)
    statement = select(Host).where(Host.id == host_id).with_for_update()
    return session.scalar(statement.execution_options(populate_existing=True))


def _left(session: Session, host_id: UUID) -> tuple[int, list[dict[str, Any]]]:
    """Returns how many slices are left, and the first of them. Lost slices count, too: their devices may exist."""
    here = select(Gpu.id).where(Gpu.host_id == host_id).scalar_subquery()
    number = session.scalars(select(func.count()).select_from(Slice).where(Slice.gpu_id.in_(here))).one()
    if not number:
        return 0, []
    rows = session.execute(
        select(Slice.id, Tenant.name, Slice.vm_uuid, state_of_row())
        .join(Tenant, Tenant.id == Slice.tenant_id)
        .outerjoin(SliceProgress, SliceProgress.slice_id == Slice.id)
        .where(Slice.gpu_id.in_(here))
        .order_by(Slice.id)
        .limit(SHOWN)
    )
    return number, [
        {"slice": str(row[0]), "tenant": row[1], "vm_uuid": str(row[2]) if row[2] else None, "state": row[3]}
        for row in rows
    ]
