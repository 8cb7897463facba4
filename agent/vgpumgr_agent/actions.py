# SPDX-License-Identifier: Apache-2.0
"""Carries out plans. An action may be late, repeated or refused, because the next pass looks at the result."""

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from vgpumgr.control.listed import Trouble
from vgpumgr.errors import NotFoundError
from vgpumgr.notify import notify
from vgpumgr_agent import faults
from vgpumgr_agent.backends import SliceBackend
from vgpumgr_agent.executions import Executions
from vgpumgr_agent.helper.protocol import Code
from vgpumgr_agent.meter_store import Meter
from vgpumgr_agent.reconcile import (
    Action,
    AdmitProcesses,
    ApplySlice,
    BindGpu,
    ConfigureGroup,
    DismissProcesses,
    ForgetGroup,
    HaltExecutor,
    RemoveSlice,
    RenewPermit,
    StartExecutor,
    Why,
)
from vgpumgr_agent.refused import Refused
from vgpumgr_agent.released import Released
from vgpumgr_agent.report import SliceError
from vgpumgr_agent.store import Store

log = logging.getLogger(__name__)

_OVERTAKEN = (Code.SLICE_OPEN, Code.SLICE_PERMITTED, Code.SLICE_REMOVING)
_GONE = (Code.SLICE_REMOVING, Code.RECORD_MISSING, NotFoundError.code)


@dataclass
class Outcome:
    """The result of a plan. `done`: number of actions that changed something; `slices`: why slices are not in order."""

    done: int = 0
    refusals: list[str] = field(default_factory=list)
    slices: dict[UUID, SliceError] = field(default_factory=dict)


class Actions:
    """Carries out actions through one backend. `acting`: lock that is held during each action, so that no VM starts."""

    def __init__(
        self,
        *,
        backend: SliceBackend,
        store: Store,
        meter: Meter,
        released: Released,
        executions: Executions,
        acting: threading.Lock,
    ) -> None:
        self._backend = backend
        self._store = store
        self._meter = meter
        self._released = released
        self._executions = executions
        self._acting = acting

    def run(self, actions: Sequence[Action]) -> Outcome:
        """Carry out all actions that are possible. Raises UnavailableError once the backend no longer answers."""
        outcome = Outcome()
        for action in actions:
            self._try(action, outcome)
        return outcome

    def _try(self, action: Action, outcome: Outcome) -> None:
        try:
            with self._acting:
                outcome.done += self._act(action)
            faults.point("reconcile.acted")
        except Refused as error:
            if isinstance(action, StartExecutor) and error.code == Code.EXECUTOR_FAILED:
                self._executions.failed(action.uuid, error.reason)
            if isinstance(action, AdmitProcesses) and error.code == Code.BROKER_REFUSED and len(action.claims) > 1:
                for claim in action.claims:  # one bad claim makes the broker refuse all of them
                    self._try(AdmitProcesses((claim,)), outcome)
                return
            _note(outcome, action, error)
        notify(watchdog=True)  # each action may take seconds, and there may be many

    def _act(self, action: Action) -> bool:
        match action:
            case BindGpu(gpu):
                bound = self._backend.bind(gpu)
                log.info("GPU %s: %s", gpu, "shared by the module" if bound else "udev was asked to bind it")
                return bound
            case ConfigureGroup(group):
                self._backend.apply_group(group)
            case ForgetGroup(key):
                if self._store.group(*key) is not None:
                    return False
                # The group's counters are lost with it, so count them first. Nothing uses the group now. The lock keeps
                # it unused until a second look at the host has shown that it is gone.
                self._meter.watch(self._backend.observe)
                self._backend.forget_group(key)
                self._meter.watch(self._backend.observe)
                log.info("tenant %s on GPU %s: group forgotten", key[1], key[0])
            case ApplySlice(claim):
                self._backend.apply(claim)
            case RenewPermit(uuid):
                if not self._backend.renew(uuid):
                    return False
                log.info("slice %s: its VM is still starting: its permit was renewed", uuid)
            case StartExecutor(uuid):
                if not self._backend.execute(uuid):
                    return False
                self._executions.restarted(uuid)
                log.info("slice %s: its executor was started again", uuid)
            case HaltExecutor(uuid):
                self._backend.halt(uuid)
                log.info("slice %s: its executor, which it left, was ended", uuid)
            case AdmitProcesses(claims):
                if not self._backend.admit(claims):
                    return False
                for claim in claims:
                    log.info("claim %s: programs may start on GPU %s", claim.id, claim.gpu)
            case DismissProcesses(uuid, why):
                if not self._still(uuid, why):
                    return False
                # The last counters of the place are lost with it.
                self._meter.watch(self._backend.observe)
                self._backend.dismiss(uuid)
                log.info("claim %s: programs may not start any more: %s", uuid, why)
            case RemoveSlice(uuid, why):
                if not self._still(uuid, why):
                    return False
                gone = self._backend.remove(uuid, vm_gone=why is Why.RELEASED, withdraw=why is Why.TOMBSTONE)
                log.info("slice %s: %s: %s", uuid, "removed" if gone else "being removed", why)
                return gone
        return True

    def _still(self, uuid: UUID, why: Why) -> bool:
        """Return whether the reason still holds, now that the lock excludes other changes."""
        if why is Why.RELEASED:
            return uuid in self._released.all()
        if why is Why.ORPHAN:
            return self._store.fresh() and self._store.standing(uuid).claim is None
        return why is not Why.TOMBSTONE or self._store.standing(uuid).deleted


def _note(outcome: Outcome, action: Action, error: Refused) -> None:
    match action:
        case BindGpu(gpu):
            if error.code not in tuple(Trouble):  # these troubles are reported elsewhere, in their own words
                outcome.refusals.append(f"GPU {gpu}: not bound: {error.reason}")
        case ConfigureGroup(group):
            outcome.refusals.append(f"tenant {group.tenant} on GPU {group.gpu}: {error.reason}")
        case ForgetGroup(key):
            outcome.refusals.append(f"tenant {key[1]} on GPU {key[0]}: not forgotten: {error.reason}")
        case ApplySlice(claim):
            outcome.slices[claim.id] = SliceError(error.reason)
        case AdmitProcesses(claims):
            outcome.slices |= {claim.id: SliceError(f"{error.code}: {error.reason}") for claim in claims}
        case DismissProcesses(uuid, _):
            outcome.slices[uuid] = SliceError(f"{error.code}: {error.reason}")
        case RenewPermit(uuid):
            if error.code not in _GONE:
                outcome.slices[uuid] = SliceError(
                    f"{Code.PERMIT_REFUSED}: its VM is starting, and its permit was not renewed: {error.reason}",
                    Code.PERMIT_REFUSED,
                )
        case StartExecutor(uuid):
            if error.code not in _GONE:
                outcome.slices[uuid] = SliceError(error.reason)
        case HaltExecutor(uuid):
            if error.code != Code.EXECUTOR_NEEDED:
                outcome.refusals.append(f"slice {uuid}: its executor was not ended: {error.reason}")
        case RemoveSlice(uuid, _):
            if error.code not in _OVERTAKEN:
                outcome.slices[uuid] = SliceError(error.reason)
