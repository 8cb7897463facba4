# SPDX-License-Identifier: Apache-2.0
"""Operations: work that takes longer than a request, stored in the database so that it outlives every process.

No process belongs to an operation. Instead, each replica repeatedly asks the operation's kind (see `operating`) for the
progress, and whether the operation is done. So an operation does not depend on any single replica. The end of an
operation and its results are written in one transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from pydantic import BaseModel
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from vgpumgr.wire import operations as wire
from vgpumgr.wire.common import Page
from vgpumgr.wire.operations import OperationState
from vgpumgr_api.actors import Actor, require_view, unknown
from vgpumgr_api.db.database import now
from vgpumgr_api.db.progress import Operation
from vgpumgr_api.db.statements import change
from vgpumgr_api.events import events
from vgpumgr_api.resources.paging import PageRequest, fetch

KEPT = timedelta(days=7)
"""How long an operation that has ended can be read."""

SHOWN = 100
BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Step:
    """The progress of an operation: `left` of `total` are to do, the first of which are described in `waiting_for`.

    At the end there is a `result` or an `error`, and `left` is what remained undone.
    """

    left: int
    waiting_for: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    result: Mapping[str, Any] | None = None
    error: wire.OperationError | None = None


def begin(
    session: Session,
    actor: Actor,
    kind: str,
    *,
    target: str,
    target_id: UUID,
    request: BaseModel,
    notes: Mapping[str, Any],
    deadline_s: int | None,
) -> Operation:
    """Adds a running operation. The caller has locked the target, on which one operation of each kind may run."""
    deadline_at = None if deadline_s is None else now(session) + timedelta(seconds=deadline_s)
    operation = Operation(
        id=uuid4(),
        kind=kind,
        target=target,
        target_id=target_id,
        state=OperationState.RUNNING.value,
        request=request.model_dump(mode="json"),
        notes=dict(notes),
        progress={"total": 0, "left": 0, "waiting_for": []},
        actor=actor.name,
        generation=1,
        created_at=now(session),
        deadline_at=deadline_at,
        look_at=now(session),
    )
    session.add(operation)
    events.record(session, actor, "operation.started", operation.id, generation=1, detail=_about(operation))
    session.flush()
    return operation


def note(session: Session, actor: Actor, operation: Operation, step: Step) -> None:
    """Stores the progress of a running operation, or its end. The caller has locked the operation."""
    progress = {
        "total": max(operation.progress["total"], step.left),
        "left": step.left,
        "waiting_for": [dict(each) for each in step.waiting_for[:SHOWN]],
    }
    if progress != operation.progress:
        operation.progress = progress
        operation.generation += 1
    if step.error is not None:
        operation.error = step.error.model_dump(mode="json")
        end(session, actor, operation, OperationState.FAILED)
    elif step.result is not None:
        operation.result = dict(step.result)
        end(session, actor, operation, OperationState.SUCCEEDED)
    session.flush()


def end(session: Session, actor: Actor, operation: Operation, state: OperationState) -> None:
    """Ends a running operation. The caller has locked it."""
    operation.state = state.value
    operation.done_at = now(session)
    operation.expires_at = now(session) + KEPT
    operation.generation += 1
    kind, detail = f"operation.{state.value}", _about(operation)
    if operation.error is not None:
        detail["code"] = operation.error["code"]
    events.record(session, actor, kind, operation.id, generation=operation.generation, detail=detail)


def list_operations(
    session: Session,
    actor: Actor,
    page: PageRequest,
    *,
    kind: str | None = None,
    target: str | None = None,
    state: OperationState | None = None,
) -> Page[wire.Operation]:
    """Returns operations, by id. For actors that see the whole cloud."""
    require_view(actor)
    wanted = {Operation.kind: kind, Operation.target: target, Operation.state: state.value if state else None}
    statement = select(Operation).where(*(column == value for column, value in wanted.items() if value is not None))
    rows, token = fetch(session, statement, kind="operations", keys=[Operation.id], page=page)
    return Page(items=[answer(row[0]) for row in rows], next_page_token=token)


def get_operation(session: Session, actor: Actor, operation_id: UUID) -> wire.Operation:
    """Returns one operation with its last stored progress. For actors that see the whole cloud."""
    require_view(actor)
    return answer(named(session, operation_id))


def named(session: Session, operation_id: UUID) -> Operation:
    """Returns an operation or raises Refusal(OBJECT_UNKNOWN)."""
    found = session.get(Operation, operation_id)
    if found is None:
        raise unknown("operation", operation_id)
    return found


def running(session: Session) -> list[UUID]:
    """Returns the running operations, for use within the API: a waiting client is checked before and after its wait."""
    return list(session.scalars(select(Operation.id).where(Operation.done_at.is_(None))))


def forget(session: Session) -> bool:
    """Deletes operations that ended long ago. A job of `housekeeping`: returns whether there may be more."""
    old = select(Operation.id).where(Operation.expires_at <= now(session)).limit(BATCH).scalar_subquery()
    return change(session, delete(Operation).where(Operation.id.in_(old))) == BATCH


def answer(row: Operation) -> wire.Operation:
    """Returns an operation as clients see it. A cancelled operation waits for nothing."""
    progress = wire.Progress.model_validate(row.progress)
    if row.state == OperationState.CANCELLED.value:
        progress = progress.model_copy(update={"waiting_for": []})
    return wire.Operation(
        id=row.id,
        kind=row.kind,
        target=row.target,
        state=OperationState(row.state),
        done=row.done_at is not None,
        progress=progress,
        request=row.request,
        result=row.result,
        error=None if row.error is None else wire.OperationError.model_validate(row.error),
        actor=row.actor,
        generation=row.generation,
        created_at=row.created_at,
        deadline_at=row.deadline_at,
        done_at=row.done_at,
        expires_at=row.expires_at,
    )


def _about(operation: Operation) -> dict[str, Any]:
    return {"kind": operation.kind, "target": operation.target}
