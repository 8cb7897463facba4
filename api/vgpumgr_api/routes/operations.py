# SPDX-License-Identifier: Apache-2.0
"""Operations: work that takes longer than a request."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Body, Query
from starlette.concurrency import run_in_threadpool

from vgpumgr.wire.common import Name, Page
from vgpumgr.wire.events import Kind
from vgpumgr.wire.operations import Operation, OperationCancel, OperationState
from vgpumgr_api.background import operating
from vgpumgr_api.edge.call import Call, CallDep, IfMatch, PageDep, TrialDep, authenticate, operations_watch_of
from vgpumgr_api.edge.strict import Route
from vgpumgr_api.events.watch import RUNNING
from vgpumgr_api.operations import operations
from vgpumgr_api.overload.turns import metered

WAIT_S_MAX = 60

router = APIRouter(prefix="/v1/operations", tags=["operations"], route_class=Route)


@router.get("")
def list_operations(
    call: CallDep,
    page: PageDep,
    kind: Annotated[Kind | None, Query(description="such as `host.drain`")] = None,
    target: Name | None = None,
    state: OperationState | None = None,
) -> Page[Operation]:
    """Lists operations that are running or ended within a week, filtered by kind, target or state."""
    return call.read(operations.list_operations, page, kind=kind, target=target, state=state)


@router.get("/{operation_id}")
async def get_operation(
    call: CallDep,
    operation_id: UUID,
    wait_s: Annotated[int, Query(ge=0, le=WAIT_S_MAX, description="seconds to wait for its end")] = 0,
) -> Operation:
    """Returns an operation's progress. With `wait_s`, answers when it is done, or after that time."""
    async with call.turn():
        found = await run_in_threadpool(metered, _look, call, operation_id)
    if not found.done and wait_s:
        await operations_watch_of(call.request).changed(operation_id, RUNNING, wait_s)
        async with call.turn():
            found = await run_in_threadpool(metered, _look_again, call, operation_id)
    call.tag(found.id, found.generation)
    return found


@router.post("/{operation_id}:cancel")
def cancel_operation(
    call: TrialDep,
    operation_id: UUID,
    wanted: Annotated[OperationCancel, Body(default_factory=OperationCancel)],
    if_match: IfMatch,
) -> Operation:
    """Ends a running operation. With `undo`, its target becomes what it was before."""
    cancelled = call.write(operating.cancel_operation, operation_id, wanted, if_match=if_match)
    call.tag(cancelled.id, cancelled.generation)
    return cancelled


def _look(call: Call, operation_id: UUID) -> Operation:
    """Takes a step of a running operation, so that the answer is current."""
    found = call.read(operations.get_operation, operation_id)
    if found.done:
        return found
    call.write(operating.look, operation_id)
    return call.read(operations.get_operation, operation_id)


def _look_again(call: Call, operation_id: UUID) -> Operation:
    """Authenticates again, because the token may have been revoked during the wait."""
    return _look(Call(call.request, call.response, authenticate(call.request)), operation_id)
