# SPDX-License-Identifier: Apache-2.0
"""GPUs and slices in sysfs: binding, memory classes, creation, removal, attributes and permits.

Writing needs root. Every refusal is a RefusedError whose `field` is the attribute that was written.
"""

import contextlib
import errno
import hashlib
import os
import re
import time
import uuid as uuids
from dataclasses import dataclass, field
from pathlib import Path

from vgpumgr.control.model import MdevType
from vgpumgr.errors import AlreadyExistsError, ControlUnavailableError, InvalidFieldError, RefusedError, refused

DRIVER = "vgpumgr"
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_CREATE_LIMIT_S = 5.0
_CREATE_PAUSE_S = 0.02
_CREATE_PAUSE_MAX_S = 0.5


@dataclass(frozen=True)
class HostPaths:
    """Paths on a host. Tests pass another `root`. Names are checked before they become paths."""

    root: Path = Path("/")

    @property
    def mdev_bus(self) -> Path:
        """Directory with one entry for each GPU that can be shared."""
        return self.root / "sys/class/mdev_bus"

    def pci_device(self, address: str) -> Path:
        """Directory of a PCI function."""
        return self.root / "sys/bus/pci/devices" / _checked("gpu", address, _PCI_ADDRESS)

    @property
    def pci_probe(self) -> Path:
        """File that makes the kernel look for a driver again when an address is written to it."""
        return self.root / "sys/bus/pci/drivers_probe"

    @property
    def module(self) -> Path:
        """Directory that exists while our module is loaded."""
        return self.root / "sys/module/vgpumgr"

    @property
    def listed_gpus(self) -> Path:
        """List of the GPUs that our module drives, see `vgpumgr.control.listed`."""
        return self.root / "etc/vgpumgr/gpus"

    @property
    def agent_settings(self) -> Path:
        """The agent's settings. Other programs read a part of them, see `vgpumgr.control.executor_settings`."""
        return self.root / "etc/vgpumgr/agent.toml"

    @property
    def probes(self) -> Path:
        """Measurements of this host's GPUs, see `vgpumgr.probe_results`."""
        return self.root / "var/lib/vgpumgr/probes"

    def gpu(self, address: str) -> Path:
        """Directory of a GPU's own attributes."""
        return self.pci_device(address) / "vgpu"

    def mdev_types(self, address: str) -> Path:
        """Directory of a GPU's memory classes."""
        return self.pci_device(address) / "mdev_supported_types"

    @property
    def machine(self) -> tuple[Path, Path]:
        """Identifiers of this machine: that of the installation, and that of the firmware, which only root can read."""
        return self.root / "etc/machine-id", self.root / "sys/class/dmi/id/product_uuid"

    @property
    def brokers(self) -> Path:
        """Run directories of the brokers of GPUs that are set aside for processes, each named by the GPU's address."""
        return self.root / "run/vgpumgr-brokers"

    @property
    def boot_id(self) -> Path:
        """File with a UUID that differs after each boot."""
        return self.root / "proc/sys/kernel/random/boot_id"

    def slice(self, uuid: str) -> Path:
        """Directory of a slice."""
        try:
            name = str(uuids.UUID(uuid))
        except ValueError as error:
            raise InvalidFieldError(
                operation="name a slice", errno=errno.EINVAL, field="uuid", reason=f"malformed: {uuid!r}"
            ) from error
        return self.root / "sys/bus/mdev/devices" / name


def is_pci_address(text: str) -> bool:
    """Whether this is the address of a PCI function in the kernel's notation."""
    return _PCI_ADDRESS.fullmatch(text) is not None


def _checked(what: str, name: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(name):
        raise InvalidFieldError(
            operation=f"name a {what}", errno=errno.EINVAL, field=what, reason=f"malformed: {name!r}"
        )
    return name


def write_file(path: Path, text: str) -> None:
    """Write to an existing file in one system call, which sysfs requires. OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Sysfs:
    """The host's GPUs and slices. Stateless: threads may share it."""

    paths: HostPaths = field(default_factory=HostPaths)

    # ---- GPUs

    def gpus(self) -> list[str]:
        """Return the PCI addresses of GPUs that our module shares, sorted. ControlUnavailableError without mdev."""
        try:
            names = sorted(entry.name for entry in self.paths.mdev_bus.iterdir())
        except FileNotFoundError as error:
            raise ControlUnavailableError(
                "this kernel has no mediated devices: mdev.ko is missing or not loaded"
            ) from error
        return [name for name in names if _PCI_ADDRESS.fullmatch(name) and self.paths.gpu(name).is_dir()]

    def driver(self, address: str) -> str | None:
        """Return the name of the driver that a PCI function is bound to, None if it has no driver."""
        try:
            return (self.paths.pci_device(address) / "driver").readlink().name
        except FileNotFoundError:
            return None

    def bind(self, address: str, driver: str = DRIVER) -> None:
        """Unbind a PCI function from its driver, and bind it to `driver`. The binding survives a probe of all drivers.

        UnknownGpuError if no function has the address, or if the driver does not accept it.
        """
        operation = f"bind {address} to {driver}"
        device = self._existing_device(operation, address)
        if self.driver(address) == driver:
            return
        self._write(operation, device / "driver_override", f"{driver}\n", "driver_override")
        if self.driver(address) is not None:
            self._write(operation, device / "driver" / "unbind", f"{address}\n", "unbind")
        self._write(operation, self.paths.pci_probe, f"{address}\n", "drivers_probe")
        if self.driver(address) != driver:
            raise refused(operation=operation, errno=errno.ENODEV, reason="the driver did not accept it; see dmesg")

    def announce(self, address: str) -> None:
        """Make udev run its rules for a PCI function as if it had just appeared. UnknownGpuError, NotPermittedError."""
        operation = f"announce {address}"
        device = self._existing_device(operation, address)
        self._write(operation, device / "uevent", "add\n", "uevent")

    def unbind(self, address: str) -> None:
        """Unbind a PCI function from its driver and clear the override. Blocks until every VM has closed its slice."""
        operation = f"unbind {address}"
        device = self._existing_device(operation, address)
        self._write(operation, device / "driver_override", "\n", "driver_override")
        if self.driver(address) is not None:
            self._write(operation, device / "driver" / "unbind", f"{address}\n", "unbind")

    def _existing_device(self, operation: str, address: str) -> Path:
        device = self.paths.pci_device(address)
        if not device.is_dir():
            raise refused(operation=operation, errno=errno.ENODEV, field="gpu", reason="there is no such PCI function")
        return device

    def read_gpu(self, address: str, attribute: str) -> str:
        """Return a GPU's attribute, as in ``attach`` or ``memory_total``, without the line end."""
        return self._read(f"read {attribute}", self.paths.gpu(address), attribute)

    def write_gpu(self, address: str, attribute: str, value: str | int) -> None:
        """Change a GPU's attribute."""
        path = self.paths.gpu(address) / _checked("attribute", attribute, _NAME)
        self._write(f"write {attribute}", path, f"{value}\n", attribute)

    # ---- memory classes

    def types(self, address: str) -> list[MdevType]:
        """Return a GPU's memory classes, by id. UnknownGpuError if it has none."""
        directory = self.paths.mdev_types(address)
        try:
            ids = sorted(entry.name for entry in directory.iterdir())
        except FileNotFoundError as error:
            raise refused(
                operation="list mdev types", errno=errno.ENODEV, field="gpu", reason="it shares nothing"
            ) from error
        return [self._type(directory / type_id) for type_id in ids]

    def _type(self, directory: Path) -> MdevType:
        def value(name: str) -> str:
            return self._read(f"read {name}", directory, name)

        return MdevType(
            id=directory.name,
            name=value("name"),
            description=value("description"),
            device_api=value("device_api"),
            available=int(value("available_instances")),
        )

    # ---- slices

    def create(self, address: str, type_id: str, uuid: str) -> None:
        """Create a slice of an mdev type (the last part of its id suffices, as in ``mem16m``).

        The kernel keeps the UUID of a removed slice until the last reference to it is gone. Therefore this retries for
        up to 5 s while the kernel reports that the slice exists and sysfs does not show it. AlreadyExistsError,
        NoCapacityError, NotFoundError, UnknownGpuError.
        """
        slice_path = self.paths.slice(uuid)
        operation = f"create slice {slice_path.name}"
        type_path = self._type_path(operation, address, _checked("type", type_id, _NAME))
        deadline = time.monotonic() + _CREATE_LIMIT_S
        pause_s = _CREATE_PAUSE_S
        while True:
            try:
                self._write(operation, type_path / "create", f"{slice_path.name}\n", "uuid")
                return
            except AlreadyExistsError:
                if slice_path.exists() or time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _CREATE_PAUSE_MAX_S)

    def _type_path(self, operation: str, address: str, type_id: str) -> Path:
        directory = self.paths.mdev_types(address)
        if not directory.is_dir():
            raise refused(operation=operation, errno=errno.ENODEV, field="gpu", reason="it shares nothing")
        for path in (directory / type_id, *directory.glob(f"*-{type_id}")):
            if path.is_dir():
                return path
        raise refused(operation=operation, errno=errno.ENOENT, field="type", reason="the GPU has no such mdev type")

    def remove(self, uuid: str) -> None:
        """Remove a slice. Blocks until the VM that has it open closes it, so call this from a thread that may block.

        NotFoundError.
        """
        path = self.paths.slice(uuid)
        self._write(f"remove slice {path.name}", path / "remove", "1\n", "uuid")

    def exists(self, uuid: str) -> bool:
        """Whether a slice with this UUID exists."""
        return self.paths.slice(uuid).exists()

    def slices(self, address: str) -> list[str]:
        """Return the UUIDs of a GPU's slices, sorted."""
        device = self.paths.pci_device(address)
        found = []
        for entry in device.iterdir() if device.is_dir() else ():
            try:
                found.append(str(uuids.UUID(entry.name)))
            except ValueError:
                continue
        return sorted(found)

    def slice_type(self, uuid: str) -> str:
        """Return the id of a slice's mdev type. NotFoundError."""
        try:
            return (self.paths.slice(uuid) / "mdev_type").readlink().name
        except OSError as error:
            raise self._refusal("read mdev_type", "mdev_type", error) from error

    def read(self, uuid: str, attribute: str) -> str:
        """Return a slice's attribute without the line end. NotFoundError."""
        return self._read(f"read {attribute}", self.paths.slice(uuid), attribute)

    def write(self, uuid: str, attribute: str, value: str | int) -> None:
        """Change a slice's attribute. BusyError if a tenant is set, because then only netlink may write it."""
        path = self.paths.slice(uuid) / _checked("attribute", attribute, _NAME)
        self._write(f"write {attribute}", path, f"{value}\n", attribute)

    def grant(self, uuid: str) -> None:
        """Permit one opening of a slice during the next 120 s."""
        self.write(uuid, "permit", 1)

    def renew(self, uuid: str) -> None:
        """Extend a permit to 120 s from now. NotFoundError if it was used or withdrawn, or has expired.

        InvalidFieldError from an older module without the feature ``renewal``.
        """
        self.write(uuid, "permit", "renew")

    def withdraw(self, uuid: str) -> None:
        """Withdraw a permit that was not used."""
        self.write(uuid, "permit", 0)

    def permit_s(self, uuid: str) -> int:
        """Return how many seconds a permit is still valid, 0 for none."""
        return int(self.read(uuid, "permit"))

    # ---- the host

    def boot_id(self) -> str:
        """Return the id of this boot. OSError."""
        return self.paths.boot_id.read_text().strip()

    def machine(self) -> str:
        """Return an id that differs on a machine with a copy of this disk; "" if there is none. For root only."""
        names = []
        for path in self.paths.machine:
            with contextlib.suppress(OSError):
                names.append(path.read_text(errors="replace").strip().lower())
        return hashlib.sha256(" ".join(names).encode()).hexdigest() if any(names) else ""

    # ---- files

    def _read(self, operation: str, directory: Path, attribute: str) -> str:
        path = directory / _checked("attribute", attribute, _NAME)
        try:
            return path.read_text().removesuffix("\n")
        except OSError as error:
            raise self._refusal(operation, attribute, error) from error

    def _write(self, operation: str, path: Path, text: str, attribute: str) -> None:
        try:
            write_file(path, text)
        except OSError as error:
            raise self._refusal(operation, attribute, error) from error

    @staticmethod
    def _refusal(operation: str, attribute: str, error: OSError) -> RefusedError:
        return refused(operation=operation, errno=error.errno or errno.EIO, field=attribute)
