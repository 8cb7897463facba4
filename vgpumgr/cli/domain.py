# SPDX-License-Identifier: Apache-2.0
"""A libvirt domain's slices: its mediated devices, and the metadata that says which of them are ours.

libvirt-python is imported when a domain is opened. The metadata is one element in our namespace. libvirt replaces the
whole element, so every writer must write all slices. See docs/libvirt-hook.md.
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
    """Return the domain XML of a slice's device."""
    return (
        "<hostdev mode='subsystem' type='mdev' model='vfio-pci'>"
        f"<source><address uuid='{slice_id}'/></source></hostdev>"
    )


def slices_xml(ids: Iterable[str]) -> str | None:
    """Return our metadata, None if there is no slice. The namespace is left out, because libvirt adds it."""
    root = ET.Element("slices")
    for slice_id in ids:
        ET.SubElement(root, "slice", id=slice_id)
    return ET.tostring(root, encoding="unicode") if len(root) else None


@dataclass(frozen=True)
class Domain:
    """An open domain. `live` selects the running VM instead of the persistent definition. LibvirtFailedError."""

    libvirt: Any
    handle: Any

    @property
    def uuid(self) -> UUID:
        return UUID(self._call("UUIDString"))

    @property
    def name(self) -> str:
        return str(self._call("name"))

    def running(self) -> bool:
        """Whether the domain has a running VM now."""
        return bool(self._call("isActive"))

    @property
    def persistent(self) -> bool:
        return bool(self._call("isPersistent"))

    def devices(self, *, live: bool) -> set[UUID]:
        """Return the UUIDs of the domain's mediated devices."""
        found = set()
        for address in self._xml(live).iterfind("./devices/hostdev[@type='mdev']/source/address"):
            with contextlib.suppress(ValueError):
                found.add(UUID(address.get("uuid", "")))
        return found

    def slices(self, *, live: bool) -> list[str]:
        """Return the ids in our metadata, in their original spelling."""
        path = f"./metadata/{{{NAMESPACE}}}slices/{{{NAMESPACE}}}slice"
        return [entry.get("id", "") for entry in self._xml(live).iterfind(path)]

    def add_device(self, slice_id: UUID, *, live: bool) -> None:
        self._call("attachDeviceFlags", hostdev_xml(slice_id), self._affect(live))

    def remove_device(self, slice_id: UUID, *, live: bool) -> None:
        """Remove the device. For a running VM this only asks the guest, which may keep the device for a while."""
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
            raise LibvirtFailedError(f"libvirt's description of the domain is not valid XML: {error}") from None

    def _call(self, method: str, *arguments: object) -> Any:
        try:
            return getattr(self.handle, method)(*arguments)
        except self.libvirt.libvirtError as error:
            raise LibvirtFailedError(f"{method}: {error}") from None


@contextlib.contextmanager
def open_domain(name: str, uri: str, *, libvirt: Any = None) -> Iterator[Domain]:
    """Open the domain of this name or UUID. Tests pass another `libvirt` module.

    DomainUnknownError, LibvirtFailedError.
    """
    with _connected(uri, libvirt or _library()) as (library, connection):
        yield Domain(library, _look_up(library, connection, name, uri))


@contextlib.contextmanager
def all_domains(uri: str, *, libvirt: Any = None) -> Iterator[list[Domain]]:
    """Open all domains of a host, including those that do not run. LibvirtFailedError."""
    with _connected(uri, libvirt or _library()) as (library, connection):
        try:
            handles = connection.listAllDomains(0)
        except library.libvirtError as error:
            raise LibvirtFailedError(f"listing domains: {error}") from None
        yield [Domain(library, handle) for handle in handles]


@contextlib.contextmanager
def _connected(uri: str, library: Any) -> Iterator[tuple[Any, Any]]:
    # libvirt prints every error itself unless a handler is registered.
    library.registerErrorHandler(lambda _context, _error: None, None)
    try:
        connection = library.open(uri)
    except library.libvirtError as error:
        todo = as_root("check that this is the VM's host and that libvirt runs")
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
