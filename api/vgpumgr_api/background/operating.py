# SPDX-License-Identifier: Apache-2.0
"""Advances operations. Each kind is a few functions that look at the database; no state is kept between steps.

The target of an operation is locked first, then the operation's row. If two steps, or a step and a cancellation, run at
once, the second finds the operation done. Any number of replicas may take steps at once.
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
"""How often an operation is looked at, regardless of the number of replicas and waiters."""


class Kind(Protocol):
    """A kind of operation. Except for `lock`, its methods are called with the target and the operation's row locked."""

    def lock(self, session: Session, target_id: UUID) -> None:
        """Locks the target, if it still exists, and the other rows that precede operations in the lock order."""

    def look(self, session: Session, operation: Operation) -> Step:
        """Returns the progress of the operation. Changes nothing."""

    def finish(
        self, session: Session, actor: Actor, operation: Operation, state: OperationState, *, undo: bool
    ) -> None:
        """Sets the target's final state for this outcome. `undo`: restores its state before the operation."""


KINDS: dict[str, Kind] = {drain.KIND: drain.Drain(), rehoming.KIND: rehoming.Rehome()}


def advance(session: Session, operation_id: UUID, *, due_by: datetime | None = None) -> None:
    """Looks at an operation's progress, and ends it if it is done or late. Does nothing if it has ended.

    `due_by`: also does nothing if the operation is not due by this time any more, because another process has looked.
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
    """Updates the progress of an operation that a client asks about. For actors that see the whole cloud."""
    require_view(actor)
    advance(session, operation_id)


def advance_next(session: Session, *, due_by: datetime | None = None) -> bool:
    """Advances the operation that was looked at longest ago. A job of `housekeeping`: returns False if none is due.

    Each call advances one operation, because the targets of several operations would have to be locked in order.
    `due_by`: a caller that repeats the call until nothing is due passes the time of its first call. Otherwise the first
    operations could be due again before the last were looked at.
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
    """Ends a running operation. For operators only."""
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
    """Locks an operation's target and the operation's row. Returns whether the operation is still running."""
    KINDS[operation.kind].lock(session, operation.target_id)
    statement = select(Operation).where(Operation.id == operation.id).with_for_update()
    held = session.scalar(statement.execution_options(populate_existing=True))
    return held is not None and held.done_at is None


def _is_late(session: Session, operation: Operation) -> bool:
    """Whether the deadline has passed, not counting time in which no API process could notice the operation's end."""
    if operation.deadline_at is None or now(session) < operation.deadline_at:
        return False
    return alive_for(session) >= operation.deadline_at - operation.created_at


def _late(operation: Operation, step: Step) -> wire.OperationError:
    seconds = round((operation.deadline_at - operation.created_at).total_seconds()) if operation.deadline_at else 0
    return wire.OperationError(code=DEADLINE, detail=f"{step.left} are left after {seconds} s")
