# SPDX-License-Identifier: Apache-2.0
"""A libvirt domain's slices: its mediated devices, and which of them its metadata says are ours.

libvirt-python is imported when a domain is opened. The metadata is one element in our namespace; libvirt replaces it
as a whole, so whoever writes it writes all of it. See docs/libvirt-hook.md.
"""

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from xml.etree import ElementTree as ET

from vgpumgr.cli.privilege import as_root
from vgpumgr.errors import DomainUnknownError, LibvirtFailedError

NAMESPACE = "https://vgpumgr.dev/xmlns/domain/1"
PREFIX = "vgpumgr"


def hostdev_xml(slice_id: UUID) -> str:
    """Return the device of a slice as domain XML has it."""
    return (
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'>"
        f"<source><address uuid='{slice_id}'/></source></hostdev>"
    )


def slices_xml(ids: Iterable[str]) -> str | None:
    """Return our metadata, None for no slice. Without the namespace, which libvirt adds itself."""
    root = ET.Element("slices")
    for slice_id in ids:
        ET.SubElement(root, "slice", id=slice_id)
    return ET.tostring(root, encoding="unicode") if len(root) else None


@dataclass(frozen=True)
class Domain:
    """An open domain. `live` chooses between the running VM and the persistent definition. LibvirtFailedError."""

    libvirt: Any
    handle: Any

    @property
    def uuid(self) -> UUID:
        return UUID(self._call("UUIDString"))

    @property
    def name(self) -> str:
        return str(self._call("name"))

    def running(self) -> bool:
        """Whether it is a running VM now."""
        return bool(self._call("isActive"))

    @property
    def persistent(self) -> bool:
        return bool(self._call("isPersistent"))

    def devices(self, *, live: bool) -> set[UUID]:
        """The UUIDs of its mediated devices."""
        found = set()
        for address in self._xml(live).iterfind("./devices/hostdev[@type='mdev']/source/address"):
            with contextlib.suppress(ValueError):
                found.add(UUID(address.get("uuid", "")))
        return found

    def slices(self, *, live: bool) -> list[str]:
        """The ids in our metadata, as they are written there."""
        path = f"./metadata/{{{NAMESPACE}}}slices/{{{NAMESPACE}}}slice"
        return [entry.get("id", "") for entry in self._xml(live).iterfind(path)]

    def add_device(self, slice_id: UUID, *, live: bool) -> None:
        self._call("attachDeviceFlags", hostdev_xml(slice_id), self._affect(live))

    def remove_device(self, slice_id: UUID, *, live: bool) -> None:
        """For a running VM this only asks the guest; the device is there until it has let go."""
        self._call("detachDeviceFlags", hostdev_xml(slice_id), self._affect(live))

    def set_slices(self, ids: Iterable[str], *, live: bool) -> None:
        """Replace our metadata."""
        kind = self.libvirt.VIR_DOMAIN_METADATA_ELEMENT
        self._call("setMetadata", kind, slices_xml(ids), PREFIX, NAMESPACE, self._affect(live))

    def _affect(self, live: bool) -> int:
        return int(self.libvirt.VIR_DOMAIN_AFFECT_LIVE if live else self.libvirt.VIR_DOMAIN_AFFECT_CONFIG)

    def _xml(self, live: bool) -> ET.Element:
        text = self._call("XMLDesc", 0 if live else self.libvirt.VIR_DOMAIN_XML_INACTIVE)
        try:
            return ET.fromstring(text)
        except ET.ParseError as error:
            raise LibvirtFailedError(f"libvirt's description of the domain is no XML: {error}") from None

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            return getattr(self.handle, method)(*arguments)
        except self.libvirt.libvirtError as error:
            raise LibvirtFailedError(f"{method}: {error}") from None


@contextlib.contextmanager
def open_domain(name: str, uri: str, *, libvirt: Any = None) -> Iterator[Domain]:
    """Give the domain of this name or UUID. `libvirt`: another module in tests.

    DomainUnknownError, LibvirtFailedError.
    """
    with _connected(uri, libvirt or _library()) as (library, connection):
        yield Domain(library, _look_up(library, connection, name, uri))


@contextlib.contextmanager
def all_domains(uri: str, *, libvirt: Any = None) -> Iterator[list[Domain]]:
    """Give all domains of a host, those that do not run too. LibvirtFailedError."""
    with _connected(uri, libvirt or _library()) as (library, connection):
        try:
            handles = connection.listAllDomains(0)
        except library.libvirtError as error:
            raise LibvirtFailedError(f"listing domains: {error}") from None
        yield [Domain(library, handle) for handle in handles]


@contextlib.contextmanager
def _connected(uri: str, library: Any) -> Iterator[tuple[Any, Any]]:
    # Without a handler of ours libvirt prints every error itself.
    library.registerErrorHandler(lambda _context, _error: None, None)
    try:
        connection = library.open(uri)
    except library.libvirtError as error:
        todo = as_root("see that this is the VM's host and that libvirt runs")
        raise LibvirtFailedError(f"cannot connect to {uri}: {error}; {todo}") from None
    try:
        yield library, connection
    finally:
        with contextlib.suppress(library.libvirtError):
            connection.close()


def _look_up(library: Any, connection: Any, name: str, uri: str) -> Any:
    lookups = [connection.lookupByName]
    with contextlib.suppress(ValueError):
        name = str(UUID(name))
        lookups.insert(0, connection.lookupByUUIDString)
    for look_up in lookups:
        try:
            return look_up(name)
        except library.libvirtError as error:
            if error.get_error_code() != library.VIR_ERR_NO_DOMAIN:
                raise LibvirtFailedError(f"looking for domain {name}: {error}") from None
    raise DomainUnknownError(f"{uri} has no domain {name!r}; `virsh list --all` lists them")


def _library() -> Any:
    try:
        return importlib.import_module("libvirt")
    except ImportError:
        raise LibvirtFailedError(
            "libvirt-python is missing: install the distribution's package (python3-libvirt) and run vgpumgr with a"
            " Python that sees it"
        ) from None
