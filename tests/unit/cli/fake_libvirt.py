# SPDX-License-Identifier: Apache-2.0
"""A libvirt module with one domain, which stores XML and refuses requests like libvirt.

It copies this behaviour of libvirt: the definition and the running VM have separate devices and metadata. A namespace
is added to metadata without one, and removed with the metadata. libvirt refuses to attach a device twice, to detach a
missing device, and to change the live state of a VM that does not run. A guest may release a device late, or never.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

VIR_DOMAIN_AFFECT_LIVE = 1
VIR_DOMAIN_AFFECT_CONFIG = 2
VIR_DOMAIN_XML_INACTIVE = 2
VIR_DOMAIN_METADATA_ELEMENT = 2
VIR_ERR_NO_DOMAIN = 42
VIR_ERR_OPERATION_FAILED = 9
VIR_ERR_NO_CONNECT = 5


class LibvirtError(Exception):
    """Like libvirt.libvirtError."""

    def __init__(self, text: str, code: int = VIR_ERR_OPERATION_FAILED) -> None:
        super().__init__(text)
        self.code = code

    def get_error_code(self) -> int:
        return self.code


@dataclass
class FakeDomain:
    """`slow_polls`: the number of polls until the guest releases a device; None: it never does.

    `failing`: (method, flags) that are refused, always or, with a count, that many times.
    """

    domain_name: str
    domain_uuid: str
    active: bool = False
    persistent: bool = True
    slow_polls: int | None = 0
    devices: dict[int, list[str]] = field(default_factory=lambda: {1: [], 2: []})
    metadata: dict[int, str | None] = field(default_factory=lambda: {1: None, 2: None})
    failing: set[tuple[str, int]] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    leaving: dict[str, int | None] = field(default_factory=dict)
    on_xml: Callable[[], None] = lambda: None

    def UUIDString(self) -> str:  # noqa: N802
        return self.domain_uuid

    def name(self) -> str:
        return self.domain_name

    def isActive(self) -> int:  # noqa: N802
        return int(self.active)

    def isPersistent(self) -> int:  # noqa: N802
        return int(self.persistent)

    def XMLDesc(self, flags: int) -> str:  # noqa: N802
        self.on_xml()
        side = VIR_DOMAIN_AFFECT_CONFIG if flags & VIR_DOMAIN_XML_INACTIVE else VIR_DOMAIN_AFFECT_LIVE
        if side == VIR_DOMAIN_AFFECT_LIVE:
            self._guest_works()
            if not self.active:
                side = VIR_DOMAIN_AFFECT_CONFIG
        metadata = f"<metadata>{self.metadata[side]}</metadata>" if self.metadata[side] else ""
        devices = "".join(
            f"<hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci' display='off'>"
            f"<source><address uuid='{device}'/></source>"
            "<address type='pci' domain='0x0000' bus='0x00' slot='0x03' function='0x0'/></hostdev>"
            for device in self.devices[side]
        )
        other = "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000'/></source></hostdev>"
        return (
            f"<domain type='kvm'><name>{self.domain_name}</name><uuid>{self.domain_uuid}</uuid>{metadata}"
            f"<devices>{other}{devices}</devices></domain>"
        )

    def _guest_works(self) -> None:
        for device, polls in list(self.leaving.items()):
            if polls == 0:
                self.devices[VIR_DOMAIN_AFFECT_LIVE].remove(device)
                del self.leaving[device]
            elif polls is not None:
                self.leaving[device] = polls - 1

    def _allow(self, method: str, flags: int) -> None:
        self.calls.append(f"{method} {'live' if flags == VIR_DOMAIN_AFFECT_LIVE else 'config'}")
        if (method, flags) in self.failing:
            raise LibvirtError(f"internal error: {method} was refused")
        if flags == VIR_DOMAIN_AFFECT_LIVE and not self.active:
            raise LibvirtError("Requested operation is not valid: domain is not running")
        if flags == VIR_DOMAIN_AFFECT_CONFIG and not self.persistent:
            raise LibvirtError("Requested operation is not valid: transient domains do not have any persistent config")

    def attachDeviceFlags(self, xml: str, flags: int) -> int:  # noqa: N802
        self._allow("attachDeviceFlags", flags)
        element = ET.fromstring(xml)
        assert element.attrib == {"mode": "subsystem", "type": "mdev", "model": "vfio-pci"}
        device = element.find("./source/address").get("uuid")  # type: ignore[union-attr]
        assert device is not None
        if device in self.devices[flags]:
            raise LibvirtError("Requested operation is not valid: device is already in the domain configuration")
        self.devices[flags].append(device)
        return 0

    def detachDeviceFlags(self, xml: str, flags: int) -> int:  # noqa: N802
        self._allow("detachDeviceFlags", flags)
        device = ET.fromstring(xml).find("./source/address").get("uuid")  # type: ignore[union-attr]
        assert device is not None
        if device not in self.devices[flags]:
            raise LibvirtError("device not found: device not present in domain configuration")
        if flags == VIR_DOMAIN_AFFECT_LIVE:
            self.leaving[device] = self.slow_polls
        else:
            self.devices[flags].remove(device)
        return 0

    def setMetadata(self, kind: int, metadata: str | None, key: str, uri: str, flags: int) -> int:  # noqa: N802
        self._allow("setMetadata", flags)
        assert kind == VIR_DOMAIN_METADATA_ELEMENT
        if metadata is None:
            self.metadata[flags] = None
            return 0
        ET.register_namespace(key, uri)
        element = ET.fromstring(metadata)
        for node in element.iter():
            assert not node.tag.startswith("{")
            node.tag = f"{{{uri}}}{node.tag}"
        self.metadata[flags] = ET.tostring(element, encoding="unicode")
        return 0


@dataclass
class FakeConnection:
    domain: FakeDomain
    closed: bool = False

    def lookupByName(self, name: str) -> FakeDomain:  # noqa: N802
        if name != self.domain.domain_name:
            raise LibvirtError(f"Domain not found: no domain with matching name '{name}'", VIR_ERR_NO_DOMAIN)
        return self.domain

    def lookupByUUIDString(self, uuid: str) -> FakeDomain:  # noqa: N802
        if uuid != self.domain.domain_uuid:
            raise LibvirtError(f"Domain not found: no domain with matching uuid '{uuid}'", VIR_ERR_NO_DOMAIN)
        return self.domain

    def listAllDomains(self, flags: int) -> list[FakeDomain]:  # noqa: N802
        assert flags == 0
        return [self.domain]

    def close(self) -> int:
        self.closed = True
        return 0


@dataclass
class FakeLibvirt:
    """Replaces the libvirt module."""

    domain: FakeDomain
    reachable: bool = True
    connections: list[FakeConnection] = field(default_factory=list)
    handler: Any = None

    VIR_DOMAIN_AFFECT_LIVE = VIR_DOMAIN_AFFECT_LIVE
    VIR_DOMAIN_AFFECT_CONFIG = VIR_DOMAIN_AFFECT_CONFIG
    VIR_DOMAIN_XML_INACTIVE = VIR_DOMAIN_XML_INACTIVE
    VIR_DOMAIN_METADATA_ELEMENT = VIR_DOMAIN_METADATA_ELEMENT
    VIR_ERR_NO_DOMAIN = VIR_ERR_NO_DOMAIN
    libvirtError = LibvirtError  # noqa: N815

    def registerErrorHandler(self, handler: Any, _context: Any) -> None:  # noqa: N802
        self.handler = handler

    def open(self, uri: str) -> FakeConnection:
        assert uri == "qemu:///system"
        if not self.reachable:
            raise LibvirtError("Failed to connect socket to '/var/run/libvirt/libvirt-sock'", VIR_ERR_NO_CONNECT)
        self.connections.append(FakeConnection(self.domain))
        return self.connections[-1]
