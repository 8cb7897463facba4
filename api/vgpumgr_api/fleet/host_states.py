# SPDX-License-Identifier: Apache-2.0
"""The states of hosts and their transitions.

Operators set a host to ready, cordoned or maintenance; a drain sets it to draining. Only a ready host takes claims. A
host that is silent for too long is lost, whatever its state, unless it is in maintenance; once it reports, its previous
state applies again. The host's agent gets every change of state, and in maintenance starts no VM with a slice.
"""

from datetime import datetime

from sqlalchemy import ColumnElement, and_, case, func, select
from sqlalchemy.orm import Session

from vgpumgr.wire.problem import Code, Reason, Subject
from vgpumgr.wire.resources import HostState
from vgpumgr_api.actors import Actor
from vgpumgr_api.db.models import Gpu, Host, Slice
from vgpumgr_api.db.observations import HostReport, SliceObservation
from vgpumgr_api.db.progress import Operation
from vgpumgr_api.errors import Refusal
from vgpumgr_api.events import events
from vgpumgr_api.resources.generations import bump
from vgpumgr_api.resources.in_use import refuse_slices

DRAIN = "host.drain"
"""The kind of operation that drains a host."""


def operators_state(host: Host) -> HostState:
    """Returns the state that operators or a drain have set, regardless of whether the host reports."""
    return HostState(host.cordoned_for or host.state)


def state_of(host: Host, lost_at: datetime | None) -> HostState:
    """Returns the state of a host. `lost_at`: that of its report row."""
    state = operators_state(host)
    return HostState.LOST if lost_at is not None and state is not HostState.MAINTENANCE else state


def state_of_row() -> ColumnElement[str]:
    """Returns the state for a row of `Host` that is joined with its `HostReport`, if it has one."""
    operators = func.coalesce(Host.cordoned_for, Host.state)
    lost = and_(HostReport.lost_at.is_not(None), operators != HostState.MAINTENANCE.value)
    return case((lost, HostState.LOST.value), else_=operators)


def enter(session: Session, actor: Actor, host: Host, state: HostState) -> None:
    """Sets the state of a host, if it differs. The caller holds the host's lock and has checked permission."""
    if operators_state(host) is state:
        return
    host.state = "ready" if state is HostState.READY else "cordoned"
    host.cordoned_for = state.value if state in (HostState.DRAINING, HostState.MAINTENANCE) else None
    host.generation += 1
    events.record(session, actor, f"host.{state.value}", host.name, generation=host.generation)
    session.flush()
    bump(session, [host.id])


def require_not_draining(session: Session, host: Host) -> None:
    """Refuses to change the state of a host while a drain is running."""
    if operators_state(host) is not HostState.DRAINING:
        return
    found = session.scalar(
        select(Operation.id).where(Operation.kind == DRAIN, Operation.target_id == host.id, Operation.done_at.is_(None))
    )
    why = f"{host.name} is being drained by operation {found}; wait for that, or cancel it first"
    reason = Reason(code=Code.HOST_DRAINING.value, detail=why, about=Subject(kind="operation", id=found))
    raise Refusal(Code.HOST_DRAINING, why, reasons=(reason,))


def require_unused(session: Session, host: Host) -> None:
    """Refuses if the host's last report named devices of slices."""
    refuse_slices(
        session,
        Slice.gpu_id.in_(select(Gpu.id).where(Gpu.host_id == host.id)),
        Slice.id.in_(select(SliceObservation.slice_id).where(SliceObservation.present)),
        found=f"{host.name} has devices of",
        advice="stop the VMs there, or drain it with then=maintenance",
    )
