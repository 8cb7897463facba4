# SPDX-License-Identifier: Apache-2.0
"""The helper's operations, step by step. Each may be retried, and may be interrupted between any two steps.

The order of the steps makes a crash harmless. A slice is recorded before it is created, and forgotten after it is gone.
The permit is given last, when everything else about the slice is in place.
"""

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

from vgpumgr.control.listed import MENDABLE, SETTINGS, Trouble, adoptable, listed, trouble
from vgpumgr.control.model import Gpu, Slice, Tenant
from vgpumgr.control.sysfs import Sysfs
from vgpumgr.errors import (
    BusyError,
    ControlUnavailableError,
    InvalidFieldError,
    NotFoundError,
    RefusedError,
    UnknownGpuError,
)
from vgpumgr_agent import faults
from vgpumgr_agent.helper.brokers import Brokers
from vgpumgr_agent.helper.execution import Execution
from vgpumgr_agent.helper.executors import Executors
from vgpumgr_agent.helper.observation import observe, observe_without_module
from vgpumgr_agent.helper.protocol import Code
from vgpumgr_agent.helper.records import Record, Records
from vgpumgr_agent.helper.removals import Removals
from vgpumgr_agent.helper.vms import is_starting
from vgpumgr_agent.refused import Refused

log = logging.getLogger(__name__)

ABI_MAJOR = "2"
_REMOVE_WAIT_S = 2.0
_CLOSE_WAIT_S, _CLOSE_PAUSE_S = 1.0, 0.05
_BIND_WAIT_S, _BIND_PAUSE_S = 1.0, 0.05
_LOCK_WAIT_S = 6.0
_OURS_TO_MEND = SETTINGS | {Trouble.UNADOPTED}


class NetlinkControl(Protocol):
    """The part of `vgpumgr.control.netlink.Control` that is used here."""

    def adopt_gpu(self, name: str, *, attach: str | None = None) -> None: ...
    def gpus(self) -> list[Gpu]: ...
    def tenant(self, gpu: str, tenant: str) -> Tenant: ...
    def tenants(self, gpu: str | None = None) -> list[Tenant]: ...
    def slice(self, uuid: str) -> Slice: ...
    def slices(self, gpu: str | None = None) -> list[Slice]: ...
    def set_tenant(
        self,
        gpu: str,
        tenant: str,
        *,
        weight: int | None = None,
        timeslice_us: int | None = None,
        cap_us: int | None = None,
        cap_period_us: int | None = None,
        burst_us: int | None = None,
        mode: str | None = None,
        band: str | None = None,
        reserve_us: int | None = None,
        reserve_period_us: int | None = None,
    ) -> int: ...
    def delete_tenant(self, gpu: str, tenant: str) -> None: ...
    def set_slice(
        self,
        uuid: str,
        *,
        tenant: str | None = None,
        weight: int | None = None,
        cap_us: int | None = None,
        cap_period_us: int | None = None,
    ) -> None: ...
    def close(self) -> None: ...


class Operations:
    """The helper's operations. Threads may share it: operations on the same slice or group are serialised."""

    def __init__(
        self,
        *,
        sysfs: Sysfs,
        open_control: Callable[[], NetlinkControl],
        records: Records,
        executors: Executors,
        brokers: Brokers,
    ) -> None:
        """`open_control`: opens a client of the loaded module. It is closed after each operation."""
        self._sysfs = sysfs
        self._open_control = open_control
        self._records = records
        self._execution = Execution(sysfs, executors)
        self._brokers = brokers
        self._removals = Removals()
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._users: Counter[str] = Counter()

    def run(self, operation: str, members: dict[str, Any]) -> dict[str, Any]:
        """Run an operation whose members `request.parse` has checked. Return the members of the answer.

        Raises Refused, VgpumgrError, OSError.
        """
        if operation == "bind":  # may have to load the module first
            return self._bind(**members)
        if operation == "admit":  # the module has no part in admit and dismiss
            return self._brokers.admit(**members)
        if operation == "dismiss":
            return self._brokers.dismiss(**members)
        try:
            return self._ask_module(operation, members)
        except ControlUnavailableError:
            if operation != "observe" or not self._brokers.set_aside():
                raise
            return observe_without_module(self._sysfs, brokers=self._brokers.all)

    def _ask_module(self, operation: str, members: dict[str, Any]) -> dict[str, Any]:
        self._check_abi()
        control = self._open_control()
        try:
            method: Callable[..., dict[str, Any]] = getattr(self, f"_{operation}")
            return method(control, **members)
        finally:
            control.close()

    # ---- GPUs

    def _bind(self, *, gpu: str) -> dict[str, Any]:
        """Share a GPU of the configuration: bind it, set its engine, and close it to VMs without a permit.

        A udev rule binds the GPU to the module. A GPU that stays with its vendor's driver is adopted, and never taken
        from that driver.

        Udev does the steps that this process has no privileges for, such as loading a module or a driver. These steps
        may take longer than this function waits, so the caller checks again later.
        """
        with self._locked(gpu):
            if gpu not in listed(self._sysfs.paths) and gpu not in adoptable(self._sysfs.paths):
                where = self._sysfs.paths.listed_gpus
                raise Refused(Code.GPU_UNLISTED, f"GPU {gpu} is not listed in {where}")
            found = trouble(self._sysfs, gpu)
            if found is None:
                return {"changed": False}
            if found.code not in MENDABLE:
                raise Refused(found.code, found.reason)
            if found.code not in _OURS_TO_MEND:
                self._sysfs.announce(gpu)
                deadline = time.monotonic() + _BIND_WAIT_S
                while (found := trouble(self._sysfs, gpu)) is not None and time.monotonic() < deadline:
                    if found.code in _OURS_TO_MEND:
                        break
                    time.sleep(_BIND_PAUSE_S)
            if found is not None and found.code is Trouble.UNADOPTED:
                self._adopt_gpu(gpu)
                found = trouble(self._sysfs, gpu)
            if found is not None and found.code in SETTINGS:
                # The engine cannot change once VMs use the GPU, so set it before they may use the GPU.
                self._execution.set_engine(gpu)
                self._require_permits(gpu)
                found = None
            return {"changed": found is None}

    def _adopt_gpu(self, gpu: str) -> None:
        """Adopt a GPU, closed to VMs without a permit from the first moment. Raises VgpumgrError from the kernel."""
        self._execution.require_adoptable(gpu)
        control = self._open_control()
        try:
            control.adopt_gpu(gpu, attach="permit")
        finally:
            control.close()

    # ---- groups

    def _configure(
        self,
        control: NetlinkControl,
        *,
        gpu: str,
        tenant: str,
        weight: int,
        timeslice_us: int,
        cap_us: int,
        cap_period_us: int,
        mode: str,
        band: str,
        reserve_us: int,
        reserve_period_us: int,
    ) -> dict[str, Any]:
        self._known(gpu)
        with self._locked(f"{gpu} {tenant}"):
            with suppress(Refused):  # shares of running VMs are applied even if the settings are invalid
                self._execution.set_engine(gpu)
            self._require_permits(gpu)
            faults.point("configure.attached")
            # The burst is the size of the cap's bucket. A full bucket gains no time while its group waits for a turn.
            # With a burst of one timeslice, a busy group loses a few percent of its cap; with two timeslices, it loses
            # nothing.
            burst = {"burst_us": 2 * timeslice_us if cap_us else 0}
            wanted: dict[str, Any] = {"weight": weight, "timeslice_us": timeslice_us, "mode": mode, "band": band}
            wanted |= {**_cap(cap_us, cap_period_us), **burst}
            if band == "latency":  # the fair band withdraws the reservation
                wanted |= {"reserve_us": reserve_us, "reserve_period_us": reserve_period_us}
            try:
                now = control.tenant(gpu, tenant)
                if now.configured and all(getattr(now, name) == value for name, value in wanted.items()):
                    return {"changed": False}
            except NotFoundError:
                pass
            control.set_tenant(gpu, tenant, **wanted)
            faults.point("configure.set")
            return {"changed": True}

    def _forget_group(self, control: NetlinkControl, *, gpu: str, tenant: str) -> dict[str, Any]:
        self._known(gpu)
        with self._locked(f"{gpu} {tenant}"):
            try:
                control.delete_tenant(gpu, tenant)
            except NotFoundError:
                return {"changed": False}
            faults.point("forget.deleted")
            return {"changed": True}

    # ---- slices

    def _prepare(
        self,
        control: NetlinkControl,
        *,
        uuid: str,
        gpu: str,
        mdev_type: str,
        tenant: str,
        vm_uuid: str,
        weight: int,
        cap_us: int,
        cap_period_us: int,
        **limits: int,
    ) -> dict[str, Any]:
        self._known(gpu)
        wanted = Record(uuid=uuid, gpu=gpu, mdev_type=mdev_type, tenant=tenant, vm_uuid=vm_uuid, **limits)
        with self._locked(uuid), ExitStack() as undo:
            exists = self._usable(control, wanted)
            self._execution.set_engine(gpu)
            self._require_permits(gpu)
            faults.point("prepare.attached")
            self._records.save(wanted)
            if not exists:
                undo.callback(self._records.delete, uuid)
            faults.point("prepare.recorded")
            if not exists:
                self._sysfs.create(gpu, mdev_type, uuid)
                undo.pop_all()
                undo.callback(self._unmake, uuid)
            faults.point("prepare.created")
            control.set_slice(uuid, tenant=tenant, weight=weight, **_cap(cap_us, cap_period_us))
            faults.point("prepare.set")
            self._execution.start(wanted, gpu=gpu, tenant=tenant, wait=True)
            self._grant(uuid)
            undo.pop_all()
            faults.point("prepare.granted")
            return {"created": not exists}

    def _grant(self, uuid: str) -> None:
        try:
            self._sysfs.grant(uuid)
        except RefusedError as error:
            raise Refused(Code.PERMIT_REFUSED, f"the kernel does not permit a VM to open the slice: {error}") from error

    def _unmake(self, uuid: str) -> None:
        """Remove a slice that was just created. If the removal fails, log it: the slice stays ours, with its record.

        The caller reports the original error.
        """
        try:
            self._remove_now(uuid)
        except (RefusedError, Refused, OSError) as error:
            log.warning("slice %s: not undone: %s", uuid, error)

    def _usable(self, control: NetlinkControl, wanted: Record) -> bool:
        """Return whether the slice exists. Refuse one that is not ours, is in use, or has another GPU or type."""
        if self._removals.running(wanted.uuid):
            raise Refused(Code.SLICE_REMOVING, f"slice {wanted.uuid} is being removed; try again")
        if not self._sysfs.exists(wanted.uuid):
            return False
        if self._records.get(wanted.uuid) is None:
            raise Refused(
                Code.SLICE_FOREIGN,
                f"slice {wanted.uuid} was made by somebody else; remove it, or run vgpumgr-helper adopt {wanted.uuid}",
            )
        found = control.slice(wanted.uuid)
        if found.open:
            raise Refused(Code.SLICE_OPEN, f"slice {wanted.uuid} is in use by a VM; stop that first")
        if (found.gpu, self._sysfs.slice_type(wanted.uuid)) != (wanted.gpu, wanted.mdev_type):
            raise Refused(Code.SLICE_MISMATCH, f"slice {wanted.uuid} exists on another GPU or with another mdev type")
        return True

    def _apply(
        self, control: NetlinkControl, *, uuid: str, tenant: str, weight: int, cap_us: int, cap_period_us: int
    ) -> dict[str, Any]:
        with self._locked(uuid):
            self._recorded(uuid)
            control.set_slice(uuid, tenant=tenant, weight=weight, **_cap(cap_us, cap_period_us))
            faults.point("apply.set")
            return {}

    def _renew(self, control: NetlinkControl, *, uuid: str) -> dict[str, Any]:  # noqa: ARG002 - see run
        """Extend the permit of a starting VM. The caller is not trusted: the VM's QEMU must be running."""
        with self._locked(uuid):
            record = self._recorded(uuid)
            starting = record.vm_uuid and is_starting(
                self._sysfs.paths.root, record.vm_uuid, since_s=self._records.saved_s(uuid)
            )
            if not starting:
                return {"renewed": False}
            try:
                self._sysfs.renew(uuid)
            except (NotFoundError, InvalidFieldError):  # the permit was just used, or the module is older
                return {"renewed": False}
            faults.point("renew.renewed")
            return {"renewed": True}

    def _withdraw(self, control: NetlinkControl, *, uuid: str) -> dict[str, Any]:  # noqa: ARG002 - see run
        with self._locked(uuid):
            self._recorded(uuid)
            if self._sysfs.exists(uuid):
                self._sysfs.withdraw(uuid)
            faults.point("withdraw.withdrawn")
            return {}

    def _remove(self, control: NetlinkControl, *, uuid: str, vm_gone: bool, withdraw: bool) -> dict[str, Any]:
        with self._locked(uuid):
            if not self._removals.running(uuid):
                if not self._sysfs.exists(uuid):
                    self._execution.stop(uuid)
                    self._records.delete(uuid)
                    return {"state": "absent"}
                self._recorded(uuid)
                self._close(control, uuid, vm_gone=vm_gone, withdraw=withdraw)
                faults.point("remove.closed")
                self._removals.start(uuid, lambda: self._remove_now(uuid))
        return {"state": "absent" if self._removals.wait(uuid, _REMOVE_WAIT_S) else "pending"}

    def _close(self, control: NetlinkControl, uuid: str, *, vm_gone: bool, withdraw: bool) -> None:
        """Ensure that no VM has the slice open or can open it."""
        if not (withdraw or vm_gone) and self._sysfs.permit_s(uuid):
            raise Refused(Code.SLICE_PERMITTED, f"slice {uuid} is about to be opened")
        # Check whether the slice is open only after the permit is gone: if the permit was used, the check finds the
        # slice open.
        self._sysfs.withdraw(uuid)
        # The kernel may release a VM that is gone a moment after libvirt does.
        deadline = time.monotonic() + (_CLOSE_WAIT_S if vm_gone else 0)
        while control.slice(uuid).open:
            if time.monotonic() >= deadline:
                raise Refused(Code.SLICE_OPEN, f"slice {uuid} is in use by a VM; it is removed when that stops")
            time.sleep(_CLOSE_PAUSE_S)

    def _remove_now(self, uuid: str) -> None:
        self._execution.stop(uuid)
        faults.point("remove.stopped")
        try:
            self._sysfs.remove(uuid)
        except RefusedError:  # mdev returns EAGAIN or ENODEV to the slower of two removals
            if self._sysfs.exists(uuid):
                raise
        faults.point("remove.removed")
        self._records.delete(uuid)
        faults.point("remove.forgotten")

    def _adopt(self, control: NetlinkControl, *, uuid: str) -> dict[str, Any]:
        with self._locked(uuid):
            found = control.slice(uuid)
            if self._records.get(uuid) is None:
                kind = self._sysfs.slice_type(uuid)
                self._records.save(Record(uuid=uuid, gpu=found.gpu, mdev_type=kind, tenant=found.tenant))
            return {}

    def _observe(self, control: NetlinkControl) -> dict[str, Any]:
        return observe(
            self._sysfs,
            control,
            self._records,
            removing=self._removals.all(),
            executors=self._execution.all,
            brokers=self._brokers.all,
        )

    # ---- executors

    def _execute(self, control: NetlinkControl, *, uuid: str) -> dict[str, Any]:
        """Start the executor of one of our slices that has lost it. The caller checks later whether it runs."""
        with self._locked(uuid):
            record = self._recorded(uuid)
            if self._removals.running(uuid):
                raise Refused(Code.SLICE_REMOVING, f"slice {uuid} is being removed; try again")
            found = control.slice(uuid)
            return {"started": self._execution.start(record, gpu=found.gpu, tenant=found.tenant, wait=False)}

    def _halt(self, control: NetlinkControl, *, uuid: str) -> dict[str, Any]:  # noqa: ARG002 - see run
        """Stop the executor of a slice that is gone."""
        with self._locked(uuid):
            if self._sysfs.exists(uuid):
                raise Refused(Code.EXECUTOR_NEEDED, f"slice {uuid} is there, and keeps its executor")
            self._execution.stop(uuid)
            return {}

    # ---- checks

    def _check_abi(self) -> None:
        for gpu in self._sysfs.gpus():
            version = self._sysfs.read_gpu(gpu, "abi_version")
            if version.partition(".")[0] != ABI_MAJOR:
                raise Refused(
                    Code.MODULE_ABI,
                    f"vgpumgr.ko has abi_version {version[:20]!a}, this agent needs {ABI_MAJOR}.x; "
                    "install both from one release",
                )

    def _known(self, gpu: str) -> None:
        if gpu not in self._sysfs.gpus():
            raise UnknownGpuError(
                operation=f"find GPU {gpu}", errno=errno.ENODEV, field="gpu", reason="vgpumgr.ko does not share it"
            )

    def _recorded(self, uuid: str) -> Record:
        found = self._records.get(uuid)
        if found is None:
            raise Refused(Code.RECORD_MISSING, f"slice {uuid} is not one of ours")
        return found

    def _require_permits(self, gpu: str) -> None:
        if self._sysfs.read_gpu(gpu, "attach") != "permit":
            self._sysfs.write_gpu(gpu, "attach", "permit")

    @contextmanager
    def _locked(self, subject: str) -> Iterator[None]:
        """Lock a slice or group. Give up after a while, so that requests do not pile up."""
        with self._guard:
            lock = self._locks.setdefault(subject, threading.Lock())
            self._users[subject] += 1
        try:
            if not lock.acquire(timeout=_LOCK_WAIT_S):
                raise BusyError(
                    operation=f"change {subject}", errno=errno.EBUSY, reason="another change is taking long; try again"
                )
            try:
                yield
            finally:
                lock.release()
        finally:
            with self._guard:
                self._users[subject] -= 1
                if not self._users[subject]:
                    del self._users[subject], self._locks[subject]


def _cap(cap_us: int, cap_period_us: int) -> dict[str, int]:
    """Return the cap's members. Without a cap the period has no meaning, so it is left out."""
    return {"cap_us": cap_us, "cap_period_us": cap_period_us} if cap_us else {"cap_us": 0}
