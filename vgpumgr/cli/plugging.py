# SPDX-License-Identifier: Apache-2.0
"""Attaches a claimed slice to a domain and detaches it: definition, metadata, and the running VM.

Each step is skipped if it is already done, so both operations can be repeated. When a step of attaching fails, the
steps before it are undone. Detaching begins with the running VM. If its guest refuses, nothing is changed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from vgpumgr.cli.agent_socket import AgentSocket
from vgpumgr.cli.domain import Domain
from vgpumgr.errors import VgpumgrError, WaitEndedError

POLL_S = 0.2


@dataclass
class Steps:
    """Undoes the noted steps, the last one first, when its block ends with an exception."""

    undo: list[tuple[str, Callable[[], None]]] = field(default_factory=list)

    def __enter__(self) -> "Steps":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        left = []
        for what, undo in reversed(self.undo):
            try:
                undo()
            except VgpumgrError as failure:
                left.append(f"{what} ({failure})")
        if left and error.args:
            error.args = (f"{error.args[0]}; could not undo: {', '.join(left)}", *error.args[1:])

    def done(self, what: str, undo: Callable[[], None]) -> None:
        """Note a completed step and how to undo it."""
        self.undo.append((what, undo))


def attach_slice(domain: Domain, slice_id: UUID, agent: AgentSocket) -> list[str]:
    """Attach; return the parts that changed: "definition", "running VM". LibvirtFailedError, AgentRefusedError, ..."""
    changed = []
    with Steps() as steps:
        if domain.persistent and _define(domain, slice_id, steps, live=False):
            changed.append("definition")
        if domain.running():
            plugged = slice_id not in domain.devices(live=True)
            if plugged:
                name, vm_uuid = domain.name, domain.uuid
                agent.hotplug(domain=name, vm_uuid=vm_uuid, slice_id=slice_id)
                steps.done("the agent's permit", lambda: agent.unplug(domain=name, vm_uuid=vm_uuid, slice_id=slice_id))
            if _define(domain, slice_id, steps, live=True):
                changed.append("running VM")
    return changed


def _define(domain: Domain, slice_id: UUID, steps: Steps, *, live: bool) -> bool:
    """Add device and metadata; return whether either was missing."""
    where = "running VM" if live else "definition"
    missing = slice_id not in domain.devices(live=live)
    if missing:
        domain.add_device(slice_id, live=live)
        steps.done(f"the device of the {where}", lambda: domain.remove_device(slice_id, live=live))
    ids = domain.slices(live=live)
    if not _names(ids, slice_id):
        domain.set_slices([*ids, str(slice_id)], live=live)
        steps.done(f"the metadata of the {where}", lambda: domain.set_slices(ids, live=live))
        missing = True
    return missing


def detach_slice(
    domain: Domain,
    slice_id: UUID,
    agent: AgentSocket,
    *,
    wait_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> list[str]:
    """Detach; return the parts that changed. WaitEndedError if the guest keeps the device for `wait_s`."""
    changed = []
    if domain.running():
        if slice_id in domain.devices(live=True):
            domain.remove_device(slice_id, live=True)
            _await_gone(domain, slice_id, clock() + wait_s, sleep, clock)
            changed.append("running VM")
        if domain.running() and _forget(domain, slice_id, live=True) and not changed:
            changed.append("running VM")
    if domain.persistent:
        present = slice_id in domain.devices(live=False)
        if present:
            domain.remove_device(slice_id, live=False)
        if _forget(domain, slice_id, live=False) or present:
            changed.append("definition")
    if domain.running():
        # Ask even if nothing changed: an earlier attempt may have ended before this point. The request is repeatable.
        agent.unplug(domain=domain.name, vm_uuid=domain.uuid, slice_id=slice_id)
    return changed


def _forget(domain: Domain, slice_id: UUID, *, live: bool) -> bool:
    ids = domain.slices(live=live)
    kept = [entry for entry in ids if not _names([entry], slice_id)]
    if kept == ids:
        return False
    domain.set_slices(kept, live=live)
    return True


def _names(ids: list[str], slice_id: UUID) -> bool:
    return any(entry.lower() == str(slice_id) for entry in ids)


def _await_gone(
    domain: Domain,
    slice_id: UUID,
    deadline_s: float,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    # If the VM stops meanwhile, its device is gone, and libvirt then answers with the definition.
    while domain.running() and slice_id in domain.devices(live=True):
        if clock() >= deadline_s:
            raise WaitEndedError(
                f"the guest of domain {domain.name} still uses slice {slice_id}; end its work there, and detach again"
            )
        sleep(POLL_S)
