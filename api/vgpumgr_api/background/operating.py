# SPDX-License-Identifier: Apache-2.0
"""Gets operations on. Each kind is a few functions that look at the database; nothing is remembered in between.

What an operation is about is locked first, then its row. Who comes second, a step or somebody who cancels, finds it
done. Any number of replicas may take steps at once.
"""

from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from vgpumgr.wire import operations as wire
from vgpumgr.wire.operations import OperationCancel, OperationState
from vgpumgr.wire.problem import Code
from vgpumgr_api.actors import Actor, local_operator, require_operator, require_view
from vgpumgr_api.db.database import now
from vgpumgr_api.db.progress import Operation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.fleet import drain, rehoming
from vgpumgr_api.installation.liveness import alive_for
from vgpumgr_api.operations import operations
from vgpumgr_api.operations.operations import Step
from vgpumgr_api.resources.generations import IfMatch, refuse_other

STEPS = local_operator("api:operations")
DEADLINE = "operation.deadline"
LOOK = timedelta(seconds=1)
"""How often an operation is looked at, however many replicas and waiters there are."""


class Kind(Protocol):
    """A kind of operation. All but `lock` are called with its target and its row locked."""

    def lock(self, session: Session, target_id: UUID) -> None:
        """Locks the target, if it still exists, with whatever is locked before operations."""

    def look(self, session: Session, operation: Operation) -> Step:
        """Returns how far things are. Changes nothing."""

    def finish(
        self, session: Session, actor: Actor, operation: Operation, state: OperationState, *, undo: bool
    ) -> None:
        """Leaves the target as it shall be after such an end. `undo`: as it was before the operation."""


KINDS: dict[str, Kind] = {drain.KIND: drain.Drain(), rehoming.KIND: rehoming.Rehome()}


def advance(session: Session, operation_id: UUID, *, due_by: datetime | None = None) -> None:
    """Looks how far an operation is, and ends it if it is done, or late. Nothing if it has ended.

    `due_by`: nor if somebody else has looked meanwhile, and it is not due by then any more.
    """
    operation = session.get(Operation, operation_id)
    if operation is None or not _hold(session, operation) or (due_by is not None and operation.look_at > due_by):
        return
    operation.look_at = now(session) + LOOK
    kind = KINDS[operation.kind]
    step = kind.look(session, operation)
    if step.result is None and step.error is None and _is_late(session, operation):
        step = Step(left=step.left, waiting_for=step.waiting_for, error=_late(operation, step))
    operations.note(session, STEPS, operation, step)
    if operation.state != OperationState.RUNNING.value:
        kind.finish(session, STEPS, operation, OperationState(operation.state), undo=False)


def look(session: Session, actor: Actor, operation_id: UUID) -> None:
    """Lets somebody who asks about an operation see how far it is now. For who sees the cloud."""
    require_view(actor)
    advance(session, operation_id)


def advance_next(session: Session, *, due_by: datetime | None = None) -> bool:
    """Advances the operation that nobody has looked at for longest. A job of `housekeeping`: False if none is due.

    One at a time, because the targets of several would have to be locked in order. `due_by`: who calls this until
    nothing is left to do says when that began; else what it did first is due again before it has done the last.
    """
    due_by = due_by or now(session)
    due = session.scalar(
        select(Operation.id)
        .where(Operation.done_at.is_(None), Operation.look_at <= due_by, Operation.kind.in_(KINDS))
        .order_by(Operation.look_at)
        .limit(1)
    )
    if due is None:
        return False
    advance(session, due, due_by=due_by)
    return True


def cancel_operation(
    session: Session, actor: Actor, operation_id: UUID, request: OperationCancel, *, if_match: IfMatch = None
) -> wire.Operation:
    """Ends an operation that is under way. Operators only."""
    require_operator(actor)
    operation = operations.named(session, operation_id)
    if not _hold(session, operation):
        raise Refusal(Code.OPERATION_DONE, f"operation {operation_id} is {operation.state}; there is nothing to cancel")
    refuse_other(session, if_match, operation.id, operation.generation)
    operations.end(session, actor, operation, OperationState.CANCELLED)
    session.flush()
    KINDS[operation.kind].finish(session, actor, operation, OperationState.CANCELLED, undo=request.undo)
    return operations.answer(operation)


def _hold(session: Session, operation: Operation) -> bool:
    """Locks what an operation is about and its row; returns whether it is still under way."""
    KINDS[operation.kind].lock(session, operation.target_id)
    statement = select(Operation).where(Operation.id == operation.id).with_for_update()
    held = session.scalar(statement.execution_options(populate_existing=True))
    return held is not None and held.done_at is None


def _is_late(session: Session, operation: Operation) -> bool:
    """Not for time in which there was no API to notice that it is done."""
    if operation.deadline_at is None or now(session) < operation.deadline_at:
        return False
    return alive_for(session) >= operation.deadline_at - operation.created_at


def _late(operation: Operation, step: Step) -> wire.OperationError:
    seconds = round((operation.deadline_at - operation.created_at).total_seconds()) if operation.deadline_at else 0
    return wire.OperationError(code=DEADLINE, detail=f"{step.left} are left after {seconds} s")
