# SPDX-License-Identifier: Apache-2.0
"""The agent's answers to libvirt's hook: which VM may start with which slices.

Decisions rest on the claim and the VM's UUID, and on nothing else in the domain XML. Codes of a refusal: claim.missing,
claim.deleted, claim.moved, claim.moving, claim.other_vm, claim.processes, claim.unbound, lease.expired, group.missing,
host.copied, host.fenced, host.maintenance, host.unconfirmed, gpu.absent, gpu.unknown_slices, host.not_ready, host.busy,
agent.timeout; the API's codes when it refuses to bind; and those of the helper and the kernel, such as capacity.none,
host.unwritable, permit.refused, slice.open or executor.failed.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from typing import Protocol
from uuid import UUID

from vgpumgr.cards import is_nowhere
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import ControlUnavailableError, UnknownGpuError, VgpumgrError
from vgpumgr.wire.fleet import DesiredSlice
from vgpumgr_agent import faults
from vgpumgr_agent.api import QUICK_S, ApiAwayError, ApiRefusedError
from vgpumgr_agent.backends import Observed, SliceBackend
from vgpumgr_agent.helper.protocol import Code
from vgpumgr_agent.hook.service import PREPARE_LIMIT_S
from vgpumgr_agent.permits import Permits
from vgpumgr_agent.places import is_for_processes
from vgpumgr_agent.placing import called
from vgpumgr_agent.refused import Refused, UnavailableError
from vgpumgr_agent.released import Released
from vgpumgr_agent.report import SliceError
from vgpumgr_agent.standing import Standing
from vgpumgr_agent.store import COPIED, Store

log = logging.getLogger(__name__)

MAINTENANCE = "maintenance"
PERMIT_EXPIRED = "permit.expired"

_DECIDE_S = PREPARE_LIMIT_S - 2
_RETRY_PAUSE_S, _ASK_PAUSE_S = 0.1, 0.5
_FIRST_ANSWER_S = _DECIDE_S - QUICK_S - 1
"""How long to wait for the API's first answer. The last try may take QUICK_S longer, and devices take the rest."""

# These refusals are temporary. The kernel may still be removing the slice. Soon after boot the module may not be
# loaded, or not have the GPU yet.
_PASSING = (Code.SLICE_REMOVING, ControlUnavailableError.code, UnknownGpuError.code)


class Control(Protocol):
    """The control plane's part that the hook needs. Raises ApiAwayError, ApiRefusedError, within a few seconds."""

    def bind(self, uuid: UUID, vm_uuid: UUID) -> None:
        """Ask the API to bind a slice to a VM, and store the binding on this host."""

    def refresh(self) -> None:
        """Fetch the desired state now."""


class _NotYetError(Refused):
    """A refusal that may no longer apply a moment later. It is retried within the hook's time."""


class _NoTimeError(Refused):
    """A refusal because the hook's time is over. If an earlier attempt was refused, its reason is reported instead."""


class Hooks:
    """The `HookService` of the agent."""

    def __init__(
        self,
        *,
        store: Store,
        backend: SliceBackend,
        sysfs: Sysfs,
        control: Control,
        released: Released,
        acting: threading.Lock,
        look: Callable[[], object],
        wake: Callable[[], None],
    ) -> None:
        """`acting`: the lock of all changes of slices; `wake`: makes the reconciler look at once.

        `look`: finds where this host's cards are now. It raises Refused, UnavailableError.
        """
        self._store = store
        self._backend = backend
        self._sysfs = sysfs
        self._control = control
        self._released = released
        self._acting = acting
        self._look = look
        self._wake = wake
        self._permits = Permits(lambda: store.clock.now().boottime_s)
        self._waited = False
        self._failed: dict[UUID, SliceError] = {}

    def failed(self) -> dict[UUID, SliceError]:
        """Return for the report, by slice, why the last VM that asked for the slice did not get it.

        A slice is listed until a VM gets it.
        """
        return {uuid: why for uuid, why in self._failed.copy().items() if self._store.standing(uuid).claim is not None}

    def prepare(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Admit the VM and create its slices."""
        deadline = time.monotonic() + _DECIDE_S
        named = list(dict.fromkeys([*devices, *metadata]))
        self._ask(named)
        ours = [uuid for uuid in named if uuid in metadata or self._ours(uuid)]
        if not ours:
            return
        if self._store.kept is None:
            raise Refused(
                "host.not_ready", "this host knows no claims yet; check with `vgpumgr host doctor` that it is enrolled"
            )
        if self._store.kept.host_state == MAINTENANCE:
            raise Refused(
                "host.maintenance",
                "this host is in maintenance; start the VM when that is over (`vgpumgr host uncordon`)",
            )
        claims = [self._admitted(uuid, vm_uuid) for uuid in ours]
        for claim in claims:
            if claim.vm_uuid is None:
                _require_time(deadline)
                self._bind(claim, vm_uuid)
        made = [uuid for uuid in ours if uuid in devices]
        try:
            self._make_all(made, vm_uuid, deadline)
        except Refused as refused:
            self._failed |= {uuid: self._not_started(refused.told_of(uuid), refused.code) for uuid in made}
            self._wake()
            raise
        self._permits.given(made)
        for uuid in made:
            self._failed.pop(uuid, None)
        faults.point("hook.ready")
        log.info("domain %r (%s) may start with %s", domain, vm_uuid, ", ".join(map(str, ours)))
        self._wake()

    def started(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Withdraw the permits that the VM did not use, and have the new state reported."""
        log.info("domain %r (%s) runs with %s", domain, vm_uuid, ", ".join(map(str, devices)) or "nothing of ours")
        self._take_back(vm_uuid, devices)
        if metadata or devices:
            self._wake()

    def note_expired(self, observed: Observed) -> None:
        """Record for the report which VMs have not opened their slices in time. `observed`: the present state."""
        for uuid in self._permits.expired(observed):
            why = (
                f"{PERMIT_EXPIRED}: the VM did not open the slice in time, and no QEMU process is left that might; "
                "see libvirt's log of the VM"
            )
            log.warning("slice %s: %s", uuid, why)
            self._failed[uuid] = self._not_started(why, PERMIT_EXPIRED)

    def _not_started(self, why: str, code: str) -> SliceError:
        """Return the error for the report. The text of a permit problem includes its time.

        So the report distinguishes it from an earlier problem.
        """
        if code not in (PERMIT_EXPIRED, Code.PERMIT_REFUSED):
            return SliceError(f"a VM did not start: {why}", code)
        at = datetime.fromtimestamp(self._store.clock.now().wall_s, UTC)
        return SliceError(f"a VM did not start at {at:%Y-%m-%dT%H:%M:%SZ}: {why}", code)

    def release(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], reason: str) -> None:
        """Queue the removal of the slices that are claimed for this VM."""
        for uuid in dict.fromkeys([*devices, *metadata]):
            claim = self._store.standing(uuid).claim
            if claim is not None and claim.vm_uuid == vm_uuid:
                log.info("slice %s released: %s", uuid, reason)
                self._released.add(uuid)
        faults.point("hook.released")
        self._wake()

    def hotplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:
        """Admit the VM and create the devices, as for a VM that starts."""
        self.prepare(vm_uuid=vm_uuid, devices=devices, metadata=metadata, domain=domain)

    def unplug(self, *, vm_uuid: UUID, devices: Sequence[UUID], metadata: Sequence[UUID], domain: str) -> None:  # noqa: ARG002 - HookService
        """Withdraw permits while the VM still runs. The reconciler removes closed devices."""
        log.info("domain %r (%s) gave back %s", domain, vm_uuid, ", ".join(map(str, devices)))
        self._take_back(vm_uuid, devices)
        self._wake()

    def _take_back(self, vm_uuid: UUID, devices: Sequence[UUID]) -> None:
        for uuid in dict.fromkeys(devices):
            claim = self._store.standing(uuid).claim
            if claim is None or claim.vm_uuid != vm_uuid:
                continue
            self._permits.over([uuid])
            try:
                with self._turn(time.monotonic() + _DECIDE_S):
                    self._backend.withdraw(uuid)
            except (Refused, UnavailableError) as error:
                log.info("slice %s: permit not withdrawn: %s", uuid, error)

    # ---- who may

    def _ask(self, named: Sequence[UUID]) -> None:
        """Ask the API about claims that are not certain here.

        Ask once. If the API has not answered since our start, retry for some seconds.

        Retries matter at boot: VMs may start before the network does, and the host may have been fenced since the API's
        last answer.
        """
        until = time.monotonic() + _FIRST_ANSWER_S
        while any(map(self._unsure, named)):
            try:
                self._control.refresh()
                return
            except (ApiAwayError, ApiRefusedError) as error:
                if isinstance(error, ApiRefusedError) or self._store.heard or time.monotonic() >= until:
                    log.info("a claim is not certain, and the API cannot be asked: %s", error)
                    self._waited = True
                    return
            time.sleep(_ASK_PAUSE_S)

    def _unsure(self, uuid: UUID) -> bool:
        standing = self._store.standing(uuid)
        if standing.claim is None:  # the claim may have been made a moment ago
            return not standing.deleted and not self._foreign(uuid)
        if self._store.heard:
            return False
        # If several VMs start with claims that are valid without the API, only the first one waits for the API.
        return standing.claim.vm_uuid is None or not standing.lease_left_s or not self._waited

    def _ours(self, uuid: UUID) -> bool:
        """Return whether we know a device, or it is on a GPU of ours."""
        return self._store.standing(uuid).known or (self._exists(uuid) and not self._foreign(uuid))

    def _exists(self, uuid: UUID) -> bool:
        return self._sysfs.exists(str(uuid))

    def _foreign(self, uuid: UUID) -> bool:
        """Return whether a device exists and belongs to another vendor."""
        if not self._exists(uuid):
            return False
        try:
            return not any(str(uuid) in self._sysfs.slices(gpu) for gpu in self._sysfs.gpus())
        except (VgpumgrError, OSError):  # our module is being unloaded
            return True

    def _admitted(self, uuid: UUID, vm_uuid: UUID) -> DesiredSlice:
        standing = self._store.standing(uuid)
        claim = standing.claim
        if claim is None:
            raise _unclaimed(uuid, standing)
        if is_for_processes(claim):
            raise Refused("claim.processes", f"{uuid} is claimed for processes; claim a slice for this VM")
        if claim.vm_uuid not in (None, vm_uuid):
            raise Refused("claim.other_vm", f"slice {uuid} is claimed for another VM; claim a slice for this VM")
        _require_unfenced(uuid, standing)
        if not standing.lease_left_s:
            raise Refused(
                "lease.expired", f"the claim of slice {uuid} is too old to trust; make the API reachable from this host"
            )
        _require_confirmed(uuid, standing)
        return claim

    def _bind(self, claim: DesiredSlice, vm_uuid: UUID) -> None:
        try:
            self._control.bind(claim.id, vm_uuid)
        except ApiAwayError as error:
            log.warning("binding slice %s: %s", claim.id, error)
            raise Refused(
                "claim.unbound", f"slice {claim.id} is bound to no VM, and the API is away; try again when it is back"
            ) from error
        except ApiRefusedError as error:
            raise Refused(error.code, f"slice {claim.id} cannot be bound to this VM: {error}") from error

    # ---- making

    def _make_all(self, uuids: Sequence[UUID], vm_uuid: UUID, deadline: float) -> None:
        released = not self._released.all().isdisjoint(uuids)
        earlier: Refused | None = None
        while True:
            try:
                with self._turn(deadline), ExitStack() as undo:
                    self._require_own_machine()
                    self._find_cards(uuids)
                    for uuid in uuids:
                        with _about(uuid):
                            self._make(uuid, vm_uuid, deadline, undo)
                    undo.pop_all()
                return
            except Refused as refused:
                # The slice may be open only because the kernel is still releasing a VM that is gone.
                passes = isinstance(refused, _NotYetError) or (released and refused.code == Code.SLICE_OPEN)
                if earlier is not None and isinstance(refused, _NoTimeError):
                    raise earlier from None
                if not passes or time.monotonic() + _RETRY_PAUSE_S > deadline:
                    raise
                earlier = refused
            time.sleep(_RETRY_PAUSE_S)

    def _require_own_machine(self) -> None:
        """Refuse if this host runs from a copy of another host's disk: two hosts would use the same claims."""
        if not self._store.placed:
            with _refusing():
                self._look()
        if self._store.copied:
            raise Refused("host.copied", COPIED)

    def _find_cards(self, uuids: Sequence[UUID]) -> None:
        """Look for cards again: since the last look one may have been plugged in, or moved while the host was off."""
        claims = [claim for uuid in uuids if (claim := self._store.standing(uuid).claim) is not None]
        if any(claim.card is not None for claim in claims):
            with _refusing():
                self._look()

    def _make(self, uuid: UUID, vm_uuid: UUID, deadline: float, undo: ExitStack) -> None:
        _require_time(deadline)
        claim = self._current(uuid, vm_uuid)
        if claim.card is not None and is_nowhere(claim.gpu):
            raise _NotYetError(  # the card's driver may still be loading
                "gpu.absent",
                f"the GPU {called(claim.card)} of slice {uuid} is not in this host, another one is where it was; "
                "put it back, or claim another slice",
                to_tenant="its GPU is not in its host; claim another slice, or have the operator put it back",
            )
        group = self._store.group(claim.gpu, claim.tenant)
        if group is None:
            raise Refused("group.missing", f"tenant {claim.tenant} has no group on GPU {claim.gpu} yet; try again")
        standing = self._store.standing(uuid)
        if standing.unproven:
            _require_confirmed(uuid, standing)
            self._require_place(claim)
        self._released.discard(uuid)
        with _refusing():
            self._backend.apply_group(group)
        faults.point("hook.configured")
        timeout_s = max(0.1, deadline - time.monotonic())
        with _refusing():
            try:
                created = self._backend.prepare(claim, vm_uuid=vm_uuid, timeout_s=timeout_s)
            except UnavailableError:
                undo.callback(self._revert, uuid, created=False)  # the helper may have created the slice
                raise
        undo.callback(self._revert, uuid, created=created)
        faults.point("hook.prepared")
        _require_time(deadline)
        self._current(uuid, vm_uuid)  # the claim may have been deleted and reported absent meanwhile

    def _current(self, uuid: UUID, vm_uuid: UUID) -> DesiredSlice:
        standing = self._store.standing(uuid)
        if standing.moved is not None:
            raise _unclaimed(uuid, standing)
        if standing.claim is None or standing.claim.vm_uuid != vm_uuid:
            raise Refused("claim.deleted", f"slice {uuid} was deleted meanwhile; remove it from the domain")
        _require_unfenced(uuid, standing)
        return standing.claim

    def _require_place(self, claim: DesiredSlice) -> None:
        """Check that the place of a claim, which may have been given to others, is free."""
        with _refusing():
            observed = self._backend.observe()
        if unnamed := self._store.unnamed(claim.gpu, observed.taken(claim.gpu)) - {claim.id}:
            raise Refused(
                "gpu.unknown_slices",
                f"slice {claim.id} may have lost its place to slice {min(unnamed)}, which the database does not know; "
                "stop that one's VM, wait where it has none, or claim another slice",
                to_tenant="another slice, which the database does not know, may have its place; claim another one",
            )

    def _revert(self, uuid: UUID, *, created: bool) -> None:
        try:
            if created:
                self._backend.remove(uuid, vm_gone=False, withdraw=True)
            else:
                self._backend.withdraw(uuid)
        except (Refused, UnavailableError) as error:  # the reconciler finds the slice
            log.warning("slice %s: not undone: %s", uuid, error)

    @contextmanager
    def _turn(self, deadline: float) -> Iterator[None]:
        if not self._acting.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise _NoTimeError("host.busy", "changes of other slices take too long; try again")
        try:
            yield
        finally:
            self._acting.release()


def _unclaimed(uuid: UUID, standing: Standing) -> Refused:
    """Return the refusal for a slice without a claim."""
    if (moved := standing.moved) is not None:
        return Refused(
            "claim.moved",
            f"slice {uuid} was moved to host {moved.host}; start the VM there, with slice {moved.slice_id}",
        )
    if (arriving := standing.arriving) is not None:
        return Refused(
            "claim.moving",
            f"slice {uuid} is moving here, and host {arriving.from_host} has not confirmed that it left; try"
            " again, or have an operator say that that host is off",
        )
    if standing.deleted:
        return Refused("claim.deleted", f"slice {uuid} was deleted; remove it from the domain")
    return Refused("claim.missing", f"no claim for slice {uuid} on this host; claim it, or remove it from the domain")


def _require_unfenced(uuid: UUID, standing: Standing) -> None:
    if standing.fenced:
        raise Refused(
            "host.fenced",
            f"this host was declared dead and slice {uuid} given up; start the VM on another host with a new slice,"
            " and have this host re-enrolled",
        )


def _require_confirmed(uuid: UUID, standing: Standing) -> None:
    if standing.doubt:
        raise Refused("host.unconfirmed", f"slice {uuid} may have ended long ago: {standing.doubt}")


def _require_time(deadline: float) -> None:
    """Refuse once the deadline has passed: libvirt is about to get a refusal, so nothing may be permitted now."""
    if time.monotonic() >= deadline:
        raise _NoTimeError("agent.timeout", "the agent did not decide in time; see its log, and try again")


@contextmanager
def _about(uuid: UUID) -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        refused.slice_id = uuid
        raise


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except Refused as error:
        code = "host.not_ready" if error.code in (Code.MODULE_ABI, ControlUnavailableError.code) else error.code
        refusal = _NotYetError if error.code in _PASSING else Refused
        raise refusal(code, error.reason) from error
    except UnavailableError as error:
        raise Refused("host.not_ready", error.reason) from error
